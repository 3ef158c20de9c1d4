"""FedGen against a version by hand: whole models and heads alone."""

import pytest
import torch
import torch.nn.functional as F
from textbook import World, assert_same, flat, lenets, linear_layers, step, with_weights

from simfed.experiment import Checks, Parts

KIND = {
    "kind": "fedgen",
    "noise": 3,
    "hidden": 5,
    "server_steps": 3,
    "server_batch": 6,
    "server_rate": 0.01,
    "weight": 0.8,
    "weight_decay": 0.5,
    "diversity": 0.6,
}
HEAD = 43 * 4


def make(net, shares, size, drawn):
    labels = torch.multinomial(shares, size, replacement=True, generator=drawn)
    noise = torch.randn(size, 3, generator=drawn)
    return labels, noise, net(torch.cat([noise, torch.eye(4)[labels]], 1))


def by_hand(world, rounds, head_only):
    clients = range(world.scenario.client_count)
    drawn, first = world.book.generator("generator"), torch.nn.Linear(7, 5, bias=False)
    bound = 7**-0.5
    values = torch.rand(35, generator=drawn) * 2 * bound - bound
    first.weight.data = values.view(5, 7)
    second, norm = linear_layers((5, 42), drawn)[0], torch.nn.BatchNorm1d(5)
    net = torch.nn.Sequential(first, norm, torch.nn.ReLU(), second)
    shares = None
    server = flat(world.book.module("small"))
    local = {c: server.clone() for c in clients}
    losses = []
    for round in range(1, rounds + 1):
        trained, counts = {}, {}
        for c in clients:
            start = server.clone()
            if head_only:
                start = torch.cat([local[c][:-HEAD], server[-HEAD:]])
            module = with_weights(world.book.module("small"), start)
            drawn = world.book.generator("generated", c, round)
            for x, y in world.book.batches(c, round):
                loss = F.cross_entropy(module(x), y)
                if shares is not None:
                    labels, _, made = make(net.eval(), shares, 8, drawn)
                    extra = F.cross_entropy(module.fc3(made.detach()), labels)
                    loss = loss + 0.8 * 0.5 ** (round - 1) * extra
                step(module, loss)
            trained[c] = local[c] = flat(module)
            counts[c] = torch.bincount(world.book.own(c)[1], minlength=4).float()
        sizes = {c: float(counts[c].sum()) for c in clients}
        server = sum(trained[c] * sizes[c] for c in clients) / sum(sizes.values())
        total = sum(counts.values())
        shares = total / total.sum()
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        drawn = world.book.generator("generator steps", round)
        losses.append(0.0)
        for _ in range(3):
            labels, noise, made = make(net.train(), shares, 6, drawn)
            ensemble = 0.0
            for c in clients:
                head = with_weights(world.book.module("small"), trained[c]).fc3
                alpha = (counts[c] / total)[labels, None]
                ensemble = ensemble + alpha * head.requires_grad_(False)(made)
            loss = F.cross_entropy(ensemble, labels)
            both = list(zip(noise, made, strict=True))
            pairs = [
                (a - b).square().mean() * (g - h).abs().mean()
                for a, g in both
                for b, h in both
            ]
            alike = torch.exp(-sum(pairs) / len(pairs))
            optimiser.zero_grad()
            (loss + 0.6 * alike).backward()
            optimiser.step()
            losses[-1] += loss.item() / 3
    return server, local, net, losses


@pytest.mark.parametrize("share", ["model", "head"])
def test_rounds_are_those_by_hand(share):
    label = {
        "dataset": {
            "name": "stripes",
            "partition": {"kind": "dirichlet", "alpha": 0.5},
        }
    }
    world = World(lenets({**KIND, "share": share}, rounds=3, **label))
    outcomes = [world.play(round) for round in (1, 2, 3)]
    server, local, net, losses = by_hand(world, 3, share == "head")
    assert world.method.server_work(world.kit.setting, [], 1) == []
    state = world.kept.server
    norm = net[1]
    parts = [flat(net[0]), flat(net[3]), norm.weight, norm.bias]
    parts += [norm.running_mean, norm.running_var]
    assert_same(state["generator"], torch.cat(parts))
    if share == "model":
        assert_same(state["models"]["small"]["weights"], server)
        assert not any(world.kept.own.values())
    else:
        assert_same(state["head"], server[-HEAD:])
        for c, weights in local.items():
            assert_same(world.kept.own[c]["weights"], weights)
    for outcome, loss in zip(outcomes, losses, strict=True):
        assert outcome.shared_loss["small"] == pytest.approx(loss, rel=1e-5)


def test_embeddings_of_different_widths_are_refused():
    parts = Parts(lenets(KIND, mixed=True))
    [error] = (
        said
        for said in map(str, Checks(parts).errors())
        if said.startswith("method: got ")
    )
    assert "expected prototypes with embeddings of one width" in error
