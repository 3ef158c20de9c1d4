"""What a codec's error may be: unbiased or contractive, at a stated confidence.

Means over independent draws are held against their bound with 4.5 of their own standard
errors to spare: a right codec fails once in 150,000 such comparisons (one-sided:
300,000).
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed.compress import codec_from_spec

SIGMAS = 4.5
DRAWS = 200

shapes_of_vectors = st.sampled_from(["normal", "heavy", "sparse", "one", "equal"])


def vector(kind, n, seed):
    rng = np.random.default_rng(seed)
    drawn = {
        "normal": rng.standard_normal(n),
        "heavy": rng.standard_t(1.5, n),
        "sparse": rng.standard_normal(n) * (rng.random(n) < 0.1),
        "one": np.eye(1, n, int(rng.integers(n)))[0],
        "equal": np.full(n, 0.5) * rng.choice([-1, 1], n),
    }[kind]
    return drawn.astype(np.float32)


def draws_of(codec, x, k, seed):
    """Decoded vectors of independent first plays."""
    for i in range(DRAWS):
        rng = np.random.default_rng([seed, i])
        yield codec.encode(x, None, rng, k)[0].dense().astype(float)


def square(x):
    return float((x.astype(float) ** 2).sum())


def relative_errors(codec, x, k, seed):
    size = square(x) or np.inf
    return np.array([square(q - x) / size for q in draws_of(codec, x, k, seed)])


def at_most(errors, bound):
    spare = SIGMAS * errors.std() / math.sqrt(len(errors)) + 1e-5
    return errors.mean() <= bound + spare


@pytest.mark.parametrize(
    ("spec", "levels", "bucket"),
    [
        ({"qsgd": {"levels": 2}}, 2, 512),
        ({"qsgd": {"levels": 16, "bucket": 7}}, 16, 7),
        ({"qsgd": {"levels": 500}}, 500, 512),
        ({"terngrad": {"clip": None}}, 1, None),
    ],
)
@settings(max_examples=3, deadline=None)
@given(kind=shapes_of_vectors, n=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_the_mean_of_what_is_received_is_what_was_sent(
    spec, levels, bucket, kind, n, seed
):
    """Unbiased in every entry.

    Bernstein's bound holds for any number of draws: a right codec fails in one of a
    million examples.
    """
    x = vector(kind, n, seed).astype(float)
    parts = [x[i : i + bucket] for i in range(0, n, bucket)] if bucket else [x]
    sizes = [math.sqrt((p**2).sum()) if bucket else np.abs(p).max() for p in parts]
    step = np.repeat(sizes, [len(p) for p in parts]) / levels
    share = np.divide(x, step, out=np.zeros(n), where=step > 0) % 1.0
    variance = step**2 * share * (1 - share)
    log = math.log(2 * n / 1e-6)
    spare = (
        log * step / 3 + np.sqrt((log * step / 3) ** 2 + 2 * DRAWS * log * variance)
    ) / DRAWS
    received = (
        sum(draws_of(codec_from_spec(spec), x.astype(np.float32), 1, seed)) / DRAWS
    )
    assert (np.abs(received - x) <= spare + 1e-6 * levels * step).all()


@pytest.mark.parametrize(("levels", "bucket"), [(2, 512), (4, 20), (16, 512), (100, 7)])
@settings(max_examples=3, deadline=None)
@given(kind=shapes_of_vectors, n=st.integers(1, 600), seed=st.integers(0, 10**6))
def test_the_variance_of_qsgd_is_below_that_of_its_paper(levels, bucket, kind, n, seed):
    codec = codec_from_spec({"qsgd": {"levels": levels, "bucket": bucket}})
    m = min(n, bucket)
    beta = min(m / levels**2, math.sqrt(m) / levels)
    x = vector(kind, n, seed)
    assert at_most(relative_errors(codec, x, 1, seed), beta)
    shrunk = relative_errors(codec.under_feedback(), x, 1, seed)
    assert at_most(shrunk, 1 - 1 / (1 + beta))


def delta(label, n, k, x):
    """1 − δ bounds E‖C(x) − x‖² / ‖x‖²."""
    share = min(k, n) / n
    if label == "ef-sign":
        return np.abs(x.astype(float)).sum() ** 2 / (n * (square(x) or 1.0))
    if label in ("fp16", "bf16"):
        return 1 - 2.0 ** (-22 if label == "fp16" else -16) - 1e-6
    if "qsgd(4)" in label:
        m = min(k, n, 512)
        return share / (1 + min(m / 16, math.sqrt(m) / 4))
    if "fp16" in label:
        return share * (1 - 2.0**-22) - 1e-6
    return share


@pytest.mark.parametrize(
    "label",
    [
        *("top-k", "dense", "ef-sign", "fp16", "bf16"),
        *("random-k", "periodic-k", "random-k+fp16"),
        *("top-k+qsgd(4)", "random-k+qsgd(4)"),
    ],
)
@settings(max_examples=3, deadline=None)
@given(
    kind=shapes_of_vectors,
    n=st.integers(1, 200),
    k=st.integers(1, 220),
    seed=st.integers(0, 10**6),
)
def test_the_error_contracts(label, kind, n, k, seed):
    codec = codec_from_spec(label).under_feedback()
    x = vector(kind, n, seed)
    k = n if label == "dense" else min(k, n)
    errors = relative_errors(codec, x, k, seed)
    assert at_most(errors, 1 - delta(label, n, k, x))
    if label in ("top-k", "ef-sign", "fp16", "bf16", "dense"):
        # nothing is drawn: the bound holds each time
        assert errors.max() == errors.min()


@pytest.mark.parametrize("label", ["ef21(top-k)", "ef21(random-k)", "ef21(ef-sign)"])
def test_the_estimate_of_ef21_comes_closer_by_the_contraction_of_its_codec(label):
    codec, state, n, k = codec_from_spec(label), None, 100, 10
    x, last = vector("normal", n, 0), math.inf
    for play in range(60):
        payload, state = codec.encode(x, state, np.random.default_rng(play), k)
        error = square(payload.dense() - x)
        assert error <= last * (1 + 1e-6)
        last = error
    # a random selection may lag by some plays
    assert last <= square(x) * (1 - k / n) ** 60 * 30
