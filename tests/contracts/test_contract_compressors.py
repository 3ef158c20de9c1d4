"""Every registered codec keeps the contract; the check notices those that do not."""

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
from simfed.ground.registry import registry
from simfed.testing import check_codec


@pytest.mark.parametrize("name", registry("codec").names())
def test_registered_codec_keeps_the_contract(name):
    check_codec(registry("codec").get(name))


class _Broken(TopK):
    name = "broken"


class OneTooFew(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        return Selection(super().select(update, k).indices[:-1], state)


class Unsorted(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        return Selection(super().select(update, k).indices[::-1].copy(), state)


class Repeats(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        return Selection(np.zeros(min(k, len(update)), np.int64), state)


class NarrowIndices(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        return Selection(super().select(update, k).indices.astype(np.int32), state)


class ChangesTheUpdate(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        update *= 2
        return Selection(super().select(update, k).indices, state)


class Forgetful(_Broken):
    """Walks on from where it was last, whoever asks."""

    def __init__(self):
        self.at = 0

    def select(self, update, k, *, state=None, rng=None):
        self.at += 1
        return Selection(
            np.sort((self.at + np.arange(min(k, len(update)))) % len(update)), state
        )


class GlobalRandomness(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        np.random.random()  # noqa: NPY002
        return super().select(update, k)


class StateIsNoJson(_Broken):
    def select(self, update, k, *, state=None, rng=None):
        return Selection(super().select(update, k).indices, np.zeros(2))


class OwnMirror(RandomK):
    name = "broken"

    def select(self, update, k, *, state=None, rng=None):
        made = super().select(update, k, state=state, rng=rng)
        return made._replace(seed=made.seed ^ 1)


@pytest.mark.parametrize(
    ("cls", "complaint"),
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
    ],
)
def test_a_broken_codec_is_noticed(cls, complaint, add_part):
    add_part("codec", "broken", cls)
    with pytest.raises(AssertionError, match=complaint):
        check_codec(cls)


class SaysLessThanItSends(QSGD):
    name = "broken"

    def bits(self, count, layout, *, ideal, symbols=None):
        return super().bits(count, layout, ideal=ideal) - 8


class ReadsSomethingElse(QSGD):
    name = "broken"

    def read(self, data, count, layout):
        symbols, used = super().read(data, count, layout)
        return symbols._replace(levels=-symbols.levels), used


class LetsNaNThrough(FP16):
    name = "broken"

    def quantise(self, values, rng, layout):
        return values.astype(np.float16).view(np.uint16)


class RemembersByItself(QSGD):
    name = "broken"
    seen = 0

    def quantise(self, values, rng, layout):
        RemembersByItself.seen += 1
        return super().quantise(values + RemembersByItself.seen, rng, layout)


class ChangesItsState(AdaComp):
    name = "broken"

    def encode(self, update, state=None, rng=None, k=1, *, layout=None, consume=False):
        return super().encode(update, state, rng, k, layout=layout, consume=True)


class HidesAnOption(DetachedEF):
    name = "broken"

    def __init__(self, inner="top-k", weight=0.5):
        super().__init__("top-k", 0.5)
        object.__setattr__(
            self, "inner", "top-k" if inner == "top-k+fp16" else "top-k+fp16"
        )


class StateOfTensors(DetachedEF):
    name = "broken"

    def encode(self, update, state=None, rng=None, k=1, *, layout=None, consume=False):
        payload, memory = super().encode(update, state, rng, k, layout=layout)
        return payload, Memory({"facts": memory.facts, "error": {1.5}}, memory.arrays)


@pytest.mark.parametrize(
    ("cls", "complaint"),
    [
        (SaysLessThanItSends, "the charged size"),
        (ReadsSomethingElse, "read the payload back"),
        (LetsNaNThrough, "to refuse nan"),
        (RemembersByItself, "the same payload"),
        (ChangesItsState, "no change of the state"),
        (HidesAnOption, "the same codec from"),
        (StateOfTensors, "JSON"),
    ],
)
def test_a_codec_with_a_wrong_detail_is_noticed(cls, complaint, add_part):
    add_part("codec", "broken", cls)
    with pytest.raises(AssertionError, match=complaint):
        check_codec(cls)


@pytest.mark.parametrize(
    ("cls", "options"),
    [(QSGD, {"levels": 300, "bucket": 64}), (DetachedEF, {"inner": "top-k+qsgd(4)"})],
)
def test_a_codec_can_be_checked_with_options(cls, options):
    check_codec(cls, **options)


def test_an_unregistered_codec_is_told_how_to_register():
    with pytest.raises(AssertionError, match=r"simfed.register\('codec', 'broken'"):
        check_codec(OneTooFew)
