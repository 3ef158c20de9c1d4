"""The check of codecs finds what breaks the contract."""

import numpy as np
import pytest

from simfed.compress import (
    FP16,
    QSGD,
    AdaComp,
    DetachedEF,
    Memory,
    RandomK,
    Selection,
    TopK,
)
from simfed.testing import check_codec


class Forgetful(TopK):
    """Walks on from where it was last, whoever asks."""

    at = 0

    def select(self, update, k, **kept):
        self.at += 1
        places = np.sort((self.at + np.arange(min(k, len(update)))) % len(update))
        return Selection(places, None)


class Spoils(TopK):
    def select(self, update, k, **kept):
        return Selection(self.spoil(super().select(update, k).indices), None)


class OneTooFew(Spoils):
    def spoil(self, indices):
        return indices[:-1]


class Unsorted(Spoils):
    def spoil(self, indices):
        return indices[::-1].copy()


class Repeats(Spoils):
    def spoil(self, indices):
        return 0 * indices


class NarrowIndices(Spoils):
    def spoil(self, indices):
        return indices.astype(np.int32)


class GlobalRandomness(Spoils):
    def spoil(self, indices):
        np.random.random()  # noqa: NPY002
        return indices


class ChangesTheUpdate(TopK):
    def select(self, update, k, **kept):
        update *= 2
        return super().select(update, k)


class StateIsNoJson(TopK):
    def select(self, update, k, **kept):
        return super().select(update, k)._replace(state=np.zeros(2))


class OwnMirror(RandomK):
    def select(self, *given, **kept):
        made = super().select(*given, **kept)
        return made._replace(seed=made.seed ^ 1)


class SaysLessThanItSends(QSGD):
    def bits(self, *given, **kept):
        return super().bits(*given, **kept) - 8


class ReadsSomethingElse(QSGD):
    def read(self, *given):
        symbols, used = super().read(*given)
        return symbols._replace(levels=-symbols.levels), used


class LetsNaNThrough(FP16):
    def quantise(self, values, rng, layout):
        return values.astype(np.float16).view(np.uint16)


class RemembersByItself(QSGD):
    seen = 0

    def quantise(self, values, *given):
        RemembersByItself.seen += 1
        return super().quantise(values + RemembersByItself.seen, *given)


class ChangesItsState(AdaComp):
    def encode(self, *given, **kept):
        return super().encode(*given, **kept, consume=True)


class HidesAnOption(DetachedEF):
    def __init__(self, inner="top-k", weight=0.5):
        super().__init__("top-k", 0.5)
        object.__setattr__(
            self, "inner", "top-k" if inner == "top-k+fp16" else "top-k+fp16"
        )


class StateOfTensors(DetachedEF):
    def encode(self, *given, **kept):
        payload, memory = super().encode(*given, **kept)
        return payload, Memory({"facts": memory.facts, "error": {1.5}}, memory.arrays)


@pytest.mark.parametrize(
    ("part", "clause"),
    [
        (OneTooFew, "got 0, expected 1 indices chosen by strategy broken"),
        (Unsorted, "sorted, distinct"),
        (Repeats, "sorted, distinct"),
        (NarrowIndices, "int64"),
        (ChangesTheUpdate, "no change of the update"),
        (Forgetful, "the same choice|no memory of a client"),
        (GlobalRandomness, "global random"),
        (StateIsNoJson, "JSON"),
        (OwnMirror, "mirror"),
        (SaysLessThanItSends, "the charged size"),
        (ReadsSomethingElse, "read the payload back"),
        (LetsNaNThrough, "to refuse nan"),
        (RemembersByItself, "the same payload"),
        (ChangesItsState, "no change of the state"),
        (HidesAnOption, "the same codec from"),
        (StateOfTensors, "JSON"),
    ],
)
def test_a_broken_codec_is_named(part, clause, add_part, monkeypatch):
    monkeypatch.setattr(part, "name", "broken")
    add_part("codec", "broken", part)
    with pytest.raises(AssertionError, match=clause):
        check_codec(part)


def test_an_unregistered_codec_is_told_how_to_register():
    with pytest.raises(AssertionError, match=r"simfed.register\('codec', 'top-k'"):
        check_codec(OneTooFew)
