"""Named parts: built-in ones, those of installed packages, and those a user registers.

A registry maps a name to `"module:attribute"` (imported on first use, so that naming a
model does not import torch) or to an object. Installed packages add theirs by an entry
point in the group `simfed.<kind>s`; a script adds its own with `simfed.register(kind,
name, object)`, and so does a file named by `--import FILE.py` (or, for processes that
know of no command line, by the environment variable `SIMFED_IMPORT`), or by `plugins`
in a scenario, once somebody has consented to run it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from simfed.ground.errors import InputError, check_known, did_you_mean, listed
from simfed.ground.inputs import list_files_below, read_bytes
from simfed.ground.plain import Plain

Part: TypeAlias = Any
"""A registered class, function or path. What it offers hangs on its kind (a codec's
`select`, a policy's `pull`), whose protocol stands in a room above this one;
`simfed.testing` checks it."""


@dataclass(frozen=True, slots=True)
class NameOf:
    """An annotation of a part's option: the text is a name of this kind of part.

    `strategy: Annotated[str, NameOf("codec"), "the strategy"]`: scenarios check the
    name.
    """

    kind: str


@dataclass(frozen=True, init=False)
class Only:
    """An annotation of a key or option that counts only beside a value of another one.

    `beta2: Annotated[float, Only("optimizer", "adam", "yogi"), "memory of the squares"]
    = 0.99`: a scenario that gives `beta2` beside another optimizer is refused with this
    as the reason. Without values, the other one must be given at all, with None it must
    not. The other key
    stands beside this one; with a dot, as in `network.model`, it is a path from the top
    of the scenario. `needed`: where the key says something, it is required. `beside`:
    the path of a key that lifts the condition where it is given.

    >>> print(Only("network.topology", "tree", "graph"))
    network.topology tree or graph
    """

    key: str
    values: tuple[Plain, ...] = ()
    needed: bool = False
    beside: str = ""

    def __init__(
        self, key: str, *values: Plain, needed: bool = False, beside: str = ""
    ) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "needed", needed)
        object.__setattr__(self, "beside", beside)

    @property
    def from_the_top(self) -> bool:
        """True if the other key is a path from the top of the scenario."""
        return "." in self.key

    def chosen(self, section: object) -> Plain:
        """Return the value of the other key.

        `section` is the mapping in which its path starts.
        """
        return attrgetter(self.key)(section)

    def holds(self, section: object) -> bool:
        """Return whether the marked key has an effect beside what `section` says."""
        if self.beside and attrgetter(self.beside)(section) is not None:
            return True
        chosen = self.chosen(section)
        return chosen in self.values if self.values else bool(chosen)

    def __str__(self) -> str:
        if self.values == (None,):
            return f"no {self.key}"
        values = listed(map(format_value, self.values))
        return f"{self.key} {values}" if self.values else self.key


def format_value(value: object) -> str:
    """Return a value as YAML writes it.

    >>> format_value(True), format_value(3)
    ('true', '3')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


class Registry:
    """The names of one kind of part.

    >>> kinds = Registry("colour", {"red": "builtins:str"})
    >>> kinds.get("red") is str
    True
    """

    def __init__(self, kind: str, builtin: dict[str, str]) -> None:
        self.kind = kind
        self.group = f"simfed.{_make_plural(kind).replace('-', '_')}"
        self._builtin = dict(builtin)
        self._added: dict[str, Part] = {}
        self._installed: dict[str, EntryPoint] | None = None

    def names(self) -> list[str]:
        """Return all names, built-in first, then installed and registered ones."""
        return list(
            dict.fromkeys([*self._builtin, *self._entry_points(), *self._added])
        )

    def __contains__(self, name: object) -> bool:
        here = (self._builtin, self._added, self._entry_points())
        return isinstance(name, str) and any(name in names for names in here)

    def origin(self, name: str) -> str:
        """Return a name's origin: `built in`, `registered`, or an installed package."""
        if name in self._added:
            return "registered"
        if name in self._builtin:
            return "built in"
        entry = self._entry_points()[name]
        return entry.dist.name if entry.dist else "installed"

    def get(self, name: str, *, where: str | None = None) -> Part:
        """Return the part of this name; imports it on first use.

        Raises: `InputError` with a did-you-mean for a name nobody registered.
        """
        part = self._added.get(name, self._builtin.get(name))
        if part is not None:
            return import_part(part) if isinstance(part, str) else part
        if name in self._entry_points():
            return self._entry_points()[name].load()
        raise self.unknown(name, where=where)

    def unknown(self, name: object, *, where: str | None = None) -> InputError:
        """Return the error for a name that is not here."""
        return InputError(
            listed(self.names()),
            where=where,
            got=name,
            problem=f"no {self.kind} {name!r}",
            hint=did_you_mean(str(name), self.names()) or OWN_PARTS,
        )

    def add(self, name: str, part: Part, *, replace: bool = False) -> None:
        """Register `part` (an object or `"module:attribute"`) under `name`.

        It holds in this process.

        Raises: `InputError` for a name that is empty, or taken and not to be replaced.
        """
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"text as the name of a {self.kind}", got=name)
        if not replace and name in self.names():
            raise InputError("a new name", problem=f"there is a {self.kind} {name!r}")
        self._added[name] = part

    def list_foreign_parts(self) -> dict[str, Part]:
        """Return the parts that are not simfed's.

        These are the ones registered in this process, and those of installed packages
        whose module is imported.
        """
        loaded = {
            name: getattr(sys.modules[entry.module], entry.attr, None)
            for name, entry in self._entry_points().items()
            if entry.module in sys.modules
        }
        return {**loaded, **self._added}

    def remove(self, name: str) -> None:
        """Forget a name that was added in this process."""
        del self._added[name]

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._installed is None:
            self._installed = {
                entry.name: entry for entry in entry_points(group=self.group)
            }
        if not _looked:
            _import_named_files()
        return self._installed


