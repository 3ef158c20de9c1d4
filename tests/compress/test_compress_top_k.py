"""Exact Top-K: the first k of a stable sort by falling magnitude, by every path through
the code.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from simfed import InputError
from simfed.compress import selection, top_k_indices


def stable_sort_top_k(values, k):
    return np.sort(np.argsort(-np.abs(values.astype(np.float64)), kind="stable")[:k])


@contextmanager
def sampled_path():
    """Small vectors take the path that large ones take."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("_DIRECT_BELOW", 1),
            ("_SAMPLE_AT_MOST", 16),
            ("_SAMPLE_ONE_IN", 1),
            ("_BLOCK", 8),
        ):
            patch.setattr(selection, name, value)
        yield


def vectors():
    """Flat vectors with many ties, both zeros, the smallest and the largest finite
    numbers.
    """
    tied = st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 2.0, 2.0**-149, -(2.0**-149), (2 - 2.0**-23) * 2.0**127]
    )

    def finite(width):
        return st.floats(allow_nan=False, allow_infinity=False, width=width)

    entries = (
        (np.float32, tied),
        *((np.dtype(f"f{width // 8}"), finite(width)) for width in (16, 32, 64)),
    )
    sizes = st.integers(1, 80)
    return st.one_of(
        *(hnp.arrays(dtype, sizes, elements=numbers) for dtype, numbers in entries)
    )


@given(values=vectors(), k=st.integers(1, 90))
def test_equals_a_stable_sort(values, k):
    indices = top_k_indices(values, k)
    assert indices.dtype == np.int64
    assert indices.tolist() == stable_sort_top_k(values, k).tolist()


@given(data=st.data(), values=vectors().filter(lambda v: v.dtype == np.float32))
def test_no_threshold_however_wrong_changes_the_result(data, values):
    k = data.draw(st.integers(1, len(values)))
    of_some_entry = np.abs(values).view(np.uint32)[data.draw(st.integers(0, k - 1))]
    # of a sample's entries; the largest float's successor is infinity's pattern, which
    # none has
    largest = np.float32(np.finfo(np.float32).max).view(np.uint32)
    above = min(of_some_entry + np.uint32(1), largest)
    threshold = data.draw(st.sampled_from([of_some_entry, above]))
    with sampled_path(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_threshold_below_kth", lambda raw, k: threshold)
        indices = top_k_indices(values, k)
    assert indices.tolist() == stable_sort_top_k(values, k).tolist()


RNG = np.random.default_rng(0)
LARGE = 2**18 + 12345
NORMAL = RNG.standard_normal(LARGE, dtype=np.float32)
VECTORS = {
    "normal": NORMAL,
    "all equal": np.full(LARGE, -0.25, np.float32),
    "mostly zero": np.where(RNG.random(LARGE) < 0.95, np.float32(0), NORMAL),
    "rising": np.arange(LARGE, dtype=np.float32),
    "one large stretch": np.where(np.arange(LARGE) < 3000, np.float32(9), NORMAL),
}


@pytest.mark.parametrize("name", VECTORS)
def test_large_vectors_of_any_shape(name):
    values = VECTORS[name]
    for k in (1, 37, 3000, LARGE // 5, LARGE - 1):
        assert np.array_equal(top_k_indices(values, k), stable_sort_top_k(values, k))


def test_views_are_read_as_they_are():
    values = np.arange(20.0, dtype=np.float32)
    assert top_k_indices(values[::-2], 2).tolist() == [0, 1]
    values.setflags(write=False)
    assert top_k_indices(values, 2).tolist() == [18, 19]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_entries_that_are_not_finite_are_refused(bad, k):
    sentence = rf"got {abs(bad)}, expected finite entries"
    for at in (0, 39, slice(None)):
        values = np.zeros(40, np.float32)
        values[at] = bad
        with pytest.raises(InputError, match=sentence):
            top_k_indices(values, k)
        with sampled_path(), pytest.raises(InputError, match=sentence):
            top_k_indices(values, k)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_give_tensors(dtype):
    import torch

    values = torch.randn(500, generator=torch.Generator().manual_seed(0)).to(
        getattr(torch, dtype)
    )
    values[::7] = values[3]
    indices = top_k_indices(values.requires_grad_(), 50)
    assert isinstance(indices, torch.Tensor)
    assert (
        indices.tolist()
        == stable_sort_top_k(values.detach().double().numpy(), 50).tolist()
    )


@given(values=vectors().filter(lambda v: v.dtype == np.float32), k=st.integers(1, 80))
def test_the_kernels_for_accelerators_give_the_same(values, k):
    import torch

    k = min(k, len(values))
    indices = selection.select_top_k_on_device(torch.from_numpy(values), k)
    assert indices.tolist() == stable_sort_top_k(values, k).tolist()


@pytest.mark.gpu
def test_cuda_gives_the_same_indices():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rng = np.random.default_rng(0)
    values = np.round(100 * rng.standard_normal(500_000, dtype=np.float32))
    on_device = top_k_indices(torch.from_numpy(values).cuda(), 4321)
    assert on_device.device.type == "cuda"
    assert np.array_equal(on_device.cpu().numpy(), top_k_indices(values, 4321))
