"""Local training of many clients in one pass: each gets what it would get alone."""

from functools import partial

import engine_worlds as tiny
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_worlds import played
from textbook import assert_same, gradients, scenario
from torch import nn

from simfed.ground.method import LocalSteps
from simfed.learn import (
    FlatModel,
    LinearPasses,
    LogisticRegression,
    Passes,
    choose_passes,
)
from simfed.learn.training import LocalTraining, Trainer
from simfed.scenario import Training

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE, CLASSES = (1, 12, 12), 4
DATA = tiny.federation(tiny.scenario())


def perceptron(*shape):
    hidden = nn.Linear(144, 20), nn.ReLU(), nn.Linear(20, 9), nn.Tanh()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(9, 4))


def unbiased():
    hidden = nn.Linear(144, 6, bias=False), nn.Sigmoid(), nn.Identity()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(6, 4))


def narrow():
    """Whose products of three samples begin at odd places of a stack, and one of whose
    layers puts out a single column.
    """
    sizes = (144, 6), (6, 200), (200, 1), (1, 4)
    layers = [part for size in sizes for part in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


MODELS = {
    "logistic": partial(LogisticRegression, SHAPE, CLASSES),
    "perceptron": perceptron,
    "unbiased": unbiased,
    "narrow": narrow,
}
TRAININGS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "clipped": {"clip_norm": 0.3},
    "adam": {"optimizer": "adam", "weight_decay": 0.01, "clip_norm": 1.0},
}


def built(model):
    torch.manual_seed(0)
    return FlatModel(MODELS[model]())


def trainer(model, options, passes=None):
    flat = built(model)
    made = Training.model_validate({"batch_size": 5, **options})
    chosen = passes(flat) if passes else choose_passes(flat, SHAPE)
    return Trainer(flat, chosen, DATA, made)


def courses(model, sizes, *, drift=False, **steps):
    """Of clients that begin with weights of their own, on batches of these sizes."""
    rng, flat = np.random.default_rng(1), built(model)
    made = []
    for client, samples in enumerate(sizes):
        start = flat.weights + 0.01 * client
        batches = [rng.integers(0, len(DATA.labels), size) for size in samples]
        shift = torch.from_numpy(rng.normal(size=len(start))).float() if drift else None
        begin = {"weights": start, "buffers": flat.statistics}
        made.append(LocalTraining(LocalSteps(begin, drift=shift, **steps), batches))
    return made


UNEQUAL = [[5, 5, 2], [5, 5, 5, 5], [3], [5, 5, 2, 5, 5, 2], [1, 1], [5, 5, 2]]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", TRAININGS)
@pytest.mark.parametrize("pull", [0.0, 0.1])
def test_everybody_gets_the_bits_that_it_gets_alone(model, options, pull):
    together = trainer(model, TRAININGS[options])
    assert together.stacks
    made = courses(model, UNEQUAL, drift=pull > 0, pull=pull)
    for course, after in zip(made, together.train(made, 0.1), strict=True):
        [alone] = trainer(model, TRAININGS[options]).train([course], 0.1)
        assert torch.equal(after.model["weights"], alone.model["weights"])
        assert after.loss.item() == pytest.approx(alone.loss.item(), rel=1e-6)
        assert not torch.equal(after.model["weights"], course.steps.model["weights"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", TRAININGS)
def test_it_is_the_training_of_the_module_by_autograd(model, options):
    made = courses(model, UNEQUAL, drift=True, pull=0.1)
    trained = trainer(model, TRAININGS[options]).train(made, 0.1)
    one_by_one = trainer(model, TRAININGS[options], Passes)
    assert not one_by_one.stacks
    for course, after in zip(made, trained, strict=True):
        [expected] = one_by_one.train([course], 0.1)
        # Adam divides by roots of what may be rounding
        assert_same(after.model["weights"], expected.model["weights"], 1e-5, 2e-6)
        assert after.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("passes", [None, Passes], ids=["together", "alone"])
def test_the_gradient_of_one_plain_step_is_told_as_it_is(model, passes):
    made = courses(model, [[5], [5], [2]], gradient=True)
    trained = trainer(model, {"local_steps": 1}, passes).train(made, 0.1)
    ordinary = MODELS[model]()
    flat = FlatModel(ordinary)
    for course, after in zip(made, trained, strict=True):
        before = course.steps.model["weights"]
        flat.weights.copy_(before)
        samples, labels = DATA.at(course.batches[0])
        ordinary.zero_grad()
        loss = F.cross_entropy(ordinary(samples), labels)
        loss.backward()
        assert_same(after.model["gradient"], gradients(ordinary), 1e-4, 1e-6)
        assert torch.equal(after.model["weights"], before)
        assert after.loss.item() == pytest.approx(loss.item(), rel=1e-6)


# ---- in runs -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_cohort_learns_what_its_clients_learn_one_by_one(
    method, monkeypatch, add_part
):
    add_part("model", "tiny-perceptron", perceptron)
    made = scenario(
        method,
        prototypes={"a": {"model": "tiny-perceptron"}},
        clients=9,
        training={"batch_size": 7, "learning_rate": 0.05, "local_epochs": 2},
        participation={"clients_per_round": 6},
        rounds=2,
    )

    def weights_after():
        return played(made)[0].array("server/a/weights")

    together, asked = weights_after(), []
    of_rows = LinearPasses.gradients_of_rows

    def counted(self, weights, *rest):
        asked.append(len(weights))
        return of_rows(self, weights, *rest)

    monkeypatch.setattr(LinearPasses, "gradients_of_rows", counted)
    assert torch.equal(weights_after(), together)
    assert max(asked) == 6  # the whole cohort in one pass
    monkeypatch.setattr(Trainer, "together", 1)
    asked.clear()
    assert torch.equal(weights_after(), together)
    assert max(asked) == 1
    monkeypatch.setattr(LinearPasses, "stacks", False)
    assert torch.equal(weights_after(), together)
