"""A client's malformed or poisonous message: its failure alone, in a sentence.

The run goes on.
"""

import math
import re

import deploy_worlds as worlds
import numpy as np
import pytest
import torch
import yaml

from simfed.learn import Parcel, pack, unpack

TINY = """
method: fedavg
rounds: 4
clients: [{count: 2, prototype: small, device: x86-2core-vm}]
prototypes: {small: {model: logistic-regression}}
dataset: {name: mnist-mini, partition: {kind: iid}}
compression: {k: 200}
evaluation: {every: 2}
"""


def deploy_altered(out, kind, *args, **more):
    """Deploy two clients, of which client 1 has another end."""
    plan = worlds.scenario(**yaml.safe_load(TINY) | more)
    with worlds.wrapped(1, lambda end: kind(end, *args)):
        run = worlds.deployed(plan, out, crowd=worlds.Crowd((0, 1)))
    outcomes = run.participations.set_index(["round", "client"])["outcome"]
    told = [line for line in run.manifest["warnings"] if "client 1" in line]
    return outcomes, told


class Altering(worlds.Wrapped):
    """A client's end that sends something else in one task after another."""

    def __init__(self, end, changes):
        super().__init__(end)
        self._changes = [lambda answer: answer, *changes]

    def work(self, parcel):
        answer = self._end.work(parcel)
        return self._changes.pop(0)(answer) if self._changes else answer


def facts_with(**changes):
    def change(answer):
        facts, body = answer.parcel
        return answer._replace(parcel=Parcel({**facts, **changes}, body))

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
    return lambda answer: answer._replace(**changes)


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


@pytest.mark.parametrize("half", [0, 1])  # as a run notes at most 20 such failures
def test_malformed_upload_is_its_clients_failure(half, tmp_path):
    changes, due = zip(*[*EVIL.values()][half::2], strict=True)
    last = len(changes) + 1
    more = {"rounds": last + 1, "evaluation": {"every": last}}
    outcomes, told = deploy_altered(tmp_path / "run", Altering, changes, **more)
    evil = [(round, 1) for round in range(2, last + 1)]
    assert set(outcomes[evil]) == {"failed"}
    assert set(outcomes.drop(evil)) == {"aggregated"}
    for round, (sentence, said) in enumerate(zip(told, due, strict=True), 2):
        beginning = f"client 1: its upload of round {round} is refused: "
        assert sentence.startswith(beginning)
        assert said in sentence


class Diverging(worlds.Wrapped):
    """A client's end whose samples are no numbers in its second task."""

    begun = 0

    def work(self, parcel):
        self.begun += 1
        data = self._end._bench.data
        samples = data.samples

        def none(at, *_):
            return torch.full_like(samples(at), math.nan)

        with pytest.MonkeyPatch.context() as patched:
            if self.begun == 2:
                patched.setattr(data, "samples", none)
            return self._end.work(parcel)


def test_client_whose_training_diverges_has_failed_and_goes_on(tmp_path):
    """The server hears why, and goes on with it."""
    outcomes, [sentence] = deploy_altered(tmp_path / "run", Diverging)
    assert outcomes[2, 1] == "failed"
    assert list(outcomes.drop((2, 1))) == ["aggregated"] * 7
    why = "training loss is nan|not finite numbers"
    assert re.match(f"client 1 failed in round 2: .*({why})", sentence)


@pytest.mark.parametrize("value", [1e3, 1e17])
def test_run_goes_on_after_poison_that_is_merged(value, tmp_path):
    outcomes, _ = deploy_altered(tmp_path / "run", Altering, [filled_with(value)])
    assert list(outcomes.loc[:2]) == ["aggregated"] * 4
    assert set(outcomes.loc[3:]) <= {"aggregated", "failed"}
