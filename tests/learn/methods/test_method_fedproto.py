"""FedProto against a version by hand; what it sends, what it is charged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from textbook import World, assert_same, embed, flat, lenets, step

from simfed import InputError
from simfed.ground import Size
from simfed.ground.method import Setting
from simfed.learn.methods.fedproto import FedProto

ONE = {"kind": "fedproto", "pull": 0.7}


def by_hand(world, rounds, *, width, matrices=None, trained=False):
    """Models, adapters and global means after some rounds, with loops over samples and
    classes.
    """
    clients = range(world.scenario.client_count)
    models = {c: world.book.module(world.book.prototypes[c]) for c in clients}
    adapters = {c: m.clone() for c, m in (matrices or {}).items()}
    class_means: dict[int, torch.Tensor] = {}
    for round in range(1, rounds + 1):
        sums: dict[int, torch.Tensor] = {}
        counts: dict[int, int] = {}
        for c in clients:
            for x, y in world.book.batches(c, round):
                e = embed(models[c], x)
                loss = F.cross_entropy(models[c].fc3(e), y)
                matrix = adapters[c].requires_grad_(trained) if c in adapters else None
                projected = e if matrix is None else e @ matrix.T
                terms = [
                    (one - class_means[j]).square().sum() / width
                    for one, j in zip(projected, y.tolist(), strict=True)
                    if j in class_means
                ]
                distance = 0.7 * sum(terms) / len(y) if terms else None
                if trained and matrix is not None and distance is not None:
                    [slope] = torch.autograd.grad(distance, matrix, retain_graph=True)
                    adapters[c] = matrix.detach() - 0.05 * slope
                step(models[c], loss if distance is None else loss + distance)
            x, y = world.book.own(c)
            with torch.no_grad():
                e = embed(models[c], x)
                e = e @ adapters[c].T if c in adapters else e
            for j in set(y.tolist()):
                sums[j] = sums.get(j, 0) + e[y == j].sum(0)
                counts[j] = counts.get(j, 0) + int((y == j).sum())
        class_means = {**class_means, **{j: sums[j] / counts[j] for j in sums}}
    return models, adapters, class_means


def compare(world, models, class_means):
    for c, model in models.items():
        assert_same(world.kept.own[c]["weights"], flat(model))
    means = torch.stack([class_means[j] for j in sorted(class_means)])
    assert_same(world.kept.server["means"], means)


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
        world, 2, width=42, matrices=matrices, trained=trained
    )
    compare(world, models, class_means)
    if trained:
        assert not torch.equal(adapters[2], drawn)
        for c, adapter in adapters.items():
            learned = world.kept.own[c]["adapter"]
            assert_same(learned, adapter.flatten())


@pytest.mark.parametrize("projection", ["fixed", "trained"])
@pytest.mark.parametrize("kind", ["fedproto", "fedtgp"])
def test_the_nearest_mean_is_the_one_of_least_distance(kind, projection):
    """As it is said: distances to every class mean that was sent, written out."""
    option = {"kind": kind, "projection": projection, "predict": "nearest-mean"}
    world = World(lenets(option, mixed=True))
    world.play(1)
    sent = world.kept.server
    outcome = world.play(2)
    x, labels = world.data.test_samples, world.data.test_labels
    right = []
    for c in range(3):
        own = world.kept.own[c]
        who = world.tasks.who(c)
        e = world.kit.embeddings(world.book.prototypes[c], own, x)
        if "adapter" in own:
            e = e @ own["adapter"].view(42, -1).T
        elif e.shape[1] == 84:
            e = e @ draw_projection(world).T
        far = torch.stack([(e - mean).square().sum(1) for mean in sent["means"]], 1)
        far[:, sent["known"] == 0] = torch.inf
        evaluated = world.method.model(world.kept.server, own, who)
        answers = world.kit.logits(world.book.prototypes[c], evaluated, x).argmax(1)
        assert torch.equal(answers, far.argmin(1))
        right.append(float((answers == labels).double().mean()))
    assert outcome.evaluation["small"].accuracy == pytest.approx(
        (right[0] + right[1]) / 2
    )


def test_a_class_without_arrivals_keeps_its_mean_and_the_shared_loss_is_the_distance():
    label = {
        "dataset": {
            "name": "stripes",
            "partition": {"kind": "shards", "shards_per_client": 1},
        }
    }
    world = World(lenets(ONE, clients=4, **label))
    world.play(1)
    before = world.kept.server["means"]
    outcome = world.play(2, clients=[0])
    after, counts = world.kept.server["means"], world.uploads[0].values["counts"]
    assert 0 < int((counts == 0).sum()) < 4
    assert torch.equal(after[counts == 0], before[counts == 0])
    # alone, a client's means are the global ones
    torch.testing.assert_close(
        after[counts > 0], world.uploads[0].values["means"][counts > 0]
    )
    assert outcome.shared_loss["small"] < 1e-12


def test_compressed_means_are_chosen_by_the_policy():
    made = lenets(
        {"kind": "fedproto", "compress_means": True},
        compression={"k": 10, "strategies": ["top-k"], "index_code": "fixed"},
        policy={"kind": "uniform", "strategy": "top-k"},
    )
    world = World(made)
    upload = world.begin(1, 0, "top-k", 10)
    # 8 bits for each place among 168
    assert upload.uplink_bytes() == 10 * 4 + 10 + 4 * 4
    world.merge(1, [upload])
    assert int((upload.values["means"] != 0).sum()) == 10
    assert not world.kept.residuals


def test_models_without_an_embedding_are_refused():
    size = Size("conv-only", 10, 0, 0, 1)
    setting = Setting(1, 1, 1, 4, 0, 8, 1, None, {"a": size})
    with pytest.raises(InputError, match="conv-only of a"):
        FedProto().check(setting)