OWN_PARTS = "parts of your own: --import FILE.py, or plugins: [FILE.py] in the scenario"

IMPORTS = "SIMFED_IMPORT"
"""The environment variable that names Python files to be run before names are looked
up."""

_IMPORTED = "simfed_import_"
"""The prefix of the names of modules that `import_file` makes."""


def import_file(
    path: str | os.PathLike[str], *, where: str | None = None, origin: str | None = None
) -> None:
    """Run a Python file, or a package's folder, that registers parts of one's own.

    It runs in this process and in those that this one starts, once in each, however
    often it or a copy of it is asked for.

    Args:
        path: the file or folder.
        where: what errors call the place that names it.
        origin: of a copy, where it was copied from. Its content decides whether it is
            run there, where it finds other files beside itself.

    Raises:
        InputError: it is not there, or raises.
    """
    where = where or f"--import {path}"
    found = Path(os.path.realpath(path))
    code = _find_code(found)
    if not code.is_file():
        allowed = "a Python file, or a folder with __init__.py"
        raise InputError(allowed, where=where, problem=f"no file {str(code)!r}")
    place = hashlib.blake2b(bytes(found), digest_size=4).hexdigest()
    name = f"{_IMPORTED}{found.stem}_{place}"
    if name in sys.modules:  # each run of a study asks: what it holds is not read again
        return
    digest = compute_code_digest(found)
    if digest in _list_imported():
        return
    if (
        origin
        and _find_code(origin).is_file()
        and compute_code_digest(origin) == digest
    ):
        import_file(origin, where=where)
        return
    below = [str(found)] if found.is_dir() else None
    spec = importlib.util.spec_from_file_location(
        name, code, submodule_search_locations=below
    )
    if spec is None or spec.loader is None:
        raise InputError("a Python file, NAME.py", where=where, got=found.name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    setattr(module, _DIGEST, digest)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        for known in [*sys.modules]:
            if f"{known}.".startswith(f"{name}."):
                del sys.modules[known]
        frames = traceback.extract_tb(error.__traceback__)
        problem = f"it fails with {type(error).__name__}: {error}"
        inside = [one for one in frames if Path(one.filename).is_relative_to(found)]
        if inside:
            problem += f" ({Path(inside[-1].filename).name}, line {inside[-1].lineno})"
        raise InputError(where=where, problem=problem) from error
    os.environ[IMPORTS] = os.pathsep.join(
        dict.fromkeys([*_list_named_files(), str(found)])
    )


def is_consented(path: str | os.PathLike[str]) -> bool:
    """Return whether somebody has asked for this plug-in to be run.

    They did by its name, or that of a copy of it, in this process or in the one that
    started it.
    """
    found = os.path.realpath(path)
    named = _list_named_files()
    if found in named or not _find_code(found).is_file():
        return found in named
    there = filter(os.path.exists, named)
    known = {*_list_imported(), *map(compute_code_digest, there)}
    return bool(known) and compute_code_digest(found) in known


_DIGEST = "__simfed_digest__"


def _list_imported() -> set[str]:
    """Return the digests of the plug-ins that this process has run."""
    modules = [
        module for name, module in sys.modules.items() if name.startswith(_IMPORTED)
    ]
    return {getattr(module, _DIGEST) for module in modules if hasattr(module, _DIGEST)}


def _find_code(path: str | os.PathLike[str]) -> Path:
    """Return the file that is run: itself, or a package's `__init__.py`.

    A folder without one is never read: a stranger's scenario may name any.
    """
    return Path(path) / "__init__.py" if os.path.isdir(path) else Path(path)


def compute_code_digest(path: str | os.PathLike[str]) -> str:
    """Return BLAKE2b of a file, or of a folder's names and bytes, as 32 hex digits."""
    whole = hashlib.blake2b(digest_size=16)
    for file in list_files_below(Path(path)):
        content = read_bytes(file)
        whole.update(
            f"{file.relative_to(path).as_posix()}\0{len(content)}\0".encode() + content
        )
    return whole.hexdigest()


def _list_named_files() -> list[str]:
    return [path for path in os.environ.get(IMPORTS, "").split(os.pathsep) if path]


_looked = False


def _import_named_files() -> None:
    """Import the files of `SIMFED_IMPORT`, once per process.

    Not while scenarios themselves are imported, which look names up: the files may need
    them.
    """
    global _looked
    scenario = sys.modules.get("simfed.scenario")
    if not getattr(getattr(scenario, "__spec__", None), "_initializing", False):
        _looked = True
        for path in _list_named_files():
            import_file(path)


def import_part(name: str) -> Part:
    """Return the object that `"module:attribute"` names; its module is imported.

    Raises: `ImportError`.

    >>> import_part("math:pi") > 3
    True
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def blame_part(error: BaseException) -> str | None:
    """Return one sentence for an error that a part of the user's raised.

    It says which part, how it was called, the message, and the line. None for errors
    that passed through no such part. A part is known by the file of its code; where
    several stand in one file, by the name of the function or of the method's class as
    far as that tells.
    """
    files: dict[str, list[tuple[str, str, Part]]] = {}
    for kind, names in REGISTRIES.items():
        for name, part in names.list_foreign_parts().items():
            with contextlib.suppress(TypeError, OSError):
                files.setdefault(inspect.getfile(part), []).append((kind, name, part))
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    in_parts = [frame for frame in frames if frame.filename in files]
    if not in_parts:
        return None
    called, last = in_parts[0], in_parts[-1]
    code = called.frame.f_code
    parts = files[called.filename]
    owner = type(called.frame.f_locals.get("self"))
    fitting = (
        p for p in parts if p[2] is owner or getattr(p[2], "__code__", None) is code
    )
    kind, name, _ = next(fitting, parts[0])
    arguments = [
        word for word in code.co_varnames[: code.co_argcount] if word != "self"
    ]
    message = f"{type(error).__name__}: {error}".partition("\n")[0]
    where = f"{Path(last.filename).name}, line {last.lineno}, in {last.function}"
    return (
        f"your {kind} {name!r}, called as {called.function}({', '.join(arguments)}), "
        f"raised {message} ({where}; --debug shows more)"
    )


def _make_plural(kind: str) -> str:
    return kind[:-1] + "ies" if kind.endswith("y") else kind + "s"


REGISTRIES: dict[str, Registry] = {
    r.kind: r
    for r in (
        Registry(
            "codec",
            {
                "top-k": "simfed.compress:TopK",
                "random-k": "simfed.compress:RandomK",
                "periodic-k": "simfed.compress:PeriodicK",
                "dense": "simfed.compress:Dense",
                "qsgd": "simfed.compress:QSGD",
                "terngrad": "simfed.compress:TernGrad",
                "ef-sign": "simfed.compress:EFSign",
                "fp16": "simfed.compress:FP16",
                "bf16": "simfed.compress:BF16",
                "shared-random-k": "simfed.compress:SharedRandomK",
                "dgc": "simfed.compress:DGC",
                "adacomp": "simfed.compress:AdaComp",
                "ef21": "simfed.compress:EF21",
                "detached-ef": "simfed.compress:DetachedEF",
                "powersgd": "simfed.compress:PowerSGD",
                "svd": "simfed.compress:SVD",
            },
        ),
        Registry(
            "policy",
            {
                "uniform": "simfed.policy:Uniform",
                "ascend": "simfed.policy:Ascend",
                "exp3": "simfed.policy:Exp3",
                "ucb": "simfed.policy:Ucb",
                "linucb": "simfed.policy:LinUcb",
                "thompson": "simfed.policy:Thompson",
                "adaptive-k": "simfed.policy:AdaptiveK",
                "balance": "simfed.policy:Balance",
                "bcrs": "simfed.policy:Bcrs",
            },
        ),
        Registry(
            "model",
            {
                "lenet5": "simfed.learn.models:LeNet5",
                "lenet5-half": "simfed.learn.models:LeNet5Half",
                "resnet18": "simfed.learn.models:ResNet18",
                "wresnet40-2": "simfed.learn.models:WResNet40x2",
                "logistic-regression": "simfed.learn.models:LogisticRegression",
                "perceptron": "simfed.learn.models:Perceptron",
                "mcmahan-cnn": "simfed.learn.models:McMahanCNN",
                "femnist-cnn": "simfed.learn.models:FemnistCNN",
                "resnet18-gn": "simfed.learn.models:ResNet18GN",
                "char-lstm": "simfed.learn.models:CharLSTM",
                "causal-transformer": "simfed.learn.models:CausalTransformer",
            },
        ),
        Registry(
            "dataset",
            {
                "mnist-mini": "simfed.learn.data:MNIST_MINI",
                "mnist": "simfed.learn.data:MNIST",
                "fashion-mnist": "simfed.learn.data:FASHION_MNIST",
                "cifar10": "simfed.learn.data:CIFAR10",
                "text-mini": "simfed.learn.data:TEXT_MINI",
                "sotu": "simfed.learn.data:SOTU",
            },
        ),
        Registry(
            "selection",
            {
                "all": "simfed.fleet.selection:All",
                "uniform": "simfed.fleet.selection:UniformSelection",
                "by-samples": "simfed.fleet.selection:BySamples",
                "fastest": "simfed.fleet.selection:Fastest",
                "oort": "simfed.fleet.selection:Oort",
                "poisson": "simfed.fleet.selection:Poisson",
            },
        ),
        Registry("availability", {"battery": "simfed.fleet.battery:Battery"}),
        Registry(
            "method",
            {
                "fedkd": "simfed.learn.methods.fedkd:FedKD",
                "fedavg": "simfed.learn.methods.fedavg:FedAvg",
                "fedprox": "simfed.learn.methods.fedprox:FedProx",
                "fednova": "simfed.learn.methods.fednova:FedNova",
                "fedopt": "simfed.learn.methods.fedopt:FedOpt",
                "scaffold": "simfed.learn.methods.scaffold:Scaffold",
                "fedbuff": "simfed.learn.methods.fedbuff:FedBuff",
                "fedasync": "simfed.learn.methods.fedasync:FedAsync",
                "feddf": "simfed.learn.methods.feddf:FedDF",
                "fedmd": "simfed.learn.methods.fedmd:FedMD",
                "kt-pfl": "simfed.learn.methods.kt_pfl:KtPfl",
                "local-only": "simfed.learn.methods.local_only:LocalOnly",
                "ditto": "simfed.learn.methods.ditto:Ditto",
                "fedrep": "simfed.learn.methods.fedrep:FedRep",
                "fedbn": "simfed.learn.methods.fedbn:FedBN",
                "fedproto": "simfed.learn.methods.fedproto:FedProto",
                "fedtgp": "simfed.learn.methods.fedtgp:FedTGP",
                "fedgen": "simfed.learn.methods.fedgen:FedGen",
                "fedal": "simfed.learn.methods.fedal:FedAL",
                "fedkd-mutual": "simfed.learn.methods.fedkd_mutual:FedKDMutual",
            },
        ),
        Registry(
            "rule",
            {
                "mean": "simfed.learn.rules:Mean",
                "median": "simfed.learn.rules:Median",
                "trimmed-mean": "simfed.learn.rules:TrimmedMean",
                "krum": "simfed.learn.rules:Krum",
                "multi-krum": "simfed.learn.rules:MultiKrum",
                "bulyan": "simfed.learn.rules:Bulyan",
                "geometric-median": "simfed.learn.rules:GeometricMedian",
                "norm-bound": "simfed.learn.rules:NormBound",
            },
        ),
        Registry(
            "attack",
            {
                "label-flip": "simfed.learn.attacks:LabelFlip",
                "sign-flip": "simfed.learn.attacks:SignFlip",
                "gaussian": "simfed.learn.attacks:Gaussian",
                "alie": "simfed.learn.attacks:Alie",
                "ipm": "simfed.learn.attacks:Ipm",
                "backdoor": "simfed.learn.attacks:Backdoor",
            },
        ),
        # simfed's own profiles are files, see simfed.device.load
        Registry("device", {}),
    )
}


def registry(kind: str) -> Registry:
    """Return the registry of a kind of part.

    Kinds are `method`, `codec`, `policy`, `model`, `dataset`, `selection`,
    `availability`, `rule`, `attack` and `device`.
    """
    check_known(kind, REGISTRIES, "a kind of part:")
    return REGISTRIES[kind]


def register(kind: str, name: str, part: Part, *, replace: bool = False) -> None:
    """Make a part of your own usable by its name in scenarios loaded afterwards.

    Args:
        kind: `method`, `codec`, `policy`, `model`, `dataset`, `selection`,
            `availability`, `rule`, `attack` or `device`.
        name: what scenarios call it.
        part: what the built-in ones are, mostly a class or a function (a device: the
            path of a calibration profile; see `docs/extending.md`), or the string
            `"module:attribute"`, which is imported on first use.
        replace: take the place of a part that has this name; else that is an error.

    Raises:
        InputError: an unknown kind, or a name that is taken.
    """
    registry(kind).add(name, part, replace=replace)
