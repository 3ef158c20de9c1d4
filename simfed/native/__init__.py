"""The compiled part of the package, where it was built with a C++ compiler.

Imports neither torch nor NumPy: manifests say whether learning has it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

__all__ = ["convolutions", "convpool"]

_INTERFACE = 1
"""Counted up where convpool.cpp changes what its functions take or do, so that a library that an
earlier clone built is not used."""


@cache
def convpool() -> tuple[ctypes.CDLL, int] | None:
    """The library made of convpool.cpp, and how many numbers this processor's vectors hold.

    None where it was not built, was built for another machine or from earlier sources, or is of no
    use to the processor (x86 without AVX2 and FMA).
    """
    for suffix in EXTENSION_SUFFIXES:
        file = Path(__file__).with_name(f"_convpool{suffix}")
        if file.is_file():
            try:
                library = ctypes.CDLL(str(file))
                known = library.simfed_interface() == _INTERFACE
            except (OSError, AttributeError):
                return None
            width = library.simfed_widest()
            return (library, width) if known and width else None
    return None


def convolutions() -> str:
    """Who computes the convolutions of small models; it decides their last bits."""
    return "compiled" if convpool() is not None else "PyTorch"
