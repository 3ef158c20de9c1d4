"""The compiled pooling: bit for bit what PyTorch's ReLU and max-pool give, on every width."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import native
from simfed.learn.models.layers import ReluPoolLoops, compiled

FORMS = [torch.contiguous_format, torch.channels_last]

needs_loops = pytest.mark.skipif(
    compiled() is None, reason="the package was built without a C++ compiler"
)


def widths():
    """The loops with every width of vectors that this processor has."""
    library, widest = native.layers()
    return [ReluPoolLoops(library, width) for width in (16, 8) if width <= widest]


@needs_loops
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 3),
    channels=st.integers(1, 35),
    half=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    levels=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_values_and_gradients_are_those_of_relu_and_max_pool(form, n, channels, half, levels, seed):
    drawn = torch.Generator().manual_seed(seed)
    shape = n, channels, 2 * half[0], 2 * half[1]
    values = torch.randint(-2, levels, shape, generator=drawn).float()  # ties in plenty
    x = values.contiguous(memory_format=form).requires_grad_()
    expected = F.max_pool2d(F.relu(x), 2)
    gradient = torch.randn(expected.shape, generator=drawn)
    expected.backward(gradient)
    for loops in widths():
        pooled, corner = loops.forward(x.detach())
        assert torch.equal(pooled, expected)
        assert torch.equal(loops.backward(gradient, corner), x.grad)
        assert pooled.is_contiguous(memory_format=form)


@needs_loops
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("columns", [2, 34])
def test_a_value_that_is_no_number_is_not_hidden(place, columns):
    x = torch.full((1, 3, 2, columns), float("inf"))
    x[..., place // 2, place % 2 :: 2] = float("nan")
    for loops in widths():
        for form in FORMS:
            pooled, corner = loops.forward(x.contiguous(memory_format=form))
            assert pooled.isnan().all()
            assert (corner == -1).all()


@needs_loops
def test_a_view_that_lies_neither_way_is_laid_out_first():
    whole = torch.randn(2, 3, 4, 12, generator=torch.Generator().manual_seed(0))
    view = whole[..., ::2]
    for loops in widths():
        assert torch.equal(loops.forward(view)[0], F.max_pool2d(F.relu(view), 2))
