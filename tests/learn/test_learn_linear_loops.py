"""The compiled linear layers: bit for bit the sums that they promise, on every width of vectors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import native
from simfed.learn.flat import FlatModel
from simfed.learn.models import linear_passes
from simfed.learn.models.build import build_model
from simfed.learn.models.linear_loops import LinearLoops, compiled
from simfed.learn.passes import choose_passes

pytestmark = pytest.mark.skipif(
    compiled() is None, reason="the package was built without a C++ compiler"
)
LANES = 16


def widths():
    """The loops with every width of vectors that this processor has."""
    library, widest = native.layers()
    return [LinearLoops(library, width) for width in (16, 8) if width <= widest]


def fused(a, b, onto):
    """a · b + onto with one rounding: the product is exact in float64."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(onto))


def dot(x, w):
    """Every lane its own inputs in order, then the lanes, halves first."""
    lanes = np.zeros(LANES, np.float32)
    for i in range(0, len(x), LANES):
        here = slice(0, len(x[i : i + LANES]))
        lanes[here] = fused(x[i : i + LANES], w[i : i + LANES], lanes[here])
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


def summed(scales, rows):
    """Σ scale × row, in order."""
    total = np.zeros(rows.shape[1], np.float32)
    for scale, row in zip(scales, rows, strict=True):
        total = fused(scale, row, total)
    return total


class World:
    """Models with something before and after the layer, and rows longer than they are."""

    def __init__(self, models, samples, inputs, outputs, biased=True, seed=0):
        drawn = torch.Generator().manual_seed(seed)
        self.start, self.outputs, self.biased = 3, outputs, biased
        length = 3 + (inputs + biased) * outputs + 2
        self.rows = torch.randn(models, length + 5, generator=drawn)[:, :length]
        self.x = torch.randn(models, samples, inputs, generator=drawn)
        self.gradient = torch.randn(models, samples, outputs, generator=drawn)

    def parameters(self, rows, model):
        stop = 3 + self.x.shape[2] * self.outputs
        row = rows[model].numpy()
        weight = row[3:stop].reshape(self.outputs, -1)
        return weight, row[stop : stop + self.outputs] if self.biased else None

    def forward(self, loops):
        return loops.forward(self.rows, self.start, self.outputs, self.biased, self.x)

    def parameters_after(self, loops, rate=None):
        rows = torch.zeros_like(self.rows) if rate is None else self.rows.clone()
        loops.weight_gradient(self.gradient, self.x, rows, self.start, self.biased, rate)
        return rows

    def in_inputs(self, loops):
        return loops.input_gradient(self.gradient, self.rows, self.start, self.x.shape[2])


WORLDS = [(1, 1, 1, 1), (2, 3, 15, 4), (3, 4, 16, 5), (2, 5, 17, 10), (1, 9, 39, 2), (2, 1, 300, 6)]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", WORLDS)
def test_sums_are_those_that_the_source_says(shape, biased):
    world = World(*shape, biased)
    for loops in widths():
        y, parameters = world.forward(loops).numpy(), world.parameters_after(loops)
        moved, in_inputs = world.parameters_after(loops, 0.3), world.in_inputs(loops).numpy()
        for m in range(shape[0]):
            x, outer = world.x[m].numpy(), world.gradient[m].numpy()
            weight, bias = world.parameters(world.rows, m)
            of_weight, of_bias = world.parameters(parameters, m)
            weight_after, bias_after = world.parameters(moved, m)
            for o in range(shape[3]):
                for s in range(shape[1]):
                    expected = dot(x[s], weight[o])
                    assert y[m, s, o] == (expected + bias[o] if biased else expected)
                expected = summed(outer[:, o], x)
                assert np.array_equal(of_weight[o], expected)
                rate = -np.float32(0.3)
                assert np.array_equal(weight_after[o], fused(expected, rate, weight[o]))
                if biased:
                    total = np.float32(0)
                    for value in outer[:, o]:
                        total += value
                    assert of_bias[o] == total
                    assert bias_after[o] == fused(total, rate, bias[o])
            for s in range(shape[1]):
                assert np.array_equal(in_inputs[m, s], summed(outer[s], weight))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 600), st.integers(1, 12)),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_widths_agree_models_are_alone_and_nothing_else_is_touched(shape, biased, seed):
    world = World(*shape, biased, seed)
    results = []
    for loops in widths():
        after = world.parameters_after(loops, 0.1)
        results.append([world.forward(loops), after, world.in_inputs(loops)])
        stop = 3 + (shape[2] + biased) * shape[3]
        assert torch.equal(after[:, :3], world.rows[:, :3])
        assert torch.equal(after[:, stop:], world.rows[:, stop:])
    for one, other in zip(results[0], results[-1], strict=True):
        assert torch.equal(one, other)
    loops, last = widths()[0], shape[0] - 1
    alone = World(*shape, biased, seed)
    alone.rows, alone.x, alone.gradient = (
        array[last:].clone() for array in (world.rows, world.x, world.gradient)
    )
    by_itself = [alone.forward(loops), alone.parameters_after(loops, 0.1), alone.in_inputs(loops)]
    for one, whole in zip(by_itself, results[0], strict=True):
        assert torch.equal(one[0], whole[last])
    pairs = [world.parameters(world.rows, m) for m in range(shape[0])]
    weight = torch.from_numpy(np.stack([array for array, _ in pairs]))
    exact = world.x.double() @ weight.double().transpose(1, 2)
    if biased:
        exact += torch.from_numpy(np.stack([array for _, array in pairs]))[:, None].double()
    size = world.x.double().abs() @ weight.double().abs().transpose(1, 2)
    assert bool(((results[0][0] - exact).abs() <= 2**-20 * (size + 5)).all())


