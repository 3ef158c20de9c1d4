"""Value codecs: how each value of a chain is written with fewer than 32 bits.

Where values are rounded at random, the random numbers come from a generator of its own
for each call, seeded from the caller's; 23 bits of it decide each value, so what is
called unbiased here is so up to 2⁻²³ of a level, and up to the rounding of 32-bit
floats.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simfed.compress.bits import pack, unpack, unpack_bits
from simfed.compress.codec import Feedback, Layout, Symbols
from simfed.compress.options import check_number, check_whole
from simfed.compress.selection import refuse_non_finite
from simfed.compress.vectors import Block, Floats, chunks, list_layers
from simfed.ground.errors import InputError

_SMALLEST = 1e-33
"""Norms below it are zero: what a 32-bit factor cannot scale is below every number that
matters."""


class Scaled(NamedTuple):
    """Whole numbers, to be multiplied by the scale of their stretch."""

    scales: Floats
    """One per stretch."""
    levels: NDArray[np.signedinteger]
    """Signed, int8 or int16, one per value."""
    ends: NDArray[np.int64]
    """The end of each stretch."""


@dataclass(frozen=True)
class QSGD:
    """Stochastic rounding to `levels` steps of the norm (Alistarh et al., 2017).

    Per bucket of `bucket` values: x becomes ‖x‖₂/s times a whole number, the next one
    below or above s·x/‖x‖₂ at random so that the mean is x. E‖Q(x) − x‖² ≤ β‖x‖² with β
    = min(n/s², √n/s) for a bucket of n values.

    Each number travels in ⌈log2(2s + 1)⌉ bits, norms as 32-bit floats; the paper's
    Elias code is left out, as it makes sizes depend on the data.

    Left open by the paper: error feedback. β may exceed 1, and then a residual grows
    without bound; so where residuals are kept the receiver's values are divided by 1 +
    β (`scaled`), which contracts with δ = 1/(1 + β) for every β (Basu et al., 2019, do
    so where β ≥ 1).
    """

    name: ClassVar[str] = "qsgd"
    feedback: ClassVar[Feedback] = "optional"

    levels: int = 16
    """s, 2 … 16,384: beyond, casting to 16 bits is cheaper and better."""
    bucket: int = 512
    scaled: bool = False
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        check_whole("levels", self.levels, 2, 2**14)
        check_whole("bucket", self.bucket, 1, 2**31)
        if not isinstance(self.scaled, bool):
            raise InputError("true or false", where="scaled", got=self.scaled)

    def quantise(
        self, values: Floats, rng: np.random.Generator | None, layout: Layout | None
    ) -> Scaled:
        """Return signed levels and the scale of each bucket."""
        norms = self._compute_norms(values)
        factors = np.divide(
            self.levels, norms, out=np.zeros_like(norms), where=norms > 0
        )
        levels = np.empty(len(values), self._kind)
        draw = _Draws(rng, self.name)
        for stretch, buckets in self._cut_into_stretches(len(values)):
            scaled = (
                values[stretch].reshape(len(factors[buckets]), -1)
                * factors[buckets, None]
            )
            draw.round(scaled.reshape(-1), levels[stretch], self.levels)
        shrink = 1 / (1 + self.variance(len(values))) if self.scaled else 1.0
        scales = norms * np.float32(shrink / self.levels)
        return Scaled(scales, levels, self._ends(len(values)))

    def blocks(self, symbols: Scaled) -> Iterator[Block]:
        """Yield the values of whole buckets, in order."""
        for stretch, buckets in self._cut_into_stretches(len(symbols.levels)):
            scales = symbols.scales[buckets, None]
            values = symbols.levels[stretch].astype(np.float32).reshape(len(scales), -1)
            values *= scales
            yield stretch, values.reshape(-1)

    def bits(
        self, count: int, layout: Layout | None, *, ideal: bool, symbols: Symbols = None
    ) -> float | None:
        """Return the size of levels and scales in bits."""
        norms = 32 * -(-count // self.bucket)
        most = 2 * self.levels
        return norms + count * (math.log2(most + 1) if ideal else most.bit_length())

    def write(self, symbols: Scaled) -> bytes:
        """Return the scales, then the levels, as bytes."""
        return _write_levels(symbols, self.levels)

    def read(
        self, data: bytes, count: int, layout: Layout | None
    ) -> tuple[Scaled, int]:
        """Return the symbols that `write` wrote and the number of bytes read."""
        symbols, used = _read_levels(data, self._ends(count), self.levels)
        return symbols._replace(levels=symbols.levels.astype(self._kind)), used

    def under_feedback(self) -> QSGD:
        """Return the codec with values shrunk at the receiver: the error contracts."""
        return replace(self, scaled=True)

    def variance(self, count: int) -> float:
        """Return β of a vector of `count` values."""
        n, s = min(count, self.bucket), self.levels
        return min(n / s**2, math.sqrt(n) / s)

    @property
    def _kind(self) -> type[np.int8] | type[np.int16]:
        """The smallest NumPy type for the levels; two more than the largest fits."""
        return np.int8 if self.levels + 2 < 2**7 else np.int16

    def _ends(self, count: int) -> NDArray[np.int64]:
        """Return where each bucket of `count` values ends; the last may be shorter."""
        return np.minimum(
            np.arange(self.bucket, count + self.bucket, self.bucket), count
        )

    def _cut_into_stretches(self, count: int) -> Iterator[tuple[slice, slice]]:
        """Yield (values, buckets): whole buckets, a few at a time, then the rest."""
        whole, together = count // self.bucket, max(1, 2**16 // self.bucket)
        for a in range(0, whole, together):
            b = min(a + together, whole)
            yield slice(a * self.bucket, b * self.bucket), slice(a, b)
        if count % self.bucket:
            yield slice(whole * self.bucket, count), slice(whole, whole + 1)

    def _compute_norms(self, values: Floats) -> Floats:
        """Return ‖x‖₂ of each bucket, 0 where it is too small to divide by."""
        norms = np.empty(-(-len(values) // self.bucket), np.float32)
        for stretch, buckets in self._cut_into_stretches(len(values)):
            rows = values[stretch].reshape(buckets.stop - buckets.start, -1)
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.einsum("ij,ij->i", rows, rows)
            # beyond what float32 can square
            if not ((squares > 1e-30) & (squares < 1e30)).all():
                refuse_non_finite(values[stretch])
                exact = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
                norms[buckets] = np.where(exact > _SMALLEST, np.minimum(exact, 3e38), 0)
            else:
                norms[buckets] = np.sqrt(squares)
        return norms


@dataclass(frozen=True)
class TernGrad:
    """±the layer's maximum, or zero, at random (Wen et al., 2017).

    Per layer: values are clipped at `clip` standard deviations, then each becomes
    sign·m with probability |x|/m, m being the largest magnitude left. Unbiased for the
    clipped values. Each travels in 2 bits, and m as a 32-bit float.

    Left open by the paper: the standard deviation is around the layer's mean; values
    behind a selection, or without a layout, are one layer. Without error feedback, as
    in the paper: with it the clipping would come back round after round.
    """

    name: ClassVar[str] = "terngrad"
    feedback: ClassVar[Feedback] = "none"

    clip: float | None = 2.5
    """Standard deviations beyond which values are clipped; null: no clipping."""
    privacy = ("client", "sample")

    def __post_init__(self) -> None:
        if self.clip is not None:
            check_number("clip", self.clip, above=0)

    def quantise(
        self, values: Floats, rng: np.random.Generator | None, layout: Layout | None
    ) -> Scaled:
        """Return −1, 0 or 1 for each value, and the scale of each layer."""
        layers = list_layers(len(values), layout)
        levels = np.empty(len(values), np.int8)
        scales = np.array([self._scale(values[layer]) for layer in layers], np.float32)
        draw = _Draws(rng, self.name)
        for layer, scale in zip(layers, scales, strict=True):
            of_layer, to = values[layer], levels[layer]
            for stretch in chunks(len(of_layer)):
                if scale == 0:
                    to[stretch] = 0
                    continue
                clipped = np.clip(of_layer[stretch], -scale, scale)
                clipped *= 1 / scale
                draw.round(clipped, to[stretch], 1)
        return Scaled(scales, levels, _list_ends(layers))

    def _scale(self, values: Floats) -> float:
        """Return the largest magnitude of a layer after clipping.

        0 where a 32-bit factor cannot scale it.
        """
        total = squares = largest = 0.0
        for stretch in chunks(len(values)):
            some = values[stretch]
            low, high = float(some.min()), float(some.max())
            if not (math.isfinite(low) and math.isfinite(high)):
                refuse_non_finite(some)
            largest = max(largest, -low, high)
            wide: NDArray[np.floating] = (
                some if largest < 1e15 else some.astype(np.float64)
            )
            total += float(wide.sum())
            squares += float(np.einsum("i,i->", wide, wide))
        if largest < _SMALLEST:
            return 0.0
        if self.clip is None:
            return largest
        mean = total / len(values)
        spread = math.sqrt(max(squares / len(values) - mean**2, 0.0))
        # of equal values there is no spread, and nothing to clip
        return min(largest, self.clip * spread) if spread > 1e-6 * largest else largest

    def blocks(self, symbols: Scaled) -> Iterator[Block]:
        """Yield the values layer by layer."""
        return _scale_blocks(symbols)

    def bits(
        self, count: int, layout: Layout | None, *, ideal: bool, symbols: Symbols = None
    ) -> float | None:
        """Return the size of signs and scales in bits."""
        scales = 32 * len(list_layers(count, layout))
        return scales + count * (math.log2(3) if ideal else 2)

    def write(self, symbols: Scaled) -> bytes:
        """Return the scales, then the signs, as bytes."""
        return _write_levels(symbols, 1)

    def read(
        self, data: bytes, count: int, layout: Layout | None
    ) -> tuple[Scaled, int]:
        """Return the symbols that `write` wrote and the number of bytes read."""
        ends = _list_ends(list_layers(count, layout))
        symbols, used = _read_levels(data, ends, 1)
        return symbols._replace(levels=symbols.levels.astype(np.int8)), used


@dataclass(frozen=True)
class EFSign:
    """Signs, and the mean magnitude (Karimireddy et al., 2019).

    x becomes (‖x‖₁/n)·sign(x), n being the number of values: one bit each and a 32-bit
    float. ‖C(x) − x‖² = (1 − ‖x‖₁²/(n‖x‖₂²))·‖x‖², so it contracts, the less the fewer
    values stand out.

    Left open by the paper: the sign of zero is +, for which the identity above still
    holds; one magnitude for the whole vector, as in its Algorithm 1 (its experiments
    take one per layer).
    """

    name: ClassVar[str] = "ef-sign"
    feedback: ClassVar[Feedback] = "wanted"
    privacy = ("client", "sample")

    def quantise(
        self, values: Floats, rng: np.random.Generator | None, layout: Layout | None
    ) -> Scaled:
        """Return the sign of each value, and the mean magnitude of each layer."""
        total, levels = 0.0, np.empty(len(values), np.int8)
        for stretch in chunks(len(values)):
            some = values[stretch]
            with np.errstate(over="ignore", invalid="ignore"):
                magnitude = float(np.abs(some).sum())
            if not math.isfinite(magnitude):
                refuse_non_finite(some)
                magnitude = float(np.abs(some).sum(dtype=np.float64))
            total += magnitude
            signs = np.greater_equal(some, 0, out=levels[stretch].view(np.bool_)).view(
                np.int8
            )
            signs += signs
            signs -= 1
        return Scaled(
            np.array([total / len(values)], np.float32), levels, np.array([len(values)])
        )

    def blocks(self, symbols: Scaled) -> Iterator[Block]:
        """Yield the values layer by layer."""
        return _scale_blocks(symbols)

    def bits(
        self, count: int, layout: Layout | None, *, ideal: bool, symbols: Symbols = None
    ) -> float | None:
        """Return the size of signs and scales in bits."""
        return 32 + count

    def write(self, symbols: Scaled) -> bytes:
        """Return the scales, then the signs, as bytes."""
        return (
            symbols.scales.astype("<f4").tobytes()
            + np.packbits(symbols.levels > 0).tobytes()
        )

    def read(
        self, data: bytes, count: int, layout: Layout | None
    ) -> tuple[Scaled, int]:
        """Return the symbols that `write` wrote and the number of bytes read."""
        scales, head = _read_scales(data, 1)
        used = head + -(-count // 8)
        _check_long_enough(data, used)
        levels = 2 * unpack_bits(data[head:used])[:count].astype(np.int8) - 1
        return Scaled(scales, levels.astype(np.int8), np.array([count])), used


class _Cast:
    """Floats rounded to the nearest number of 16 bits, ties to even; two bytes each.

    Beyond the largest such number they become that number rather than infinity.
    """

    feedback: ClassVar[Feedback] = "optional"
    name: ClassVar[str]
    _largest: ClassVar[float]

    def quantise(
        self, values: Floats, rng: np.random.Generator | None, layout: Layout | None
    ) -> NDArray[np.uint16]:
        raw = np.empty(len(values), np.uint16)
        for stretch in chunks(len(values)):
            some = values[stretch]
            low, high = float(some.min()), float(some.max())
            if not max(-low, high) <= self._largest:
                refuse_non_finite(some)
                some = np.clip(some, -self._largest, self._largest)
            self._cast(some, raw[stretch])
        return raw

    def blocks(self, symbols: NDArray[np.uint16]) -> Iterator[Block]:
        for stretch in chunks(len(symbols)):
            yield stretch, self._back(symbols[stretch])

    def bits(
        self, count: int, layout: Layout | None, *, ideal: bool, symbols: Symbols = None
    ) -> float | None:
        return 16 * count

    def write(self, symbols: NDArray[np.uint16]) -> bytes:
        return symbols.astype("<u2").tobytes()

    def read(
        self, data: bytes, count: int, layout: Layout | None
    ) -> tuple[NDArray[np.uint16], int]:
        _check_long_enough(data, 2 * count)
        return np.frombuffer(data[: 2 * count], "<u2").astype(np.uint16), 2 * count

    def _cast(self, values: Floats, raw: NDArray[np.uint16]) -> None:
        raise NotImplementedError

    def _back(self, raw: NDArray[np.uint16]) -> Floats:
        raise NotImplementedError


class FP16(_Cast):
    """IEEE half precision: 11 significant bits from 6·10⁻⁵ to 65,504.

    Absolute steps are 6·10⁻⁸ below. The relative error is at most 2⁻¹¹ where numbers
    are normal.
    """

    name: ClassVar[str] = "fp16"
    _largest = 65504.0
    privacy = ("client", "sample")

    def _cast(self, values: Floats, raw: NDArray[np.uint16]) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            raw[:] = values.astype(np.float16).view(np.uint16)
        else:  # the same bits, six times as fast as NumPy's
            torch.from_numpy(raw.view(np.float16)).copy_(
                torch.from_numpy(np.array(values))
            )

    def _back(self, raw: NDArray[np.uint16]) -> Floats:
        torch = sys.modules.get("torch")
        if torch is None:
            return raw.view(np.float16).astype(np.float32)
        back: Floats = torch.from_numpy(np.array(raw).view(np.float16)).float().numpy()
        return back


class BF16(_Cast):
    """The upper half of a 32-bit float: 8 significant bits, and its whole range.

    Relative error at most 2⁻⁸ where numbers are normal.
    """

    name: ClassVar[str] = "bf16"
    _largest = float(np.array(0x7F7F0000, np.uint32).view(np.float32))
    privacy = ("client", "sample")

    def _cast(self, values: Floats, raw: NDArray[np.uint16]) -> None:
        bits = values.view(np.uint32)
        rounded = bits >> np.uint32(16)
        rounded &= np.uint32(1)
        rounded += bits
        rounded += np.uint32(0x7FFF)
        rounded >>= np.uint32(16)
        raw[:] = rounded

    def _back(self, raw: NDArray[np.uint16]) -> Floats:
        wide: NDArray[np.uint32] = raw.astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)


class _Draws:
    """A source of random rounding, cheaper per number than the caller's generator."""

    def __init__(self, rng: np.random.Generator | None, name: str) -> None:
        if rng is None:
            raise InputError(f"a generator `rng` for {name}", got=rng)
        self._raw = np.random.SFC64(int(rng.integers(2**63))).random_raw

    def round(self, scaled: Floats, out: np.ndarray, most: int) -> None:
        """Write ⌊scaled + u⌋ to `out`, with u uniform in [0, 1), within ±`most`.

        `scaled` is used up. It lies within ±`most` up to rounding, so that `most` + 2
        must fit into `out`.
        """
        # random mantissas make 1 + u, several times as fast as a conversion of whole
        # numbers
        raw = self._raw(-(-len(scaled) // 2)).view(np.uint32)[: len(scaled)]
        raw >>= np.uint32(9)
        raw |= np.uint32(0x3F800000)
        scaled += raw.view(np.float32)
        np.floor(scaled, out=scaled)
        out[:] = scaled
        out -= out.dtype.type(1)
        np.clip(out, -most, most, out=out)


def _scale_blocks(symbols: Scaled) -> Iterator[Block]:
    start = 0
    for end, scale in zip(symbols.ends.tolist(), symbols.scales, strict=True):
        for stretch in chunks(end - start):
            within = slice(start + stretch.start, start + stretch.stop)
            values = symbols.levels[within].astype(np.float32)
            values *= scale
            yield within, values
        start = end


def _list_ends(layers: list[slice]) -> NDArray[np.int64]:
    return np.array([layer.stop for layer in layers])


def _write_levels(symbols: Scaled, most: int) -> bytes:
    """Return the scales as 32-bit floats, then levels from −`most` to `most` packed."""
    levels = symbols.levels.astype(np.int64) + most
    packed = pack(levels, (2 * most).bit_length())
    return symbols.scales.astype("<f4").tobytes() + packed


def _read_levels(data: bytes, ends: NDArray[np.int64], most: int) -> tuple[Scaled, int]:
    """Return (what `_write_levels` wrote, bytes read); `ends` are those of stretches.

    Raises: `InputError` for data that it did not write.
    """
    scales, head = _read_scales(data, len(ends))
    count, width = int(ends[-1]), (2 * most).bit_length()
    used = head + -(-count * width // 8)
    _check_long_enough(data, used)
    levels = unpack(data[head:used], count, width) - most
    largest = int(np.abs(levels).max())
    if largest > most:
        raise InputError(f"levels from {-most} to {most}", got=largest)
    return Scaled(scales, levels, ends), used


def _read_scales(data: bytes, count: int) -> tuple[Floats, int]:
    _check_long_enough(data, 4 * count)
    return np.frombuffer(data[: 4 * count], "<f4").astype(np.float32), 4 * count


def _check_long_enough(data: bytes, least: int) -> None:
    if len(data) < least:
        raise InputError(f"a payload of at least {least} bytes", got=len(data))
