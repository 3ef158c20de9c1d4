"""Checks of a client's messages against what the server asked of it.

A client is somebody else's program. Whatever it sends besides honest work (other types,
shapes or tasks, numbers that are none, numbers so large that no model would be left) is
refused here, before anything of the server's is touched, as a failure of that client
alone. All functions raise `InputError`, in one sentence that a terminal can show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from simfed.compress.codec import Payload
from simfed.fleet.contract import Task
from simfed.ground.errors import InputError
from simfed.ground.measure import ACCURACY
from simfed.ground.method import Field, Layout
from simfed.ground.plain import Plain
from simfed.learn.federation import Federation
from simfed.learn.lowrank import decode
from simfed.learn.parcel import Part

_FLAT = ("update", "weights", "buffers", "control", "counts", "low-rank")
"""Kinds of fields that are one vector; those of the others have shapes of their
method's."""
_CLASS_AXIS = {"logits": 1, "means": 0}
"""Kinds of fields that are a table: its axis of the classes."""


def find_largest(entries: int, participants: int) -> float:
    """Return the bound of a value.

    With every entry of everybody's upload so large, their sum of squares is still a
    float32, so that means, norms and second moments stay finite.

    Args:
        entries: of one upload.
        participants: of a round.
    """
    return math.sqrt(float(np.finfo(np.float32).max) / max(1, entries * participants))


def check_label(facts: Mapping[str, Plain], task: Task) -> None:
    """Refuse an upload of another task."""
    if facts.get("label") != task.label:
        raise InputError(
            f"that of {task.label!r}", where="label", got=_show(facts.get("label"))
        )


def read_loss(loss: Plain) -> float | None:
    """Return a loss, a number of at least 0, or None.

    It is infinite of a model that has diverged.

    loss: whatever a client said.
    """
    if loss is None:
        return None
    # compared, never converted, before it is known to be no integer of a thousand
    # digits
    if type(loss) not in (int, float) or not (0 <= loss < 1e300 or loss == math.inf):
        raise InputError("a loss of at least 0", where="loss", got=_show(loss))
    return float(loss)


def read_coded(
    said: Plain, plan: Mapping[str, Field], classes: int
) -> dict[str, tuple[list[int], Plain]]:
    """Return compressed field → (its shape, what its client says of codec state).

    Args:
        said: what came under `coded`.
        plan: the compressed fields of the task.
        classes: of the data set: the length of one axis of tables.
    """
    if not isinstance(said, Mapping):
        raise InputError(
            "what is said of each compressed field", where="coded", got=_show(said)
        )
    coded = {}
    for name, one in said.items():
        if (
            name not in plan
            or not isinstance(one, Mapping)
            or {"shape", "state"} - one.keys()
        ):
            allowed = "the shape and state of a compressed field"
            raise InputError(allowed, where=f"coded {_show(name)}", got=_show(one))
        shape = one["shape"]
        whole = isinstance(shape, list) and all(
            type(n) is int and n >= 0 for n in shape
        )
        if not whole:
            raise InputError(
                "the lengths of its axes", where=f"{name}: shape", got=_show(shape)
            )
        check_shape(name, shape, plan[name], classes)
        coded[name] = shape, one["state"]
    return coded


def read_values(name: str, part: Part, of_plan: Field, classes: int) -> Tensor:
    """Return a field that was not compressed, in PyTorch's memory.

    Args:
        name: the field's, for errors.
        part: what came.
        of_plan: the field as the task plans it.
        classes: of the data set.
    """
    if isinstance(part, bytes) or part.dtype != np.float32:
        got = "bytes" if isinstance(part, bytes) else str(part.dtype)
        raise InputError("float32 numbers", where=name, got=got)
    if of_plan.bounded:
        if part.ndim != 1 or part.size > of_plan.entries:
            raise InputError(
                f"at most {of_plan.entries} entries",
                where=name,
                got=_show([*part.shape]),
            )
    else:
        check_shape(name, part.shape, of_plan, classes)
    return torch.tensor(part)


def check_payload(name: str, payload: Payload, length: int) -> None:
    """Refuse a codec's vector of another length, or not all of it finite.

    Indices must ascend within the length, as every encoder writes them.
    """
    indices = payload.indices
    vector = np.asarray(payload.dense() if indices is None else payload.values)
    whole = payload.length == length and vector.ndim == 1 and vector.dtype.kind == "f"
    if whole and indices is None:
        whole = len(vector) == length
    elif whole:
        places = np.asarray(indices)
        ordered = bool((np.diff(places, prepend=-1, append=length) > 0).all())
        whole = len(places) == len(vector) <= length and ordered
    if not whole:
        raise InputError(f"a payload of {length} entries", where=name)
    _check_finite(name, vector)


