"""The compiled part of the package, where it was built with a C++ compiler.

Imports neither torch nor NumPy: manifests say whether learning has it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

__all__ = ["layers", "name_layer_engine"]

_INTERFACE = 3
"""Counted up where functions of the library take or do something else, so that one that
an earlier clone built is not used."""


@cache
def layers() -> tuple[ctypes.CDLL, int] | None:
    """Return the library of convolutions with pooling, and its vectors' length.

    The length is in numbers of this processor. None where the library (layers.cpp,
    convpool.cpp) was not built, was built for another machine or from earlier sources,
    or is of no use to the processor (x86 without AVX2 and FMA).
    """
    library = _load_layers()
    width = 0 if library is None else library.simfed_widest()
    return None if library is None or not width else (library, width)


def _load_layers() -> ctypes.CDLL | None:
    """Return the library beside this file; None where it is missing or does not fit."""
    for suffix in EXTENSION_SUFFIXES:
        file = Path(__file__).with_name(f"_layers{suffix}")
        if file.is_file():
            try:
                library = ctypes.CDLL(str(file))
                fits = library.simfed_interface() == _INTERFACE
            except (OSError, AttributeError):
                return None
            return library if fits else None
    return None


def name_layer_engine() -> str:
    """Return who computes the convolutions of LeNets: `compiled` or `PyTorch`.

    It decides their last bits, so it stands in a run's manifest. PyTorch's are slower
    and taken where no compiler was there at installation, or the processor lacks AVX2.
    """
    return "compiled" if layers() is not None else "PyTorch"
