"""Learning as PyTorch users write it, to compare the engine with: ordinary modules,
`torch.optim`, one client after another. It shares with the engine the data, the first
models and the keyed draws; all arithmetic is its own.
"""

import copy
import itertools

import engine_worlds as tiny
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import (
    clip_grad_norm_,
    parameters_to_vector,
    vector_to_parameters,
)

from simfed.fleet import cohort
from simfed.ground import Arrival, Size, Streams, Who
from simfed.learn import build_model, draw_local, load_federation
from simfed.learn.federation import draw_public
from simfed.learn.models import plain
from simfed.tasks import LocalEpochs

ONE = {"a": {"model": "logistic-regression"}}
TWO = {"a": {"model": "logistic-regression"}, "b": {"model": "lenet5-half"}}
LENETS = {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}}
RATE = 0.05


def scenario(method, *, prototypes=None, arm="dense", **changes):
    """Four clients of the method's smallest model, or two of it and two of a LeNet.

    Three rounds.
    """
    plain = {
        "method": method,
        "dataset": {"name": "stripes", "public": tiny.public_of(method, 24)},
        "prototypes": prototypes or {"a": {"model": tiny.model_of(method)}},
        "training": {"batch_size": 16, "learning_rate": RATE, "local_steps": 3},
        "policy": {"kind": "uniform", "strategy": arm},
        "compression": {"strategies": [arm], "k": 30},
        "evaluation": {"every": 3},
    }
    return tiny.scenario(**{**plain, **changes})


def lenets(method, *, mixed=False, clients=3, public=None, **changes):
    """Three clients with half a LeNet, or a whole one for the last; two rounds of two
    steps.
    """
    groups = [{"count": clients - mixed}, *[{"prototype": "large"}] * mixed]
    names = ("small", "large")[: 1 + mixed]
    plain = {
        "rounds": 2,
        "seed": 3,
        "dataset": {"name": "stripes", "public": public},
        "prototypes": {name: LENETS[name] for name in names},
        "client_order": "grouped",
        "clients": groups,
        "training": {"batch_size": 8, "learning_rate": RATE, "local_steps": 2},
        "evaluation": {"every": 2},
    }
    return scenario(method, **{**plain, **changes})