def check_magnitude(
    task: Task, values: Mapping[str, Tensor], most: float, variances: Tensor
) -> None:
    """Refuse fields of an upload that are not finite, or whose merge might not be.

    Args:
        task: of the upload.
        values: field → vector.
        most: from `find_largest`.
        variances: (s,) which entries of the field `buffers` are variances, of which
            none is below 0; neither is a count.
    """
    for name, value in values.items():
        of_plan = task.plan.up[name]
        _check_numbers(name, value, most)
        if of_plan.kind == "low-rank":
            _check_numbers(
                name, _decode_lowrank(name, value, of_plan.layout or ()), most
            )
        if of_plan.kind == "counts" and bool((value < 0).any()):
            raise InputError(
                "counts of at least 0", where=name, got=f"{float(value.min()):.4g}"
            )
        if of_plan.kind != "buffers" or not value.numel():
            continue
        if bool((value[variances] < 0).any()):
            least = float(value[variances].min())
            raise InputError("variances of at least 0", where=name, got=f"{least:.4g}")


def read_rows(part: Part, data: Federation) -> Tensor:
    """Return the results of a client's own model on the test set; see `join_tests`.

    They are per group samples, right answers (shares of them, where the task is no
    classification) and the sum of losses; where measures need it then per class
    samples, right answers and AUC.
    """
    groups = data.groups
    classes = 0 if data.measures == (ACCURACY.key,) else data.classes
    width = groups + classes
    if isinstance(part, bytes) or part.dtype.kind != "f" or part.shape != (3, width):
        raise InputError(f"3 rows of {width} numbers", where="rows", got="other ones")
    rows = torch.tensor(part, dtype=torch.float64)
    samples, right, losses = rows
    counts = [torch.bincount(data.test_groups.cpu(), minlength=groups)]
    if classes:
        counts.append(torch.bincount(data.test_labels.cpu(), minlength=classes))
    if not bool((samples == torch.cat(counts)).all()):
        raise InputError("the samples of the test set", where="rows", got="others")
    losses, aucs = losses[:groups], losses[groups:]
    # no NaN is at least 0
    honest = bool((losses >= 0).all() and right.isfinite().all())
    honest &= bool((aucs.isnan() | ((aucs >= 0) & (aucs <= 1))).all())
    if not honest or (
        data.task == "classification"
        and not bool(((right >= 0) & (right <= samples)).all())
    ):
        raise InputError(
            "right answers and losses of the test set", where="rows", got="others"
        )
    return rows


def check_shape(name: str, shape: Sequence[int], of_plan: Field, classes: int) -> None:
    """Refuse axes other than the method's.

    They are of a vector, or of logits and class means of a table.
    """
    fits = math.prod(shape) == of_plan.entries and len(shape) <= 8
    if of_plan.kind in _FLAT:
        fits = fits and len(shape) == 1
    elif of_plan.kind in _CLASS_AXIS and classes > 1:
        fits = fits and len(shape) == 2 and shape[_CLASS_AXIS[of_plan.kind]] == classes
    if not fits:
        allowed = f"{of_plan.entries} entries, as the task's plan says"
        raise InputError(allowed, where=f"{name}: shape", got=_show([*shape]))


def _check_finite(name: str, values: np.ndarray) -> None:
    """Refuse an array in which a number is NaN or infinite."""
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)]
        raise InputError("finite numbers", where=name, got=f"{len(bad)} that are not")


def _check_numbers(name: str, value: Tensor, most: float) -> None:
    _check_finite(name, value.numpy())
    largest = float(value.abs().max()) if value.numel() else 0.0
    if largest > most:
        problem = f"a merge of values up to {largest:.4g} might not be finite"
        raise InputError(f"at most {most:.4g}", where=name, problem=problem)


def _decode_lowrank(name: str, value: Tensor, shapes: Layout) -> Tensor:
    """Return the update that low-rank factors stand for, (entries,)."""
    with suppress(ValueError, RuntimeError, IndexError, TypeError):
        whole, end = decode(value, shapes)
        if end == len(value) and len(whole) == sum(map(math.prod, shapes)):
            return whole
    raise InputError("factors of each layer", where=name, problem="of other sizes")


def _show(value: object) -> str:
    """Return what a stranger sent as short, printable text."""
    if isinstance(value, int) and value.bit_length() >= 64:
        return "an int"
    if isinstance(value, str | int | float | list | None):
        return ascii(value)
    return f"a value of type {type(value).__name__}"
