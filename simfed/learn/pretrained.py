"""Weights that somebody trained before: safetensors, and folders of GPT-2's layout.

Headers and sizes are read without PyTorch, so that what does not fit is said before a
run begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from simfed.ground.errors import InputError, listed
from simfed.ground.inputs import check_file, named_in_errors, read_json

Shape = tuple[int, ...]

BASE_FILES = "config.json", "model.safetensors"
"""What is read of a folder."""
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")
"""What batch norm keeps beside parameters."""


class Weights:
    """The tensors of one safetensors file, by name.

    Their shapes are known at once. A folder of GPT-2's layout has them in
    `model.safetensors`, under names and in shapes of its own that are turned into those
    of `simfed.learn.models.text.GPT2` here.

    Attributes: `file`, `shapes` (name → shape).
    """

    def __init__(self, path: str) -> None:
        """Read the header. Raises: `InputError` for what is no such file."""
        from safetensors import SafetensorError, safe_open

        self.foreign = Path(path).is_dir()
        self.file = str(Path(path) / BASE_FILES[1]) if self.foreign else path
        check_file(self.file)
        try:
            with safe_open(self.file, "numpy") as file:
                names = file.keys()  # no mapping
                found = {name: file.get_slice(name).get_shape() for name in names}
        except SafetensorError as error:
            problem = f"it cannot be read: {error}"
            allowed = "a safetensors file"
            raise InputError(allowed, where=self.file, problem=problem) from None
        self._names = {name: name for name in found}
        if self.foreign:
            self._names = {_translate(name): name for name in found}
            self._names.pop("", None)
        self.shapes: dict[str, Shape] = {
            name: tuple(found[theirs][:: -1 if self.is_turned(name) else 1])
            for name, theirs in self._names.items()
        }

    def is_turned(self, name: str) -> bool:
        """Return whether the file has a matrix as (inputs, outputs)."""
        return self.foreign and bool(_TURNED.search(name))

    def check(self, wanted: Mapping[str, Shape], model: str) -> None:
        """Check that the tensors are those of a model.

        Args:
            wanted: Name → shape of each of the model's.
            model: Its name, for errors.

        Raises:
            InputError: Names the first tensor that is missing, of another shape, or
                unknown to the model; counters of batch norm may be there or not.
        """
        problem = ""
        for name, shape in wanted.items():
            got = self.shapes.get(name)
            if got != tuple(shape):
                has = "is missing" if got is None else f"has shape {_times(got)}"
                problem = f"tensor {name} {has}, the model's has {_times(shape)}"
                break
        for name, shape in self.shapes.items():
            if not problem and name not in wanted and not name.endswith(_RUNNING):
                problem = f"the model has no tensor {name}, here of {_times(shape)}"
        if problem:
            allowed = f"the tensors of {model}"
            raise InputError(allowed, where=self.file, problem=problem)

    def load(self, into: Mapping[str, Any]) -> None:
        """Copy the numbers into tensors of PyTorch, of these names.

        Raises:
            InputError: One of them is not finite.
        """
        from safetensors import safe_open

        with safe_open(self.file, "pt") as file:
            for name, tensor in into.items():
                values = file.get_tensor(self._names[name]).to(tensor.dtype)
                if not values.isfinite().all():
                    where = f"{self.file}: tensor {name}"
                    raise InputError("finite numbers", where=where)
                tensor.copy_(values.T if self.is_turned(name) else values)


@lru_cache(maxsize=16)
def _read_known(path: str, stamp: object) -> Weights:
    return Weights(path)


def find_weights(path: str) -> Weights:
    """Return the weights at a path; a file that stays is read once."""
    with named_in_errors(path):
        status = Path(path).stat()
    return _read_known(path, (status.st_mtime_ns, status.st_size))


def _times(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "one number"


# ---- folders of GPT-2's layout -------------------------------------------------------

_NAMES = {
    r"^wte\.weight$": "embed.weight",
    r"^wpe\.weight$": "places",
    r"^h\.(\d+)\.ln_1\.": r"blocks.\1.norm1.",
    r"^h\.(\d+)\.attn\.c_attn\.": r"blocks.\1.attend.",
    r"^h\.(\d+)\.attn\.c_proj\.": r"blocks.\1.project.",
    r"^h\.(\d+)\.ln_2\.": r"blocks.\1.norm2.",
    r"^h\.(\d+)\.mlp\.c_fc\.": r"blocks.\1.up.",
    r"^h\.(\d+)\.mlp\.c_proj\.": r"blocks.\1.down.",
    r"^ln_f\.": "norm.",
}
"""A tensor's name in a folder → its name here."""
_LEFT_OUT = re.compile(r"(^lm_head\.weight|\.attn\.(masked_)?bias)$")
"""The head, which is the embedding, and the masks of attention."""
_TURNED = re.compile(r"\.(attend|project|up|down)\.weight$")
"""Here (outputs, inputs), there (inputs, outputs)."""


