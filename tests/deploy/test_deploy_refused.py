"""A client's malformed or poisonous message: its failure alone, in a sentence.

The run goes on.
"""

import math
import re

import deploy_worlds as worlds
import numpy as np
import pytest
import torch

from simfed.learn import Parcel, pack, unpack
from simfed.learn.apart import TaskAnswer

TINY = {
    "method": "fedavg",
    "rounds": 4,
    "clients": [{"count": 2, "prototype": "small", "device": "x86-2core-vm"}],
    "prototypes": {"small": {"model": "logistic-regression"}},
    "dataset": {"name": "mnist-mini", "partition": {"kind": "iid"}},
    "compression": {"k": 200},
    "evaluation": {"every": 2},
}


def altered(change, kind=None):
    """Meanwhile client 1 answers its second task otherwise: `change(answer)`."""
    return worlds.wrapped(1, lambda end: (kind or Altering)(end, change))


class Altering(worlds.Wrapped):
    """A client's end that sends something else once."""

    def __init__(self, end, change):
        super().__init__(end)
        self._change, self._left = change, 2

    def work(self, parcel):
        answer = self._end.work(parcel)
        self._left -= 1
        return self._change(answer) if self._left == 0 else answer


def facts_with(**changes):
    def change(answer):
        return answer._replace(
            parcel=Parcel({**answer.parcel.facts, **changes}, answer.parcel.body)
        )

    return change


def coded_with(**changes):
    def change(answer):
        coded = answer.parcel.facts["coded"]
        coded = {name: {**said, **changes} for name, said in coded.items()}
        return facts_with(coded=coded)(answer)

    return change


def filled_with(value, number=200):
    """The first numbers of what its codec wrote, which are the update's values."""

    def change(answer):
        facts, parts = unpack(answer.parcel)
        head = np.full(number, value, "<f4").tobytes()
        parts["up/update"] = head + parts["up/update"][len(head) :]
        return answer._replace(parcel=pack(facts, parts))

    return change


def parts_with(**changes):
    def change(answer):
        facts, parts = unpack(answer.parcel)
        parts |= {f"up/{name}": part for name, part in changes.items()}
        return answer._replace(parcel=pack({**facts, "coded": {}}, parts))

    return change


def times_with(**changes):
    def change(answer: TaskAnswer):
        return answer._replace(**changes)

    return change


EVIL = {
    "another client's label": (facts_with(label="0/2"), "label: "),
    "coded is a list": (facts_with(coded=[]), "coded: "),
    "a field that nobody asked for": (facts_with(coded={"x": {}}), "coded "),
    "no state": (facts_with(coded={"update": {"shape": [7850]}}), "coded "),
    "another shape": (coded_with(shape=[1, 3]), "update: shape: "),
    "one axis too many": (coded_with(shape=[1, 7850]), "update: shape: "),
    "a shape of texts": (coded_with(shape=["7850"]), "update: shape: "),
    "losses that are texts": (facts_with(before="x"), "loss: "),
    "a loss that is no number": (facts_with(before=math.nan), "loss: "),
    "a loss below 0": (facts_with(before=-math.inf), "loss: "),
    "not a number": (filled_with(math.nan), "update: "),
    "infinite": (filled_with(math.inf), "update: "),
    "so large that the mean overflows": (filled_with(1e38), "update: "),
    "another task's label": (facts_with(label="1/1"), "label: "),
    "no label": (facts_with(label=None), "label: "),
    "whole numbers": (parts_with(update=np.zeros(7850, np.int64)), "update: "),
    "doubles": (parts_with(update=np.zeros(7850)), "update: "),
    "too few entries": (parts_with(update=np.zeros(3, np.float32)), "update: "),
    "bytes for numbers": (parts_with(update=bytes(31400)), "update: "),
    "times that are none": (times_with(training_s=math.nan), "training_s"),
    "times below 0": (times_with(compression_s=-1.0), "compression_s"),
    "times longer than the run": (times_with(packing_s=1e9), "packing_s"),
    "endless work": (times_with(training_busy_s=1e11), "training_busy_s"),
}


class Evil(Altering):
    """A client's end that sends something else in one task after another."""

    def work(self, parcel):
        answer = self._end.work(parcel)
        self._left -= 1
        return self._change[-self._left](answer) if self._left in self._evil else answer

    @property
    def _evil(self):
        return range(1 - len(self._change), 1)


@pytest.mark.parametrize("half", [0, 1])  # as a run notes at most 20 such failures
def test_a_malformed_upload_is_its_clients_failure(half, tmp_path):
    changes, due = zip(*[*EVIL.values()][half::2], strict=True)
    last = len(changes) + 1
    plan = worlds.scenario(
        **{**TINY, "rounds": last + 1, "evaluation": {"every": last}}
    )
    with altered(changes, kind=Evil):
        run = worlds.deployed(plan, tmp_path / "run", crowd=worlds.Crowd((0, 1)))
    outcomes = run.participations.set_index(["round", "client"])["outcome"]
    evil = [(round, 1) for round in range(2, last + 1)]
    assert set(outcomes[evil]) == {"failed"}
    assert set(outcomes.drop(evil)) == {"aggregated"}
    told = [line for line in run.manifest["warnings"] if "refused" in line]
    for round, (sentence, said) in enumerate(zip(told, due, strict=True), 2):
        beginning = f"client 1: its upload of round {round} is refused: "
        assert sentence.startswith(beginning)
        assert said in sentence


def test_a_client_whose_training_diverges_has_failed_and_goes_on(tmp_path):
    """Its samples are no numbers in one task: the server hears why, and goes on with
    it.
    """
    plan, said = worlds.scenario(**TINY), "training loss is nan|not finite numbers"

    class Diverges(Altering):
        def work(self, parcel):
            self._left -= 1
            samples = self._end._bench.data.samples
            with pytest.MonkeyPatch.context() as patched:
                if self._left == 0:
                    nothing = lambda at, *_: (  # noqa: E731
                        torch.full_like(samples(at), math.nan)
                    )
                    patched.setattr(self._end._bench.data, "samples", nothing)
                return self._end.work(parcel)

    with altered(None, kind=Diverges):
        run = worlds.deployed(plan, tmp_path / "run", crowd=worlds.Crowd((0, 1)))
    outcomes = run.participations.set_index(["round", "client"])["outcome"]
    assert outcomes[2, 1] == "failed"
    assert list(outcomes.drop((2, 1))) == ["aggregated"] * 7
    (sentence,) = (line for line in run.manifest["warnings"] if "failed" in line)
    assert re.match(f"client 1 failed in round 2: .*({said})", sentence)


@pytest.mark.parametrize("value", [1e3, 1e17])
def test_a_run_goes_on_after_poison_that_is_merged(value, tmp_path):
    plan = worlds.scenario(**TINY)
    with altered(filled_with(value)):
        run = worlds.deployed(plan, tmp_path / "run", crowd=worlds.Crowd((0, 1)))
    outcomes = run.participations.set_index(["round", "client"])["outcome"]
    assert list(outcomes.loc[:2]) == ["aggregated"] * 4
    assert set(outcomes.loc[3:]) <= {"aggregated", "failed"}