def test_what_is_not_in_one_piece_is_read_as_it_is():
    world = World(2, 6, 20, 3)
    plain = [world.forward(compiled()), world.parameters_after(compiled())]
    world.x = world.x.transpose(1, 2).contiguous().transpose(1, 2)
    world.gradient = world.gradient.transpose(1, 2).contiguous().transpose(1, 2)
    assert not world.x.is_contiguous()
    again = [world.forward(compiled()), world.parameters_after(compiled())]
    assert all(map(torch.equal, plain, again))


@pytest.mark.parametrize("classes", [1, 2, 7, 8, 10, 16, 17, 100, 1000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_cross_entropies_are_within_rounding_of_exact_ones(classes, scale):
    drawn = torch.Generator().manual_seed(classes)
    logits = scale * torch.randn(4, 9, classes, generator=drawn)
    labels = torch.randint(0, classes, (4, 9), generator=drawn)
    exact = logits.double().requires_grad_()
    values = torch.stack([F.cross_entropy(*pair) for pair in zip(exact, labels, strict=True)])
    values.sum().backward()
    results = [loops.cross_entropies(logits, labels) for loops in widths()]
    assert all(map(torch.equal, results[0], results[-1]))
    entropies, gradient = results[0]
    torch.testing.assert_close(entropies.double(), values, rtol=4e-7, atol=1e-7)
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-6, atol=2e-8)
    [alone], [of_logits] = compiled().cross_entropies(logits[2:3], labels[2:3])
    assert alone == entropies[2]
    assert torch.equal(of_logits, gradient[2])


def test_what_has_left_the_numbers_is_not_hidden():
    logits, labels = torch.zeros(4, 3, 10), torch.zeros(4, 3, dtype=torch.int64)
    for model, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        logits[model, 1, 4] = value
    for loops in widths():
        values, gradients = loops.cross_entropies(logits, labels)
        assert values.isnan().tolist() == [True, True, False, False]
        assert gradients[2, 1, 4] == 0  # never likely
        assert gradients[0, 1].isnan().all()
        assert not gradients[0, [0, 2]].isnan().any()


@pytest.mark.parametrize("label", [-1, 4, 2**40])
def test_a_label_that_is_no_class_is_refused_and_nothing_written(label):
    logits, labels = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    labels[1, 2] = label
    for loops in widths():
        with pytest.raises(IndexError, match="labels from 0 to 3"):
            loops.cross_entropies(logits, labels)


def test_without_the_loops_pytorch_s_products_are_used(monkeypatch):
    shape = (1, 8, 8)
    flat = FlatModel(build_model("perceptron", shape, 10, seed=0))
    samples, labels = torch.randn(3, 6, *shape), torch.arange(18).view(3, 6) % 10

    def moved():
        weights = flat.weights.repeat(3, 1)
        values = choose_passes(flat, shape).step_rows(weights, samples, labels, 0.1)
        return weights, values

    compiled_ones = moved()
    monkeypatch.setattr(linear_passes, "compiled", lambda: None)
    assert choose_passes(flat, shape)._layers[0].loops is None
    for ours, theirs in zip(compiled_ones, moved(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