def _translate(name: str) -> str:
    """Return a tensor's name here, empty for what is left out.

    >>> _translate("transformer.h.0.attn.c_attn.weight"), _translate("h.1.attn.bias")
    ('blocks.0.attend.weight', '')
    """
    name = name.removeprefix("transformer.")
    if _LEFT_OUT.search(name):
        return ""
    for theirs, ours in _NAMES.items():
        name, found = re.subn(theirs, ours, name)
        if found:
            break
    return name


class GPT2Config(NamedTuple):
    """The sizes of a model of GPT-2's layout."""

    vocabulary: int
    positions: int
    width: int
    depth: int
    heads: int
    inner: int
    """Width of the perceptron in a block."""
    eps: float
    """Of layer norm."""


_KEYS = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
    "n_head": 12, "n_inner": None, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
"""Keys of `config.json` that are sizes, with the layout's defaults."""
_FIXED = {
    "model_type": "gpt2", "activation_function": "gelu_new",
    "tie_word_embeddings": True, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
}  # fmt: skip
"""Keys that have one value, which is also their default."""


def read_config(folder: str) -> GPT2Config:
    """Return the sizes that a folder's `config.json` says.

    Dropout is not read: there is none.

    Args:
        folder: As Hugging Face's library saves it.

    Raises:
        InputError: Another layout than GPT-2's, or a size that is none.
    """
    path = str(Path(folder) / BASE_FILES[0])
    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError("a mapping of keys to values", where=path, got=config)
    for key, value in _FIXED.items():
        missing = ... if key == "model_type" else value
        if config.get(key, missing) != value:
            got = config.get(key, "nothing")
            raise InputError(str(value), where=f"{path}: {key}", got=got)
    sizes: dict[str, Any] = {
        key: config.get(key, default) for key, default in _KEYS.items()
    }
    if sizes["n_inner"] is None and isinstance(sizes["n_embd"], int):
        sizes["n_inner"] = 4 * sizes["n_embd"]
    for key, size in sizes.items():
        whole = key != "layer_norm_epsilon"
        number = isinstance(size, int if whole else (int, float))
        if not number or isinstance(size, bool) or size <= 0:
            allowed = "a whole number of at least 1" if whole else "a number above 0"
            raise InputError(allowed, where=f"{path}: {key}", got=size)
    if sizes["n_embd"] % sizes["n_head"]:
        allowed = f"a multiple of n_head, {sizes['n_head']}"
        raise InputError(allowed, where=f"{path}: n_embd", got=sizes["n_embd"])
    return GPT2Config(*(sizes[key] for key in _KEYS))


def check_texts(config: GPT2Config, input_shape: Shape, classes: int) -> None:
    """Check that a model takes such texts.

    Raises: `InputError` for texts that are too long, or of more tokens than it knows.
    """
    length = input_shape[0] if len(input_shape) == 1 else 0
    if not 1 <= length <= config.positions:
        allowed = f"texts of at most {config.positions} tokens"
        raise InputError(allowed, got=tuple(input_shape))
    if classes > config.vocabulary:
        allowed = f"a data set of at most {config.vocabulary} tokens"
        raise InputError(allowed, got=classes)


# ---- adapters ------------------------------------------------------------------------

_ATTENTION = (
    "attend", "project", "qkv", "query", "key", "value", "q_proj", "k_proj", "v_proj",
    "o_proj", "out_proj", "q", "k", "v", "o", "to_q", "to_k", "to_v", "to_out",
)  # fmt: skip


def find_targets(
    layers: Mapping[str, tuple[int, int]], targets: Sequence[str], rank: int, model: str
) -> list[str]:
    """Return the names of the linear layers beside which adapters stand.

    Args:
        layers: Name → (outputs, inputs) of the model's linear layers.
        targets: Each a whole name, its last part, a pattern with `*`, or `attention`:
            names that projections of attention usually have.
        rank: Of the adapters.
        model: Its name, for errors.

    Returns:
        In the order of `layers`.

    Raises:
        InputError: There is no such layer, or none of that rank.

    >>> find_targets({"a.attend": (6, 2), "head": (9, 2)}, ("attention",), 2, "mine")
    ['a.attend']
    """
    found: dict[str, None] = {}
    for target in targets:
        wanted = _ATTENTION if target == "attention" else (target,)
        patterns = [
            re.compile(r"(.*\.)?" + ".*".join(map(re.escape, name.split("*"))))
            for name in wanted
        ]
        matching = [n for n in layers if any(p.fullmatch(n) for p in patterns)]
        if not matching:
            names = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            allowed = f"linear layers of {model}: {listed(names)}" if names else ""
            problem = f"{target!r} matches no linear layer of {model}"
            raise InputError(allowed, where="adapters.targets", problem=problem)
        found |= dict.fromkeys(matching)
    for name in found:
        if rank > min(layers[name]):
            raise InputError(
                f"a rank of at most {min(layers[name])}, as layer {name} is "
                f"{_times(layers[name])}",
                where="adapters.rank",
                got=rank,
            )
    return [name for name in layers if name in found]


def make_head_error(model: str) -> InputError:
    """Return the error of a model whose last linear layer is none of its own."""
    problem = f"{model} has no last linear layer of its own"
    return InputError("all, or adapters", where="train", got="head", problem=problem)
