"""Work that PyTorch's hooks see, and what it costs; needs no Flower."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.flower.computing import Charge, Coverage, HostSpent, price
from simfed.flower.flops import count_numbers
from simfed.flower.metering import Counted, FlopMeter, Pass
from simfed.ground.errors import InputError
from simfed.learn.catalogue import model_facts
from simfed.learn.models import build_model
from simfed.scenario.fleet_file import Computing

SHAPE = (1, 28, 28)


def train(net, batch, shape=SHAPE):
    loss = F.cross_entropy(net(torch.rand(batch, *shape)), torch.zeros(batch, dtype=torch.long))
    loss.backward()


@pytest.mark.parametrize("name", ["lenet5", "lenet5-half", "logistic-regression"])
def test_a_step_counts_the_flops_and_parameters_of_its_model(name):
    """As the catalogue adds them up layer by layer."""
    facts = model_facts(name, SHAPE, 10)
    net, meter = build_model(name, SHAPE, 10, seed=0), FlopMeter()
    with meter.watched():
        train(net, 8)
        with torch.no_grad():
            net(torch.rand(5, *SHAPE))
    step, inference = meter.collect().passes
    assert (step.samples, step.parameters, step.trained) == (8, facts.parameters, True)
    assert step.flops == 8 * facts.train_flops
    assert (inference.samples, inference.trained) == (5, False)
    assert inference.flops == 5 * facts.forward_flops


def test_nothing_is_counted_outside_and_twice():
    net, meter = build_model("lenet5", SHAPE, 10, seed=0), FlopMeter()
    train(net, 2)
    with meter.watched():
        pass
    assert meter.collect().nothing
    with meter.watched():
        train(net, 2)
    assert len(meter.collect().passes) == 1
    assert meter.collect().nothing


def test_operators_without_a_module_are_one_pass():
    def work():
        weights = torch.rand(3, 4, requires_grad=True)
        (torch.rand(7, 4) @ weights.T).sum().backward()

    assert passes(work) == [Pass(12, 7, 2.0 * 2 * 7 * 4 * 3, trained=True)]


def seen(work):
    """What is counted of `work()`."""
    meter = FlopMeter()
    with meter.watched():
        work()
    return meter.collect()


def passes(work):
    return list(seen(work).passes)


INPUTS, LABELS = torch.rand(8, 784), torch.arange(8)
FIRST, LAST = nn.Linear(784, 20), nn.Linear(20, 10)
NET = nn.Sequential(FIRST, nn.ReLU(), LAST)
FORWARD = 2.0 * 8 * (784 * 20 + 20 * 10)
STEP = [Pass(785 * 20 + 21 * 10, 8, FORWARD + 2.0 * 8 * (784 * 20 + 2 * 20 * 10), trained=True)]


class Centred(nn.Module):
    """Has no parameters."""

    def forward(self, inputs):
        return (inputs - 0.5) / 0.5


def by_module_loss():
    nn.CrossEntropyLoss()(NET(INPUTS), LABELS).backward()


def by_function_loss():
    F.cross_entropy(NET(INPUTS), LABELS).backward()


def by_layers():
    nn.CrossEntropyLoss()(LAST(F.relu(FIRST(INPUTS))), LABELS).backward()


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


@pytest.mark.parametrize(
    "work",
    [
        by_module_loss,
        by_function_loss,
        by_layers,
        by_functions,
        by_transforms,
        by_halves,
        by_transformed_functions,
        by_an_optimizer,
    ],
)
def test_a_step_of_training_costs_the_same_however_it_is_written(work):
    assert passes(work) == STEP


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_inference_costs_the_same_in_every_mode(mode):
    def evaluate():
        with mode():
            for _ in range(3):
                nn.CrossEntropyLoss()(NET(INPUTS), LABELS).item()

    assert passes(evaluate) == [Pass(STEP[0].parameters, 8, FORWARD)] * 3


def test_backward_work_belongs_to_the_passes_that_it_goes_through():
    """Not to the last one before it: here a teacher's, and a look at another model."""
    teacher, other = nn.Linear(784, 10), nn.Linear(784, 10)

    def distil():
        outputs = NET(INPUTS)
        with torch.no_grad():
            targets = teacher(INPUTS).softmax(1)
        other(INPUTS)
        other(INPUTS)
        F.cross_entropy(outputs, targets).backward()

    student, *rest = passes(distil)
    assert student.trained
    assert [one.trained for one in rest] == [False, False]
    assert student.flops == STEP[0].flops
    assert sum(one.flops for one in rest) == 3 * 2.0 * 8 * 7840


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
    (whole,) = passes(lambda: sequence(layer(16, 32, batch_first=True)))
    (parts,) = passes(lambda: sequence(unrolled(cell(16, 32))))
    forward = 2.0 * 8 * 12 * gates * 32 * (16 + 32)
    first_state = 2.0 * 8 * gates * 32 * 32  # whose gradient nobody needs
    assert whole.parameters == parts.parameters == gates * 32 * (16 + 32 + 2)
    assert 3 * forward - 2 * first_state <= parts.flops <= 3 * forward
    assert 3 * forward - 2 * first_state <= whole.flops <= 3 * forward


