"""Numbers as bits: fixed width and Rice codes, all without a loop over entries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simfed.ground.errors import InputError

Bits = NDArray[np.uint8]
"""One bit per entry."""

Numbers = NDArray[np.int64]

Whole = NDArray[np.integer]
"""Whole numbers of any width."""

# numbers; a multiple of 8, so that a block of any width fills whole bytes
_BLOCK = 2**15


def pack(numbers: Whole, width: int) -> bytes:
    """Return the lowest `width` bits of each number, highest first, as bytes.

    >>> pack(np.array([1, 2, 3]), 2).hex()
    '6c'
    """
    if width == 0:
        return b""
    blocks = range(0, len(numbers), _BLOCK)
    return b"".join(
        np.packbits(_split_bits(numbers[i : i + _BLOCK], width)).tobytes()
        for i in blocks
    )


def unpack(data: bytes, count: int, width: int) -> Numbers:
    """Return the first `count` numbers that `pack` wrote.

    >>> unpack(bytes([0x6C]), 3, 2)
    array([1, 2, 3])
    """
    numbers = np.zeros(count, np.int64)
    if width == 0:
        return numbers
    octets = np.frombuffer(data, np.uint8)
    for start in range(0, count, _BLOCK):
        part = numbers[start : start + _BLOCK]
        first = start * width // 8
        bits = np.unpackbits(octets[first : first + -(-len(part) * width // 8)])
        part[:] = _join_bits(bits, len(part), width)
    return numbers


def unpack_bits(data: bytes) -> Bits:
    """Return the bits of these bytes, highest first."""
    return np.unpackbits(np.frombuffer(data, np.uint8))


def choose_rice_parameter(gaps: Numbers) -> tuple[int, int]:
    """Return (r, bits) of the shortest Rice code.

    Each gap is written as gap >> r in unary and r bits. The size is convex in r (each
    step saves less than the one before), so the first r that the next does not beat is
    the best.
    """
    parameter, unary = 0, int(gaps.sum())
    while True:
        gaps = gaps >> 1
        shorter = int(gaps.sum())
        if unary - shorter <= len(gaps):
            return parameter, unary + len(gaps) * (1 + parameter)
        parameter, unary = parameter + 1, shorter


def encode_rice(gaps: Numbers) -> bytes:
    """Return the Rice code of gaps between indices.

    It is the parameter in a byte, then all quotients as zeros ended by a one, then all
    remainders. Quotients and remainders stand apart so that both are read without a
    loop over entries.
    """
    parameter, _ = choose_rice_parameter(gaps)
    unary = _encode_unary(gaps >> parameter)
    remainders = _split_bits(gaps, parameter)
    return (
        bytes([parameter]) + np.packbits(np.concatenate([unary, remainders])).tobytes()
    )


def decode_rice(data: bytes, count: int) -> Numbers:
    """Return the gaps that `encode_rice` wrote.

    Raises: `InputError` for data that it did not write.
    """
    parameter = data[0] if data else 64
    bits = unpack_bits(data[1:])
    ends = np.flatnonzero(bits)[:count]
    used = ends[-1] + 1 + count * parameter if len(ends) == count else None
    if parameter >= 63 or used is None or -(-used // 8) != len(data) - 1:
        raise InputError(f"a Rice code of {count} gaps", got=f"{len(data)} other bytes")
    rest = _join_bits(bits[ends[-1] + 1 :], count, parameter)
    quotients = np.diff(ends, prepend=-1) - 1
    return (quotients << parameter) | rest


def _encode_unary(numbers: Numbers) -> Bits:
    """Return each number as so many zeros, ended by a one."""
    ends = np.cumsum(numbers + 1) - 1
    unary = np.zeros(ends[-1] + 1, np.uint8)
    unary[ends] = 1
    return unary


def _split_bits(numbers: Whole, width: int) -> Bits:
    size = 1 if width <= 8 else 8
    octets = numbers.astype(f">u{size}").view(np.uint8).reshape(-1, size)
    return np.unpackbits(octets, axis=1)[:, 8 * size - width :].reshape(-1)


def _join_bits(bits: Bits, count: int, width: int) -> Numbers:
    size = 1 if width <= 8 else 8
    padded = np.zeros((count, 8 * size), np.uint8)
    padded[:, 8 * size - width :] = bits[: count * width].reshape(count, width)
    return np.packbits(padded, axis=1).view(f">u{size}").reshape(-1).astype(np.int64)
