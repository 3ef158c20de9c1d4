"""Every codec's rule beside a few lines that say the same slowly."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.compress import (
    BF16,
    DGC,
    EF21,
    FP16,
    QSGD,
    SVD,
    AdaComp,
    DetachedEF,
    EFSign,
    PowerSGD,
    TernGrad,
    bits,
    codec_from_spec,
    random_k_indices,
    top_k_indices,
)
from simfed.compress.codec import wrap_as_codec

F = np.float32


def normal(n, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(F)


def decoded(codec, update, rng=None, k=1, **more):
    return wrap_as_codec(codec).encode(update, None, rng, k, **more)[0].dense()


def rng_of(seed):
    return np.random.default_rng([7, seed])


# ---- bits ----------------------------------------------------------------------------


@given(st.integers(0, 20), st.lists(st.integers(0, 2**20 - 1), min_size=1, max_size=50))
def test_packed_bits_are_the_numbers_in_binary(width, numbers):
    numbers = [n % 2**width for n in numbers]
    text = "".join(format(n, f"0{width}b") if width else "" for n in numbers)
    text += "0" * (-len(text) % 8)
    expected = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    assert bits.pack(np.array(numbers), width) == expected
    assert bits.unpack(expected, len(numbers), width).tolist() == numbers


def test_packing_goes_on_over_blocks():
    numbers = np.random.default_rng(0).integers(0, 2**11, 100_003)
    data = bits.pack(numbers, 11)
    assert len(data) == math.ceil(11 * 100_003 / 8)
    assert np.array_equal(bits.unpack(data, len(numbers), 11), numbers)


# ---- value codecs --------------------------------------------------------------------


@given(
    n=st.integers(1, 70),
    levels=st.integers(2, 300),
    bucket=st.integers(1, 80),
    seed=st.integers(0, 99),
)
def test_qsgd_rounds_to_a_neighbouring_level_of_its_bucket(n, levels, bucket, seed):
    x = normal(n, seed)
    x[::5] = 0
    q = decoded(QSGD(levels, bucket), x, rng_of(seed)).astype(float)
    for start in range(0, n, bucket):
        part, sent = x[start : start + bucket].astype(float), q[start : start + bucket]
        step = math.sqrt((part**2).sum()) / levels
        assert (np.abs(sent - part) <= step * (1 + 1e-4)).all()
        whole = sent / step if step else sent
        assert np.abs(whole - np.rint(whole)).max() < 1e-3 * levels
        assert (sent[part == 0] == 0).all()


def test_terngrad_clips_and_draws_signs_of_the_layers_maximum():
    x, layers = normal(60, 3), (slice(0, 40), slice(40, 60))
    x[7], x[50] = 9.0, -8.0
    m = np.concatenate([0 * x[part] + 2.5 * x[part].std() for part in layers])
    for seed in range(20):
        q = decoded(TernGrad(), x, rng_of(seed), layout=[(4, 10), (20,)])
        assert np.allclose(q, np.sign(x) * m * (q != 0), rtol=1e-5)
        assert q[[7, 50]].all()


@given(n=st.integers(1, 300), seed=st.integers(0, 99))
def test_ef_sign_is_the_mean_magnitude_with_signs(n, seed):
    x = normal(n, seed)
    x[::7] = -0.0
    expected = np.abs(x.astype(float)).mean() * np.where(x >= 0, 1, -1)
    assert np.allclose(decoded(EFSign(), x), expected, rtol=1e-5)


@pytest.fixture(params=["with torch", "without torch"])
def torch_or_not(request, monkeypatch):
    import torch

    if request.param == "without torch":
        monkeypatch.delitem(sys.modules, "torch")
    return torch


def test_half_floats_are_those_of_numpy_and_of_torch(torch_or_not):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(F)
    x = np.concatenate(
        [every[np.isfinite(every)], normal(5000, scale=300), normal(5000, scale=1e-7)]
    )
    assert decoded(FP16(), x).tobytes() == x.astype(np.float16).astype(F).tobytes()
    expected = torch_or_not.from_numpy(x).bfloat16().float().numpy()
    assert decoded(BF16(), x).tobytes() == expected.tobytes()


def test_beyond_the_largest_half_float_is_the_largest(torch_or_not):
    assert decoded(FP16(), np.array([1e6, -1e30, 65504], F)).tolist() == [
        65504,
        -65504,
        65504,
    ]
    largest = float(decoded(BF16(), np.array([3.4e38], F))[0])
    assert math.isfinite(largest)
    assert largest == float(torch_or_not.finfo(torch_or_not.bfloat16).max)


def test_a_value_codec_behind_a_selection_sees_the_chosen_values_alone():
    x = normal(500)
    chain = codec_from_spec("top-k+qsgd(4)")
    payload, _ = chain.encode(x, None, rng_of(0), 30)
    chosen = top_k_indices(x, 30)
    assert payload.indices.tolist() == chosen.tolist()
    assert np.array_equal(payload.values, decoded(QSGD(4), x[chosen], rng_of(0)))
    shrunk, _ = chain.under_feedback().encode(x, None, rng_of(0), 30)
    beta = min(30 / 16, math.sqrt(30) / 4)
    assert np.allclose(shrunk.values * (1 + beta), payload.values, rtol=1e-5)


# ---- codecs with a memory of their own -----------------------------------------------


@given(
    n=st.integers(1, 80),
    k=st.integers(1, 90),
    seed=st.integers(0, 99),
    clip=st.sampled_from([None, 2.0]),
)
def test_dgc_is_momentum_accumulated_and_masked(n, k, seed, clip):
    k = min(k, n)
    u, v, state = np.zeros(n, F), np.zeros(n, F), None
    codec = DGC(momentum=0.5, clip=clip, warmup=2)
    for play in range(5):
        g = normal(n, [seed, play])
        payload, state = codec.encode(g, state, None, k)
        norm = math.sqrt((g.astype(float) ** 2).sum())
        g = g * F(min(1, clip / norm)) if clip else g
        u = F(0.5) * u + g
        v = v + u
        count = max(k, int(n * 0.25 ** (play + 1))) if play < 2 else k
        chosen = np.sort(np.argsort(-np.abs(v), kind="stable")[:count])
        assert payload.indices.tolist() == chosen.tolist()
        assert np.allclose(payload.values, v[chosen], rtol=1e-6)
        u[chosen] = v[chosen] = 0
        assert np.allclose(state.arrays["total"], v, rtol=1e-6)
        assert np.allclose(state.arrays["momentum"], u, rtol=1e-6)


@given(n=st.integers(1, 60), size=st.integers(1, 20), seed=st.integers(0, 99))
def test_adacomp_sends_what_reaches_its_bins_maximum_with_the_last_gradient(
    n, size, seed
):
    error, state = np.zeros(n, F), None
    layers = [(0, n // 2, size), (n // 2, n, 3)] if n > 1 else [(0, 1, size)]
    layout = [(n // 2,), (n - n // 2, 1, 1)] if n > 1 else [(1,)]
    for play in range(4):
        g = np.rint(normal(n, [seed, play], 9))  # some ties and zeros
        payload, state = AdaComp(bin=size, conv_bin=3).encode(
            g, state, None, 1, layout=layout
        )
        total = error + g
        sent = {}
        for begin, end, width in layers:
            bins = [range(i, min(i + width, end)) for i in range(begin, end, width)]
            largest = [max(abs(total[i]) for i in bin) for bin in bins]
            scale = sum(largest) / len(largest)
            for bin, most in zip(bins, largest, strict=True):
                for i in bin:
                    if most > 0 and abs(total[i] + g[i]) >= most:
                        sent[i] = math.copysign(scale, total[i])
        if not sent:
            assert payload.dense().tolist() == [0.0] * n
            continue
        assert payload.indices.tolist() == sorted(sent)
        assert np.allclose(payload.values, [sent[i] for i in sorted(sent)], rtol=1e-6)
        error = total - payload.dense()
        assert np.array_equal(state.arrays["error"], error)


@pytest.mark.parametrize("inner", ["top-k", "random-k", "qsgd(4)"])
def test_ef21_sends_what_changed_and_the_receiver_adds_it_up(inner):
    estimate, state = np.zeros(40, F), None
    codec = EF21(inner)
    contracting = codec_from_spec(inner).under_feedback()
    for play in range(6):
        g = normal(40, play)
        payload, state = codec.encode(g, state, rng_of(play), 5)
        estimate = estimate + decoded(contracting, g - estimate, rng_of(play), 5)
        assert np.array_equal(payload.dense(), estimate)
        assert np.array_equal(state.arrays["estimate"], estimate)


def test_detached_feedback_sends_random_entries_and_says_where_to_take_the_gradient():
    error, state, codec = np.zeros(40, F), None, DetachedEF(weight=0.25)
    assert codec.point(None) is None
    for play in range(6):
        g = normal(40, play)
        payload, state = codec.encode(g, state, rng_of(play), 5)
        error = error + g
        sent = decoded(codec_from_spec("random-k"), error, rng_of(play), 5)
        assert np.array_equal(payload.dense(), sent)
        error = error - sent
        assert np.array_equal(codec.point(state), F(0.25) * error)
    assert len(random_k_indices(40, 5, rng_of(0))) == payload.k
    assert DetachedEF(weight=0).point(state) is None


# ---- low rank ------------------------------------------------------------------------


def matrix_of(rows, columns, rank, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))
    ).astype(F)


def test_powersgd_is_one_step_of_power_iteration():
    m, vector = normal(12 * 18).reshape(12, 18), normal(5, 1)
    layout, state = [(12, 2, 9), (5,)], None
    q = rng_of(0).standard_normal((18, 3), dtype=F)
    for play in range(3):
        payload, state = PowerSGD(3).encode(
            np.concatenate([m.ravel(), vector]), state, rng_of(play), layout=layout
        )
        p = np.linalg.qr(m @ q)[0]
        q = m.T @ p
        decoded = payload.dense()
        assert np.allclose(decoded[:216].reshape(12, 18), p @ p.T @ m, atol=1e-4)
        assert np.array_equal(decoded[216:], vector)


@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
@pytest.mark.parametrize("rank", [1, 3])
def test_svd_is_the_best_approximation_of_its_rank(shape, rank):
    m = matrix_of(*shape, 9)
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    best = u[:, :rank] * s[:rank] @ vt[:rank]
    update = decoded(SVD(rank), m.ravel(), layout=[shape])
    assert np.allclose(update.reshape(shape), best, atol=1e-4 * s[0])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_svd_keeps_the_fewest_values_that_exceed_an_energy_share(share):
    m = matrix_of(16, 50, 16)
    energies = np.linalg.svd(m, compute_uv=False).astype(float) ** 2
    payload, _ = SVD(energy=share).encode(m.ravel(), layout=[m.shape])
    [factors] = payload.symbols
    rank = factors.right.shape[1] if factors.right is not None else 16
    cumulated = np.cumsum(energies) / energies.sum()
    fewest = int(np.argmax(cumulated > share)) + 1
    assert rank == (fewest if fewest * 66 < 800 else 16)
    error = float(((payload.dense() - m.ravel()) ** 2).sum() / energies.sum())
    assert error < 1 - share


def test_a_matrix_whose_factors_are_no_smaller_travels_whole():
    m = normal(6 * 5)
    payload, _ = SVD(3).encode(m, layout=[(6, 5)])
    assert payload.dense().tobytes() == m.tobytes()
    assert payload.wire_bytes("fixed") == 4 * 30