class Textbook:
    """A scenario's data, first models and draws, and local training by the book."""

    def __init__(self, made, data=None):
        self.made, self.streams = made, Streams(made.seed)
        self.data = load_federation(made, self.streams) if data is None else data
        groups = made.group_of_client()
        self.prototypes = [made.clients[group].prototype for group in groups]
        self.samples = [len(owned) for owned in self.data.owned]

    def module(self, prototype):
        """A prototype's first model, of ordinary layers."""
        name = self.made.prototypes[prototype].model
        seed = self.streams.integer("init", prototype)
        return plain(
            build_model(name, self.data.input_shape, self.data.classes, seed=seed)
        ).to(self.data.device)

    def models(self):
        """Each client's first model."""
        return [self.module(prototype) for prototype in self.prototypes]

    def cohort(self, round):
        size = self.made.participation.clients_per_round
        return cohort(self.streams, round, self.made.client_count, size).tolist()

    def public(self, round):
        size, batch = len(self.data.public), self.made.dataset.public_batch
        places = draw_public(self.streams, round, size, batch)
        whole = self.data.public
        return whole if places is None else whole[torch.from_numpy(places)]

    def batches(self, client, round):
        """The samples and labels of each local step."""
        rng = self.streams("batch", client, round)
        owned, training = self.data.owned[client], self.made.training
        epochs = LocalEpochs(self.made, self.streams).draw(client, round)
        for batch in draw_local(rng, owned, training, epochs):
            yield self.data.at(batch)

    def own(self, client):
        """All samples and labels of a client."""
        return self.data.at(self.data.owned[client])

    def generator(self, purpose, *keys):
        """PyTorch's generator that the kit would give."""
        seed = self.streams.integer(f"method {purpose}", *keys)
        return torch.Generator().manual_seed(seed)

    def locals(self, weights, round, added=None):
        """Who takes part, and the weights of prototype a that each has trained."""
        begun, clients = with_weights(self.module("a"), weights), self.cohort(round)
        return clients, [flat(self.trained(begun, c, round, added)) for c in clients]

    def trained(
        self, module, client, round, added=None, *, batches=None, moving=lambda n: True
    ):
        """A copy after local training, the last gradients still in it.

        `added`: weights → what each step's gradient gets beside it; `batches`: in place
        of the scenario's; `moving`: name of a parameter → whether it trains.
        """
        local, training = copy.deepcopy(module).train(), self.made.training
        for name, parameter in local.named_parameters():
            parameter.requires_grad_(moving(name))
        mine = [p for p in local.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(
            mine,
            lr=training.learning_rate * self.made.learning_rate_factor(round),
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        for samples, labels in batches or self.batches(client, round):
            optimiser.zero_grad()
            F.cross_entropy(local(samples), labels).backward()
            if added is not None:
                extra = with_weights(local, added(flat(local)))
                for parameter, more in zip(mine, extra.parameters(), strict=True):
                    parameter.grad += more.detach()
            if training.clip_norm is not None:
                clip_grad_norm_(mine, training.clip_norm)
            optimiser.step()
        return local.requires_grad_(True)


class World(tiny.Host):
    """The engine beside the textbook of its scenario."""

    def __init__(self, made, **options):
        super().__init__(made, **options)
        self.book = Textbook(made, self.data)


def beside(made):
    """The engine after the scenario's rounds, its textbook, the first weights of a."""
    book = Textbook(made)
    return tiny.played(made)[0], book, flat(book.module("a"))


def flat(module):
    return parameters_to_vector(module.parameters()).detach().clone()


def gradients(module):
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def with_weights(module, weights):
    twin = copy.deepcopy(module)
    vector_to_parameters(weights.float(), twin.parameters())
    return twin


def embed(module, x):
    """What goes into a LeNet's last layer, written out."""
    x = module.pool2(module.conv2(module.pool1(module.conv1(x)))).flatten(1)
    return module.fc2(module.fc1(x).relu()).relu()


def linear_layers(sizes, drawn):
    """Linear layers with ReLU between them, drawn as the kit draws its own."""
    layers = []
    for n, m in itertools.pairwise(sizes):
        layer = torch.nn.Linear(n, m)
        values = torch.rand((n + 1) * m, generator=drawn) * (2 * n**-0.5) - n**-0.5
        vector_to_parameters(values, layer.parameters())
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def step(module, loss):
    """One step of plain SGD."""
    parameters = list(module.parameters())
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            if slope is not None:
                parameter -= RATE * slope


def descend(optimiser, loss):
    """A step of an optimiser; the loss before it."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def distilled(module, order, public, targets, batch, *, temperature=1.0, steps, adam=0):
    """A copy that has learned soft targets in evaluation mode, in drawn orders.

    With plain steps, or Adam's at a rate.
    """
    local = copy.deepcopy(module).eval()
    optimise = torch.optim.Adam if adam else torch.optim.SGD
    optimiser, places = optimise(local.parameters(), lr=adam or RATE), ()
    for _ in range(steps):
        if not len(places):
            places = torch.from_numpy(order.permutation(len(public)))
        at, places = places[:batch], places[batch:]
        log = F.log_softmax(local(public[at]).double() / temperature, dim=1)
        loss = F.kl_div(log, targets[at].double(), reduction="batchmean")
        descend(optimiser, loss)
    return local


def divergence(targets, logits):
    """KL(softmax(targets) ‖ softmax(logits)), the mean over samples."""
    p = targets.softmax(1)
    return (p * (p.log() - logits.softmax(1).log())).sum(1).mean()


def answers(module, samples):
    with torch.no_grad():
        return module.eval()(samples)


def assert_evaluated(book, outcome, modules):
    """Each client's model that was evaluated is this module of it, on the test set and
    in the client's own label mix.
    """
    told, labels = outcome.clients, book.data.test_labels
    assert told.keys() == modules.keys()
    for client, module in modules.items():
        logits = answers(module, book.data.test_samples)
        right = (logits.argmax(1) == labels).double()
        losses = F.cross_entropy(logits, labels, reduction="none").double()
        assert told[client].loss == pytest.approx(losses.mean().item(), rel=1e-5)
        mix = torch.bincount(book.own(client)[1], minlength=4) / book.samples[client]
        shares = (mix / torch.bincount(labels))[labels].double()
        own = told[client].own_loss, told[client].own_accuracy
        expected = (shares @ losses).item(), (shares @ right).item()
        assert own == pytest.approx(expected, rel=1e-5)


def assert_close(actual, expected, tolerance=1e-6):
    """Equal up to float32 rounding, in the length of the whole vector."""
    apart = torch.linalg.vector_norm(actual.double() - expected.double())
    assert apart <= tolerance * max(
        torch.linalg.vector_norm(expected.double()).item(), 1e-3
    )


def assert_same(actual, expected, rtol=1e-5, atol=2e-6):
    """Equal up to float32 rounding, entry by entry."""
    torch.testing.assert_close(actual, expected.detach(), rtol=rtol, atol=atol)


def update(value, statistic=0.0):
    """The upload of a model of three weights and one running statistic."""
    return {"update": torch.full((3,), value), "buffers": torch.tensor([statistic])}


def who(client=0, prototype="a", samples=10, size=None):
    return Who(
        client, prototype, size or Size("logistic-regression", 3, 0, 2, 4), samples
    )


def arrival(values, client=0, staleness=0, weight=1.0, samples=10):
    return Arrival(who(client, samples=samples), staleness, values, weight)
