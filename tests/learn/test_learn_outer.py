"""Products by a compiled loop: the bits of PyTorch, on every width of vectors."""

import pytest
import torch

from simfed import native
from simfed.learn.models import outer as products


@pytest.mark.skipif(native.layers() is None, reason="built without a C++ compiler")
@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize(
    "size", [(3, 10, 10, 784), (1, 32, 120, 400), (2, 5, 7, 37), (2, 5, 62, 16)]
)
def test_products_go_to_the_weights_as_a_step_of_its_own_brings_them(
    size, width, monkeypatch
):
    widest, loop = products._load_loop()
    monkeypatch.setattr(products, "_load_loop", lambda: (min(width, widest), loop))
    models, samples, outputs, inputs = size
    drawn = torch.Generator().manual_seed(1)
    outer = torch.randn(models, samples, outputs, generator=drawn)
    x = torch.randn(models, samples, inputs, generator=drawn)
    sums = torch.zeros(models, outputs, inputs)
    for sample in range(samples):  # rounded once, but for one in some 10⁸
        product = outer[:, sample, :, None].double() * x[:, sample, None].double()
        sums = (product + sums).float()
    apart = torch.empty(models, outputs * inputs + 3)[:, 3:].view(
        models, outputs, inputs
    )
    assert products.add_product(outer, x, apart, None)
    assert torch.equal(apart, sums)
    before = torch.randn(models, outputs, inputs, generator=drawn)
    after = before.clone()
    assert products.add_product(outer, x, after, -0.03)
    assert torch.equal(after, before.sub(sums, alpha=0.03))


@pytest.mark.parametrize(
    "size", [(1, 200, 10, 784), (1, 10, 4, 784), (1, 10, 10, 8), (1, 2, 10, 16)]
)
def test_products_that_libraries_add_up_otherwise_are_left_to_them(size):
    models, samples, outputs, inputs = size
    into = torch.zeros(models, outputs, inputs)
    x = torch.ones(models, samples, inputs)
    assert not products.add_product(torch.ones(models, samples, outputs), x, into, 1.0)
    assert not into.any()
