"""The compiled convolutions: bit for bit the sums that they promise, on every width of
vectors.
"""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import native
from simfed.learn import compiled
from simfed.learn.models.convpool import LANES, Convpool, ConvpoolPair

needs_loops = pytest.mark.skipif(
    compiled() is None, reason="the package was built without a C++ compiler"
)


def widths():
    """The loops with every width of vectors that this processor has."""
    library, widest = native.layers()
    return [Convpool(library, width) for width in (16, 8) if width <= widest]


def layers(seed, shape, outputs, n):
    """Weights, samples and a gradient in the features, drawn."""
    drawn = torch.Generator().manual_seed(seed)
    channels, height, width = shape
    first, second = outputs
    features = second * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    sizes = (
        (first, channels, 5, 5), (first,), (second, first, 5, 5), (second,),
        (n, *shape), (n, features),
    )  # fmt: skip
    *parameters, samples, gradient = (torch.randn(s, generator=drawn) for s in sizes)
    return parameters, samples, gradient


def play(loops, parameters, samples, gradient):
    pair = ConvpoolPair(loops, parameters, tuple(samples.shape[1:]))
    features, memory = pair.forward(samples, keep=True)
    into = [torch.zeros_like(parameter) for parameter in parameters]
    pair.backward(gradient, memory, into)
    return [features, *into]


def fused(a, b, c):
    """a × b + c, rounded once to float32, from float64: to odd first, so that the
    second rounding does no harm.
    """
    product = np.float64(a) * np.float64(b)  # exact
    c = np.float64(c)
    total = product + c
    shadow = total - product
    error = (product - (total - shadow)) + (c - shadow)
    even = (total.view(np.int64) & 1) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    total = np.where((error != 0) & even, np.nextafter(total, towards), total)
    return total.astype(np.float32)


def lanes_of(x):
    """(n, ...) → (blocks, ..., 16)."""
    blocks = -(-len(x) // LANES)
    whole = np.zeros((blocks * LANES, *x.shape[1:]), np.float32)
    whole[: len(x)] = x
    return np.moveaxis(whole.reshape(blocks, LANES, *x.shape[1:]), 1, -1)


def forward_in_order(x, weight, bias):
    """x (blocks, inputs, h, w, 16) → the pooled maxima and which of four they were."""
    outputs, inputs, k, _ = weight.shape
    blocks, _, height, width, _ = x.shape
    rows, columns = height - k + 1, width - k + 1
    total = np.empty((blocks, outputs, rows, columns, LANES), np.float32)
    for o in range(outputs):
        here = np.full((blocks, rows, columns, LANES), bias[o])
        for c, ky, kx in product(range(inputs), range(k), range(k)):
            under = x[:, c, ky : ky + rows, kx : kx + columns]
            here = fused(under, weight[o, c, ky, kx], here)
        total[:, o] = here
    corners = np.stack([total[:, :, r::2, q::2] for r in (0, 1) for q in (0, 1)])
    best = corners.max(0)
    return np.maximum(best, 0), np.where(best > 0, corners.argmax(0), -1)


def weight_gradient_in_order(x, gradient, corner, k=5):
    blocks, outputs, ph, pw, _ = gradient.shape
    inputs = x.shape[1]
    total = np.zeros((outputs, inputs, k, k, LANES), np.float32)
    for block in range(blocks):
        here = np.zeros_like(total)
        for py, px, i in product(range(ph), range(pw), range(4)):
            at = block, slice(None), py, px
            above = np.where(corner[at] == i, gradient[at], np.float32(0))
            y, z = 2 * py + i // 2, 2 * px + i % 2
            under = x[block, :, y : y + k, z : z + k]
            here = fused(above[:, None, None, None], under, here)
        total = total + here
    half = total[..., :8] + total[..., 8:]
    quarter = half[..., :4] + half[..., 4:]
    return (quarter[..., 0] + quarter[..., 2]) + (quarter[..., 1] + quarter[..., 3])


def input_gradient_in_order(gradient, corner, weight):
    blocks, outputs, ph, pw, _ = gradient.shape
    k, inputs = weight.shape[-1], weight.shape[1]
    spread = np.zeros((blocks, outputs, 2 * ph, 2 * pw, LANES), np.float32)
    for i in range(4):
        spread[:, :, i // 2 :: 2, i % 2 :: 2] = np.where(corner == i, gradient, 0)
    height, width = 2 * ph + k - 1, 2 * pw + k - 1
    total = np.zeros((blocks, inputs, height, width, LANES), np.float32)
    for o, ky, kx in product(range(outputs), range(k), range(k)):
        at = total[:, :, ky : ky + 2 * ph, kx : kx + 2 * pw]
        scale = weight[o, :, ky, kx, None, None, None]
        at[:] = fused(spread[:, [o]], scale, at)
    return total


def bias_gradient(gradient, corner):
    return np.where(corner < 0, 0, gradient).sum((0, 2, 3, 4), dtype=float)


@needs_loops
@settings(max_examples=10)
@given(
    st.integers(0, 1000),
    st.tuples(st.integers(1, 3), st.sampled_from([12, 16]), st.sampled_from([12, 20])),
    st.tuples(st.integers(1, 7), st.integers(1, 9)),
    st.integers(1, 35),
)
def test_the_bits_are_those_of_fused_multiply_adds_in_the_order_that_is_said(
    seed, shape, outputs, n
):
    given_ = parameters, samples, gradient = layers(seed, shape, outputs, n)
    weight1, bias1, weight2, bias2 = (p.numpy() for p in parameters)
    x = np.pad(lanes_of(samples.numpy()), ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0)))
    pooled1, corner1 = forward_in_order(x, weight1, bias1)
    pooled2, corner2 = forward_in_order(pooled1, weight2, bias2)
    above2 = lanes_of(gradient.numpy().reshape(n, *pooled2.shape[1:4]))
    above1 = input_gradient_in_order(above2, corner2, weight2)
    features = np.moveaxis(pooled2, -1, 1).reshape(-1, gradient.shape[1])[:n]
    second = weight_gradient_in_order(pooled1, above2, corner2)
    first = weight_gradient_in_order(x, above1, corner1)
    for loops in widths():
        played = [tensor.numpy() for tensor in play(loops, *given_)]
        assert np.array_equal(played[0], features)
        assert np.array_equal(played[3], second)
        assert np.array_equal(played[1], first)
        for at, above, corner in ((2, above1, corner1), (4, above2, corner2)):
            total = bias_gradient(above, corner)
            np.testing.assert_allclose(played[at], total, rtol=1e-5, atol=1e-4)


@needs_loops
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_comes_out_as_from_pytorch(value):
    parameters, samples, gradient = layers(2, (1, 12, 12), (2, 2), 3)
    samples[1, 0, 5, 5] = value
    x = F.max_pool2d(F.conv2d(samples, *parameters[:2], padding=2).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, *parameters[2:]).relu(), 2)
    for loops in widths():
        maps = play(loops, parameters, samples, gradient)[0]
        torch.testing.assert_close(
            maps, x.flatten(1), rtol=1e-4, atol=1e-4, equal_nan=True
        )
        assert not maps[1].isfinite().all()
