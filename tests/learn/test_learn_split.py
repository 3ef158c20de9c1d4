"""SplitFed as a test plan (Thapa et al., SplitFed: When Federated Learning Meets Split
Learning, 2022): activations up and gradients down for each batch, labels travel, halves
priced by FLOPs.
"""

from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F

import simfed
from simfed.ground.method import SERVER, Field, Plan, Work
from simfed.ground.registry import register, registry
from simfed.learn.catalogue import facts
from simfed.learn.methods.averaging import Averaging
from simfed.verify.run import verify

MODEL, BATCH = "lenet5-half", 32
CUT = 3 * 25 + 3 + 8 * 3 * 25 + 8
"""Parameters of both convolutions: the client's half."""
ACTIVATIONS = 8 * 5 * 5
FIRST_FLOPS = 2 * 28 * 28 * 3 * 25
CLIENT_FLOPS = FIRST_FLOPS + 2 * 10 * 10 * 8 * 3 * 25


@dataclass(frozen=True)
class SplitFed(Averaging):
    """The model is cut behind its convolutions.

    Both halves are averaged over clients.
    """

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

    def send(self, server, who, round):
        return {"half": server[who.prototype]["weights"][:CUT]}

    def train(self, kit, who, round, down, own):
        # the server's half of this client is at the server; the test's clients look it
        # up there
        whole = torch.cat([down["half"], _SERVER_HALF[who.prototype]])
        before = whole.clone()
        for positions in kit.batches(who, round):
            samples, labels = kit.samples_at(positions)
            mine = _split(whole[:CUT], ((3, 1, 5, 5), (3,), (8, 3, 5, 5), (8,)))
            theirs = _split(
                whole[CUT:], ((60, 200), (60,), (42, 60), (42,), (10, 42), (10,))
            )
            sent = _first_half(samples, mine)
            arrived = sent.detach().requires_grad_()
            F.cross_entropy(_second_half(arrived, theirs), labels).backward()
            sent.backward(arrived.grad)
            gradient = torch.cat([part.grad.flatten() for part in (*mine, *theirs)])
            whole = whole - kit.rate(round) * gradient
        change = before - whole
        return {"half": change[:CUT], "rest": change[CUT:]}, own

    def merge(self, kit, server, arrivals, round):
        total = sum(arrival.who.samples for arrival in arrivals)
        after = {name: dict(model) for name, model in server.items()}
        for arrival in arrivals:
            change = torch.cat([arrival.values["half"], arrival.values["rest"]])
            share = arrival.who.samples / total
            name = arrival.who.prototype
            after[name]["weights"] = after[name]["weights"] - share * change
        _SERVER_HALF.update(
            {name: model["weights"][CUT:] for name, model in after.items()}
        )
        return after, {}

    def begin(self, kit):
        server = super().begin(kit)
        _SERVER_HALF.update(
            {name: model["weights"][CUT:] for name, model in server.items()}
        )
        return server


_SERVER_HALF = {}


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


def _split(vector, shapes):
    parts, at = [], 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        part = vector[at : at + size].reshape(shape).clone()
        parts.append(part.detach().requires_grad_())
        at += size
    return parts


def _first_half(samples, parameters):
    first, second = parameters[:2], parameters[2:]
    x = F.max_pool2d(F.conv2d(samples, *first, padding=2).relu(), 2)
    return F.max_pool2d(F.conv2d(x, *second).relu(), 2).flatten(1)


def _second_half(x, parameters):
    for layer in (0, 2):
        x = F.linear(x, *parameters[layer : layer + 2]).relu()
    return F.linear(x, *parameters[4:])


def scenario(method, clients=1, **changes):
    return {
        "name": "split",
        "rounds": 3,
        "method": method,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"small": {"model": MODEL}},
        "training": {"local_steps": 4, "batch_size": BATCH, "learning_rate": 0.1},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "clients": [
            {
                "count": clients,
                "prototype": "small",
                "device": "x86-2core-vm",
                "link": {"up": "8 Mbps", "down": "16 Mbps"},
            }
        ],
        **changes,
    }


@pytest.fixture(autouse=True)
def _registered():
    register("method", "splitfed", SplitFed, replace=True)
    yield
    registry("method").remove("splitfed")


def test_for_one_client_it_learns_what_the_uncut_model_does():
    whole, cut = (
        simfed.run(scenario(method), progress=False)
        for method in ("fedavg", "splitfed")
    )
    for column in ("test_loss", "test_accuracy"):
        assert cut.prototypes[column].tolist() == pytest.approx(
            whole.prototypes[column].tolist(), abs=1e-6
        )


def test_its_exchanges_and_halves_are_charged(tmp_path):
    server = {"server": {"device": "x86-2core-vm"}}
    whole = simfed.run(scenario("fedavg", 3, **server), time_only=True, progress=False)
    cut = simfed.run(
        scenario("splitfed", 3, **server),
        tmp_path / "run",
        time_only=True,
        progress=False,
    )
    assert "\n".join(verify(cut.path)) == ""
    row, step_s = (
        cut.participations.iloc[0],
        whole.participations["training_s"].iloc[0] / 4,
    )
    model = facts(MODEL, "mnist-mini")
    share = (3 * CLIENT_FLOPS - FIRST_FLOPS) / model.train_flops
    assert row["training_s"] == pytest.approx(4 * step_s * share, rel=1e-9)
    sizes = (
        4 * BATCH * (4 * ACTIVATIONS + 1) + 4 * CUT,
        4 * BATCH * 4 * ACTIVATIONS + 4 * CUT,
    )
    assert (row["uplink_bytes"], row["downlink_bytes"]) == sizes
    spans = cut.spans[
        (cut.spans["track"] == "server · steps") & (cut.spans["round"] == 1)
    ]
    assert len(spans) == 3 * 4
    lasted_s = spans["finished_at_s"] - spans["started_at_s"]
    assert lasted_s.tolist() == pytest.approx([step_s * (1 - share)] * 12, rel=1e-9)
    # one processor serves all clients
    ordered = spans.sort_values("started_at_s")
    gaps_s = (
        ordered["started_at_s"].to_numpy()[1:]
        - ordered["finished_at_s"].to_numpy()[:-1]
    )
    assert (gaps_s > -1e-12).all()
