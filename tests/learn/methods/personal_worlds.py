"""A tiny world for methods whose clients keep models of their own, and the host that
plays it.
"""

from __future__ import annotations

import engine_worlds as tiny
import torch

from simfed.compress.choice import Choice
from simfed.ground.registry import register
from simfed.ground.seeding import Streams
from simfed.learn.federation import draw_batches
from simfed.learn.hosted import HostedWorkload
from simfed.learn.models import build_model
from simfed.scenario import Scenario

register("dataset", "method-stripes", tiny.dataset, replace=True)

CLASSES, BATCH, RATE, STEPS = 4, 8, 0.05, 2
MODELS = {"small": "lenet5-half", "large": "lenet5"}


def scenario(method, *, mixed=False, rounds=2, public=None, clients=3, **changes):
    """Three clients of one prototype, or of two by turns, and two local steps."""
    prototypes = MODELS if mixed else {"small": MODELS["small"]}
    groups = [{"count": clients - mixed, "prototype": "small", "device": "any"}]
    if mixed:
        groups.append({"count": 1, "prototype": "large", "device": "any"})
    plain = {
        "name": "tiny",
        "rounds": rounds,
        "seed": 3,
        "method": method,
        "dataset": {
            "name": "method-stripes",
            **({} if public is None else {"public": public}),
        },
        "prototypes": {name: {"model": model} for name, model in prototypes.items()},
        "clients": groups,
        "training": {"batch_size": BATCH, "learning_rate": RATE, "local_steps": STEPS},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "compression": {"strategies": ["dense"]},
    }
    return Scenario.model_validate({**plain, **changes})


class World:
    """A scenario's hosted run, round by round, and the facts for a version by hand."""

    def __init__(self, made, **arguments):
        self.scenario = made
        self.streams = Streams(made.seed)
        self.host = HostedWorkload(made, Streams(made.seed), **arguments)
        self.data, self.kit, self.method = (
            self.host.data,
            self.host.kit,
            self.host.method,
        )
        self.uploads = []

    @property
    def state(self):
        """What the host keeps now, see `state_of`."""
        return tiny.state_of(self.host)

    def play(self, round, clients=None):
        """One round, everybody's upload whole; the outcome."""
        chosen = range(self.scenario.client_count) if clients is None else clients
        tasks = [self.host.task(round, client) for client in chosen]
        self.uploads = [
            self.host.execute(t, Choice("dense", t.plan.longest)) for t in tasks
        ]
        return self.host.merge(round, self.uploads)

    def prototype(self, client):
        return self.host.tasks.who(client).prototype

    def module(self, prototype):
        """A prototype's first model, as an ordinary module."""
        seed = self.streams.integer("init", prototype)
        return build_model(MODELS[prototype], self.data.input_shape, CLASSES, seed=seed)

    def batches(self, client, round):
        """The samples and labels of each local step."""
        rng = self.streams("batch", client, round)
        for positions in draw_batches(rng, self.data.owned[client], BATCH, STEPS):
            at = torch.from_numpy(positions)
            yield self.data.samples(at), self.data.labels[at]

    def own(self, client):
        """All samples and labels of a client."""
        at = torch.from_numpy(self.data.owned[client])
        return self.data.samples(at), self.data.labels[at]

    def generator(self, purpose, *keys):
        """PyTorch's generator that the kit would give."""
        return torch.Generator().manual_seed(
            self.streams.integer(f"method {purpose}", *keys)
        )

    def close(self):
        self.host.close()


def embed(module, x):
    """What goes into a LeNet's last layer, written out."""
    x = module.pool2(module.conv2(module.pool1(module.conv1(x)))).flatten(1)
    return module.fc2(module.fc1(x).relu()).relu()


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def step(module, loss, rate=RATE):
    """One step of plain SGD."""
    parameters = list(module.parameters())
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            if slope is not None:
                parameter -= rate * slope
