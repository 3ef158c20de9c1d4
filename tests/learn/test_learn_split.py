"""SplitFed as a test plan (Thapa et al., SplitFed: When Federated Learning Meets Split
Learning, 2022): activations up and gradients down for each batch, labels travel, halves
priced by FLOPs.
"""

from dataclasses import dataclass
from functools import lru_cache

import pytest
from worlds import play, world

from simfed.ground import SERVER, Field, Plan, Work
from simfed.learn.catalogue import facts
from simfed.learn.methods.averaging import Averaging

MODEL, BATCH, STEPS = "lenet5-half", 32, 4
CUT = 3 * 25 + 3 + 8 * 3 * 25 + 8
"""Parameters of both convolutions: the client's half."""
ACTIVATIONS = 8 * 5 * 5
FIRST_FLOPS = 2 * 28 * 28 * 3 * 25
CLIENT_FLOPS = FIRST_FLOPS + 2 * 10 * 10 * 8 * 3 * 25


@dataclass(frozen=True)
class SplitFed(Averaging):
    """The model is cut behind its convolutions."""

    def plan(self, setting, who, round):
        return _plan(who.parameters)

    def participate(self, setting, client):
        forward, served, backward = _units()
        yield from client.receive()
        for _ in range(setting.steps(client.who)):
            yield from client.work(forward)
            # a label is a byte
            yield from client.send(BATCH * (4.0 * ACTIVATIONS + 1.0))
            yield from client.work(served, at=SERVER)
            yield from client.receive(BATCH * 4.0 * ACTIVATIONS)
            yield from client.work(backward)
        yield from client.send()


@lru_cache
def _plan(parameters):
    down = {"half": Field("weights", CUT)}
    # it never leaves the server
    rest = Field("rest", parameters - CUT, value_bytes=0.0)
    return Plan(down, (), {"half": Field("half", CUT), "rest": rest})


@lru_cache
def _units():
    """Forward and, after the server's half, backward."""
    step = facts(MODEL, "mnist-mini").train_flops
    # forward once, backward twice, and nobody wants the gradient of the images
    ahead, back = CLIENT_FLOPS / step, (2 * CLIENT_FLOPS - FIRST_FLOPS) / step
    shares = {"forward": ahead, "server half": 1 - ahead - back, "backward": back}
    return [
        Work("training", MODEL, BATCH, share, kind=kind)
        for kind, share in shares.items()
    ]


def test_exchanges_and_halves_are_charged(add_part):
    add_part("method", "splitfed", SplitFed)
    changes = {
        "prototypes.a.model": MODEL,
        "clients[0]": {"count": 3, "prototype": "a", "device": "x86-2core-vm"},
        "server.device": "x86-2core-vm",
        "training": {"local_steps": STEPS, "batch_size": BATCH},
        "policy.strategy": "dense",
    }
    whole, cut = (
        play(world("tiny", {**changes, "method": method}), time_only=True)
        for method in ("fedavg", "splitfed")
    )
    row = cut.participations.iloc[0]
    step_s = whole.participations["training_s"].iloc[0] / STEPS
    model = facts(MODEL, "mnist-mini")
    share = (3 * CLIENT_FLOPS - FIRST_FLOPS) / model.train_flops
    assert row["training_s"] == pytest.approx(STEPS * step_s * share, rel=1e-9)
    assert (row["uplink_bytes"], row["downlink_bytes"]) == (
        STEPS * BATCH * (4 * ACTIVATIONS + 1) + 4 * CUT,
        STEPS * BATCH * 4 * ACTIVATIONS + 4 * CUT,
    )
    spans = cut.spans.query("track == 'server · steps' and round == 1")
    assert len(spans) == 3 * STEPS
    lasted_s = spans["finished_at_s"] - spans["started_at_s"]
    assert lasted_s.tolist() == pytest.approx([step_s * (1 - share)] * 12, rel=1e-9)
    # one processor serves all clients
    ordered = spans.sort_values("started_at_s")
    ended_at_s = ordered["finished_at_s"].shift()
    assert not (ordered["started_at_s"] < ended_at_s - 1e-12).any()
