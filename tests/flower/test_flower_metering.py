"""Work that PyTorch's hooks see, and what it costs; needs no Flower."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simfed import InputError
from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.flower import HostSpent, PassSum, Price, WorkCount
from simfed.flower.metering import FlopMeter
from simfed.learn import build_model, model_facts
from simfed.scenario import Computing

SHAPE = (1, 28, 28)


def train(net, batch, shape=SHAPE):
    loss = F.cross_entropy(
        net(torch.rand(batch, *shape)), torch.zeros(batch, dtype=torch.long)
    )
    loss.backward()


@pytest.mark.parametrize("name", ["lenet5", "lenet5-half", "logistic-regression"])
def test_a_step_counts_the_flops_and_parameters_of_its_model(name):
    """As the catalogue adds them up layer by layer."""
    facts = model_facts(name, SHAPE, 10)
    net = build_model(name, SHAPE, 10, seed=0)

    def work():
        train(net, 8)
        train(net, 3)
        with torch.no_grad():
            net(torch.rand(5, *SHAPE))

    counted = seen(work)
    assert counted.parameters == facts.parameters
    assert counted.training[:2] == (2, 11 * facts.train_flops)
    assert counted.inference[:2] == (1, 5 * facts.forward_flops)


def test_nothing_is_counted_outside_and_twice():
    meter = FlopMeter()
    with meter.watched():
        by_function_loss()
    by_function_loss()
    assert meter.collect().training.times == 1
    assert not meter.collect().flops


def seen(work):
    """What is counted of `work()`."""
    meter = FlopMeter()
    with meter.watched():
        work()
    return meter.collect()


def told(work):
    """Parameters, steps and their FLOPs, passes and theirs."""
    counted = seen(work)
    return (counted.parameters, *counted.training[:2], *counted.inference[:2])


INPUTS, LABELS = torch.rand(8, 784), torch.arange(8)
FIRST, LAST = nn.Linear(784, 20), nn.Linear(20, 10)
NET = nn.Sequential(FIRST, nn.ReLU(), LAST)
SIZE = 785 * 20 + 21 * 10
FORWARD = 2.0 * 8 * (784 * 20 + 20 * 10)
STEP = FORWARD + 2.0 * 8 * (784 * 20 + 2 * 20 * 10)


class Centred(nn.Module):
    """Has no parameters."""

    def forward(self, inputs):
        return (inputs - 0.5) / 0.5


def by_function_loss():
    F.cross_entropy(NET(INPUTS), LABELS).backward()


def by_functions():
    hidden = F.linear(INPUTS, FIRST.weight, FIRST.bias).relu()
    F.nll_loss((hidden @ LAST.weight.T + LAST.bias).log_softmax(1), LABELS).backward()


def by_transforms():
    """One call for each sample, before the model."""
    inputs = torch.stack([Centred()(one) for one in INPUTS])
    nn.CrossEntropyLoss()(NET(inputs), LABELS).backward()


def by_halves():
    """Two calls of the model, one backward run through both."""
    outputs = torch.cat([NET(INPUTS[:4]), NET(INPUTS[4:])])
    F.cross_entropy(outputs, LABELS).backward()


def by_transformed_functions():
    torch.func.grad(
        lambda parameters: F.cross_entropy(
            torch.func.functional_call(NET, parameters, INPUTS), LABELS
        )
    )(dict(NET.named_parameters()))


def by_an_optimizer():
    optimizer = torch.optim.Adam(NET.parameters())

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(NET(INPUTS), LABELS)
        loss.backward()
        return loss

    optimizer.step(closure)


WAYS = [
    *(by_function_loss, by_functions, by_transforms, by_halves),
    *(by_transformed_functions, by_an_optimizer),
]


@pytest.mark.parametrize("work", WAYS)
def test_a_step_of_training_costs_the_same_however_it_is_written(work):
    assert told(work)[1:] == (1, STEP, 0, 0.0)
    # of functions a bias that is added is not seen
    assert told(work)[0] in (SIZE, SIZE - 10)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, torch.enable_grad]
)
def test_inference_costs_the_same_in_every_mode(mode):
    def evaluate():
        with mode():
            for _ in range(3):
                nn.CrossEntropyLoss()(NET(INPUTS), LABELS).item()

    assert told(evaluate) == (SIZE, 0, 0.0, 3, 3 * FORWARD)


def test_inference_beside_training_is_what_autograd_does_not_note():
    teacher = nn.Linear(784, 10)

    def distil():
        for _ in range(2):
            with torch.no_grad():
                targets = teacher(INPUTS).softmax(1)
            F.cross_entropy(NET(INPUTS), targets).backward()

    assert told(distil) == (SIZE + 7850, 2, 2 * STEP, 2, 2 * 2.0 * 8 * 7840)


def test_a_step_that_makes_its_weights_anew_has_no_more_parameters():
    def work():
        weights = torch.rand(784, 10)
        for _ in range(5):
            weights.requires_grad_()
            (INPUTS @ weights).sum().backward()
            weights = weights.detach() - 0.1 * weights.grad

    assert told(work)[:2] == (7840, 5)


def sequence(layer):
    """A step on a text of 12 words, each of 16 numbers."""
    words = torch.rand(8, 12, 16, requires_grad=True)
    layer(words)[0][:, -1].sum().backward()


def unrolled(cell):
    def layer(words):
        state = None
        for t in range(words.shape[1]):
            state = cell(words[:, t], state)
        hidden = state[0] if isinstance(state, tuple) else state
        return (hidden[:, None], state)

    return layer


@pytest.mark.parametrize(
    ("layer", "cell", "gates"),
    [(nn.LSTM, nn.LSTMCell, 4), (nn.GRU, nn.GRUCell, 3), (nn.RNN, nn.RNNCell, 1)],
)
def test_recurrent_layers_are_counted_as_their_cells_are(layer, cell, gates):
    whole = seen(lambda: sequence(layer(16, 32, batch_first=True)))
    parts = seen(lambda: sequence(unrolled(cell(16, 32))))
    forward = 2.0 * 8 * 12 * gates * 32 * (16 + 32)
    first_state = 2.0 * 8 * gates * 32 * 32  # whose gradient nobody needs
    for counted in (whole, parts):
        assert counted.parameters == gates * 32 * (16 + 32 + 2)
        assert counted.training.times == 1
        assert 3 * forward - 2 * first_state <= counted.training.flops <= 3 * forward


def test_look_ups_and_attention_are_counted_in_training_and_inference():
    words = torch.randint(0, 50, (8, 12))
    for layer in (nn.Embedding(50, 16), nn.EmbeddingBag(50, 16, mode="sum")):
        looked = told(lambda layer=layer: layer(words).sum().backward())
        assert looked == (800, 1, 2.0 * 8 * 12 * 16, 0, 0.0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    slow = told(lambda: layer(torch.rand(8, 12, 16)))
    layer.eval()
    with torch.no_grad():
        assert told(lambda: layer(torch.rand(8, 12, 16))) == slow
    assert slow[3:] == (1, 2.0 * 8 * 12 * (4 * 16 * 16 + 2 * 16 * 32 + 2 * 12 * 16))
    query = torch.rand(8, 2, 12, 8)
    attended = told(lambda: F.scaled_dot_product_attention(query, query, query))
    assert attended[3:] == (1, 2 * 2.0 * 8 * 2 * 12 * 12 * 8)


def test_operators_that_compute_much_without_a_formula_are_named():
    def work():
        torch.fft.rfft(torch.rand(64))
        torch.linalg.svd(torch.rand(8, 8))
        FIRST(INPUTS)

    assert seen(work).unpriced == {"fft_r2c", "linalg_svd"}
    assert seen(by_function_loss).unpriced == frozenset()


def test_an_exception_in_a_model_leaves_the_meter_in_order():
    def work():
        with pytest.raises(RuntimeError):
            NET(INPUTS[:, :5])
        NET(INPUTS)

    assert told(work) == (SIZE, 0, 0.0, 2, FORWARD)


def priced(counted, processor=None):
    spent = HostSpent(counted, 0.0)
    return Price(Computing()).price_code([], {}, spent, processor or build()).work_s


def build(profile="x86-2core-vm"):
    return build_processor(DeviceSpec(profile="p"), load_profile(profile))


def test_counted_steps_are_priced_by_the_profiles_law():
    law = load_profile("x86-2core-vm").curves["training", "any", ""].parameters
    flops, parameters = 5e9, 1_000_000
    expected = law["overhead"] + max(
        law["per_flop"] * flops, law["per_byte"] * 12 * parameters
    )
    counted = WorkCount(PassSum(2, 2 * flops), parameters=parameters)
    assert priced(counted) == pytest.approx(2 * expected, rel=1e-12)


def test_passes_of_a_thousand_lengths_are_one_law():
    """Each has the mean of its message.

    A run warns of one model, whatever the lengths.
    """
    processor = build()
    lengths = [
        priced(WorkCount(PassSum(3, 1e8 * n), parameters=500), processor)
        for n in range(1, 1001)
    ]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 900
    assert list(processor.profile.models) == ["a model of 500 parameters"]
    assert len(processor.profile.warnings) == 1


def test_layers_that_only_move_numbers_are_priced_by_their_bytes():
    """What goes with the FLOPs of usual models is in the law already."""
    net = nn.Sequential(nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU())
    images = torch.rand(8, 16, 64, 64)

    def bare(counted):
        return replace(counted, training=counted.training._replace(moved_bytes=0.0))

    one = seen(lambda: net(images).sum().backward())
    # both ways through both layers
    assert one.training.moved_bytes >= 4 * 8.0 * images.numel()
    assert priced(one) > 2 * priced(bare(one))
    shape = (3, 32, 32)
    deep = build_model("wresnet40-2", shape, 10, seed=0)
    usual = seen(lambda: train(deep, 2, shape))
    assert priced(usual) == pytest.approx(priced(bare(usual)), rel=0.1)


def test_a_profile_without_a_law_says_so():
    counted = WorkCount(PassSum(1, 5.0), parameters=10)
    with pytest.raises(InputError, match="a profile with a law of training for any"):
        priced(counted, build("rtx3090-ryzen4800h"))
