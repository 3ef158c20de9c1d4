"""The sentence of a broken promise, and checks that several contracts share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from simfed.compress.vectors import convert_to_numpy, is_tensor
from simfed.ground.plain import Plain


def read_bits(tree: object) -> object:
    """Return the tree in a form that equals another only if every bit does.

    Arrays and tensors become type, shape and bytes; mappings, lists and tuples keep
    their form, keys become text. A tensor is read where it is now, so the form does not
    change when the tensor does.
    """
    if is_tensor(tree) or isinstance(tree, np.ndarray):
        array = convert_to_numpy(tree)
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(tree, Mapping):
        return {str(key): read_bits(inner) for key, inner in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [read_bits(inner) for inner in tree]
    return tree


@contextmanager
def no_global_randomness() -> Iterator[None]:
    """Raise if the block uses the global generators of Python or NumPy.

    Raises:
        AssertionError: one of them has moved.
    """
    import random

    def states() -> str:
        # the legacy generator is exactly what must not move; nothing is drawn from it
        # here
        return repr((random.getstate(), np.random.get_state()))  # noqa: NPY002

    before = states()
    yield
    require(states() == before, "no use of the global random generators")


def put_through_json(state: Plain) -> Plain:
    """Return the state as it is read back from JSON: tuples are lists then.

    Raises:
        AssertionError: strict JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"expected a state that strict JSON can hold: {error}"
        ) from None


def require(holds: bool, expected: str) -> None:
    """Raise `AssertionError` with what was expected where that does not hold.

    Args:
        holds: whether it does.
        expected: what goes behind "expected".
    """
    if not holds:
        raise AssertionError(f"expected {expected}")
