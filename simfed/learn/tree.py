"""States of methods as trees: mappings and lists of tensors and plain values.

Memories of codecs are leaves, too.

A tree can be written as JSON and named arrays, for checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from simfed.compress.codec import Memory
from simfed.ground.plain import Plain

Arrays: TypeAlias = dict[str, np.ndarray]
"""The vectors of a checkpoint, by name."""

Tree: TypeAlias = Any
"""Mappings and lists of tensors, codecs' memories and plain values; who made it knows
its shape."""


def encode_tree(tree: Tree, name: str, arrays: Arrays) -> Plain:
    """Return the tree as JSON-able values.

    Its tensors go to `arrays` under names that begin with `name`.

    >>> arrays = {}
    >>> tree = encode_tree({"w": torch.ones(2), "t": 3}, "server", arrays); tree
    {'of': {'w': {'array': 'server/w'}, 't': 3}}
    >>> decode_tree(tree, arrays, torch.device("cpu"))
    {'w': tensor([1., 1.]), 't': 3}
    """
    if isinstance(tree, Tensor):
        arrays[name] = tree.detach().cpu().numpy().copy()
        return {"array": name}
    if isinstance(tree, Memory):
        arrays |= {f"{name}/{key}": array.copy() for key, array in tree.arrays.items()}
        return {"memory": [tree.facts, {key: f"{name}/{key}" for key in tree.arrays}]}
    if isinstance(tree, Mapping):
        return {
            "of": {
                key: encode_tree(inner, f"{name}/{key}", arrays)
                for key, inner in tree.items()
            }
        }
    if isinstance(tree, (list, tuple)):
        keys = getattr(tree, "_fields", range(len(tree)))
        parts = zip(keys, tree, strict=True)
        return [encode_tree(inner, f"{name}/{key}", arrays) for key, inner in parts]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(
        f"{name}: tensors, numbers, text or None in a method's state, got {type(tree)}"
    )


def decode_tree(
    plain: Plain, arrays: Mapping[str, np.ndarray], device: torch.device
) -> Tree:
    """Return the tree that `encode_tree` wrote."""
    if isinstance(plain, Mapping):
        if "memory" in plain:
            facts, places = plain["memory"]
            return Memory(
                facts, {key: np.array(arrays[at]) for key, at in places.items()}
            )
        if "array" in plain:
            return torch.tensor(np.array(arrays[plain["array"]]), device=device)
        return {
            key: decode_tree(inner, arrays, device)
            for key, inner in plain["of"].items()
        }
    if isinstance(plain, list):
        return [decode_tree(inner, arrays, device) for inner in plain]
    return plain