def test_look_ups_and_attention_are_counted_in_training_and_inference():
    words = torch.randint(0, 50, (8, 12))
    (step,) = passes(lambda: nn.Embedding(50, 16)(words).sum().backward())
    assert step == Pass(800, 8, 2.0 * 8 * 12 * 16, trained=True)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    slow = passes(lambda: layer(torch.rand(8, 12, 16)))
    layer.eval()
    with torch.no_grad():
        assert passes(lambda: layer(torch.rand(8, 12, 16))) == slow
    assert slow[0].flops == 2.0 * 8 * 12 * (4 * 16 * 16 + 2 * 16 * 32 + 2 * 12 * 16)
    query = torch.rand(8, 2, 12, 8)
    (pass_,) = passes(lambda: F.scaled_dot_product_attention(query, query, query))
    assert pass_.flops == 2 * 2.0 * 8 * 2 * 12 * 12 * 8


def test_a_bag_of_words_adds_up_a_vector_for_each():
    words = torch.randint(0, 50, (8, 12))
    (step,) = passes(lambda: nn.EmbeddingBag(50, 16, mode="sum")(words).sum().backward())
    assert step == Pass(800, 8, 2.0 * 8 * 12 * 16, trained=True)


def test_a_solver_goes_through_its_numbers_once_per_row():
    assert count_numbers(torch.ops.aten.linalg_qr, (torch.rand(50, 20),), ()) == 50 * 20 * 20


def covered(work):
    coverage = Coverage()
    coverage.add(seen(work))
    return coverage


def test_what_has_no_formula_is_measured_by_the_numbers_it_goes_through():
    coverage = covered(lambda: (NET(INPUTS), torch.fft.fft(torch.rand(2**16))))
    transformed = 5 * 16 * 2**16
    assert coverage.missing == pytest.approx(transformed / (transformed + FORWARD), rel=0.2)
    assert "it has no formula for _fft_r2c, " in coverage.sentence("train")
    solved = covered(lambda: torch.linalg.qr(torch.rand(100, 100)))
    assert solved.missing == 1.0
    assert covered(by_an_optimizer).missing == covered(by_function_loss).missing == 0.0


def test_an_exception_in_a_model_leaves_the_meter_in_order():
    meter = FlopMeter()
    net = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with meter.watched():
        with pytest.raises(RuntimeError):
            net(torch.rand(2, 5))
        net(torch.rand(2, 4))
    assert meter.collect().passes == (Pass(15, 2, 2.0 * 2 * 4 * 3),)


def priced(counted):
    processor = build_processor(DeviceSpec(profile="p"), load_profile("x86-2core-vm"))
    return price(
        Computing(), HostSpent(counted, 0.0), processor=processor, names=["train"], values=dict
    )


def test_counted_steps_are_priced_by_the_profiles_law():
    law = load_profile("x86-2core-vm").curves["training", "any", ""].parameters
    flops, parameters = 5e9, 1_000_000
    expected = law["overhead"] + max(law["per_flop"] * flops, law["per_byte"] * 12 * parameters)
    step = Pass(parameters, 32, flops, trained=True)
    assert priced(Counted((step, step))) == pytest.approx(2 * expected, rel=1e-12)


def test_layers_that_only_move_numbers_are_priced_by_their_bytes():
    """However they are written; what goes with the FLOPs of usual models is in the law already."""
    scale, mix = nn.BatchNorm2d(16), nn.Conv2d(16, 16, 1)
    images = torch.rand(8, 16, 64, 64)

    def by_modules():
        nn.Sequential(mix, scale, nn.ReLU())(images).sum().backward()

    def by_functions():
        mixed = F.conv2d(images, mix.weight, mix.bias)
        whole = F.batch_norm(mixed, None, None, scale.weight, scale.bias, training=True)
        F.relu(whole).sum().backward()

    (one,), (other,) = passes(by_modules), passes(by_functions)
    assert one == other
    assert one.moved_bytes == pytest.approx(other.moved_bytes, rel=1e-3)
    assert one.moved_bytes >= 4 * 8.0 * images.numel()  # both ways through both layers
    bare = Pass(one.parameters, one.samples, one.flops, trained=True)
    assert priced(Counted((one,))) > 2 * priced(Counted((bare,)))
    (usual,) = passes(
        lambda: train(build_model("wresnet40-2", (3, 32, 32), 10, seed=0), 2, (3, 32, 32))
    )
    bare = Pass(usual.parameters, usual.samples, usual.flops, trained=True)
    assert priced(Counted((usual,))) == pytest.approx(priced(Counted((bare,))), rel=0.1)


def test_a_profile_without_a_law_says_so():
    processor = build_processor(DeviceSpec(profile="p"), load_profile("rtx3090-ryzen4800h"))
    spent = HostSpent(Counted((Pass(10, 1, 5.0, trained=True),)), 0.0)
    with pytest.raises(InputError, match=r"a profile with a law of training for any model"):
        price(Computing(), spent, processor=processor, names=["train"], values=dict)


def test_measured_seconds_are_the_hosts_times_the_speed():
    computing = Computing(kind="measured", speed=0.5)
    charge = Charge(computing)
    with charge.watched():
        sum(range(100_000))
    spent = charge.collect()
    assert spent.host_s > 0
    cost = price(computing, spent, processor=None, names=["train"], values=dict)
    assert cost == 0.5 * spent.host_s
