"""FedProto against a version by hand; what it sends, what it is charged."""

import pytest
import torch
import torch.nn.functional as F
from textbook import World, assert_same, embed, flat, lenets, step

from simfed import InputError
from simfed.ground import Size
from simfed.ground.method import Setting
from simfed.learn.methods.fedproto import FedProto

ONE = {"kind": "fedproto", "pull": 0.7}


def by_hand(world, rounds, *, matrices, trained):
    """Models, adapters and global means after some rounds, with loops over samples and
    classes.
    """
    book, adapters, class_means = world.book, dict(matrices), {}
    models = dict(enumerate(book.models()))
    for round in range(1, rounds + 1):
        sums, counts = {}, {}
        for c, model in models.items():
            for x, y in book.batches(c, round):
                e = embed(model, x)
                loss = F.cross_entropy(model.fc3(e), y)
                if c in adapters:
                    adapters[c] = adapters[c].detach().requires_grad_(trained)
                    e = e @ adapters[c].T
                terms = [
                    (one - class_means[j]).square().sum() / 42
                    for one, j in zip(e, y.tolist(), strict=True)
                    if j in class_means
                ]
                distance = 0.7 * sum(terms) / len(y)
                if trained and terms:
                    [slope] = torch.autograd.grad(
                        distance, adapters[c], retain_graph=True
                    )
                    adapters[c] = adapters[c] - 0.05 * slope
                step(model, loss + distance)
            x, y = book.own(c)
            e = embed(model, x).detach()
            e = e @ adapters[c].detach().T if c in adapters else e
            for j in set(y.tolist()):
                sums[j] = sums.get(j, 0) + e[y == j].sum(0)
                counts[j] = counts.get(j, 0) + (y == j).sum()
        class_means |= {j: sums[j] / counts[j] for j in sums}
    return models, adapters, class_means


def draw_projection(world):
    drawn = world.book.generator("projection", "large")
    return torch.randn(42, 84, generator=drawn) / 42**0.5


@pytest.mark.parametrize("projection", [None, "fixed", "trained"])
def test_rounds_are_those_by_hand_and_widths_that_differ_are_projected(projection):
    world = World(
        lenets({**ONE, "projection": projection or "fixed"}, mixed=bool(projection))
    )
    for round in (1, 2):
        world.play(round)
    drawn = draw_projection(world)
    matrices = {2: drawn} if projection else {}
    trained = projection == "trained"
    if trained:
        matrices |= {0: torch.eye(42), 1: torch.eye(42)}
    models, adapters, class_means = by_hand(
        world, 2, matrices=matrices, trained=trained
    )
    for c, model in models.items():
        assert_same(world.kept.own[c]["weights"], flat(model))
    means = torch.stack([class_means[j] for j in sorted(class_means)])
    assert_same(world.kept.server["means"], means)
    if trained:
        assert not torch.equal(adapters[2], drawn)
        for c, adapter in adapters.items():
            assert_same(world.kept.own[c]["adapter"], adapter.flatten())


@pytest.mark.parametrize("projection", ["fixed", "trained"])
@pytest.mark.parametrize("kind", ["fedproto", "fedtgp"])
def test_the_nearest_mean_is_the_one_of_least_distance(kind, projection):
    """As it is said: distances to every class mean that was sent, written out."""
    option = {"kind": kind, "projection": projection, "predict": "nearest-mean"}
    world = World(lenets(option, mixed=True))
    world.play(1)
    sent, outcome = world.kept.server, world.play(2)
    x, right = world.data.test_samples, []
    for c, prototype in enumerate(world.book.prototypes):
        own = world.kept.own[c]
        e = world.kit.embeddings(prototype, own, x)
        if "adapter" in own:
            e = e @ own["adapter"].view(42, -1).T
        elif prototype == "large":
            e = e @ draw_projection(world).T
        far = torch.cdist(e, sent["means"])
        far[:, sent["known"] == 0] = torch.inf
        evaluated = world.method.model(world.kept.server, own, world.tasks.who(c))
        answers = world.kit.logits(prototype, evaluated, x).argmax(1)
        assert torch.equal(answers, far.argmin(1))
        right.append((answers == world.data.test_labels).double().mean().item())
    accuracy = outcome.evaluation["small"].accuracy
    assert accuracy == pytest.approx((right[0] + right[1]) / 2)


def test_a_class_without_arrivals_keeps_its_mean_and_the_shared_loss_is_the_distance():
    shards = {"kind": "shards", "shards_per_client": 1}
    labels = {"name": "stripes", "partition": shards}
    world = World(lenets(ONE, clients=4, dataset=labels))
    world.play(1)
    before = world.kept.server["means"]
    outcome = world.play(2, clients=[0])
    after, sent = world.kept.server["means"], world.uploads[0].values
    known = sent["counts"] > 0
    assert 0 < known.sum() < 4
    assert torch.equal(after[~known], before[~known])
    # alone, a client's means are the global ones
    assert_same(after[known], sent["means"][known])
    assert outcome.shared_loss["small"] < 1e-12


def test_models_without_an_embedding_are_refused():
    size = Size("conv-only", 10, 0, 0, 1)
    setting = Setting(1, 1, 1, 4, 0, 8, 1, None, {"a": size})
    with pytest.raises(InputError, match="conv-only of a"):
        FedProto().check(setting)
