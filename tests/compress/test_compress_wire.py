"""Charged bytes are arithmetic.

The encoders produce exactly as many; the decoders read them back.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.compress import (
    Dense,
    Payload,
    RandomK,
    TopK,
    codec_from_spec,
    with_error_feedback,
)
from simfed.ground.vocabulary import INDEX_CODES

CODES = [code for code in INDEX_CODES if code != "ideal"]


def size_bytes(strategy, d, k, code):
    return codec_from_spec(strategy).size_bytes(d, k, code)


def encode(strategy, indices, d, code):
    """Zeros at these indices as they travel."""
    values = np.zeros(len(indices), np.float32)
    return Payload(strategy, d, np.array(indices, np.int64), values).encoded(code)


def decode(strategy, data, d, k, code, state=None):
    return codec_from_spec(strategy).from_bytes(data, d, k, code, state=state)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ideal", 1000 * (32 + math.log2(61_706)) / 8),
        ("fixed", 4000 + 1000 * 16 / 8),
        ("rice", None),
        ("seeded", 4000 + 8),
    ],
)
def test_sizes_of_1000_random_entries_of_lenet5(code, expected):
    assert size_bytes("random-k", 61_706, 1000, code) == expected
    assert size_bytes("periodic-k", 61_706, 1000, code) == expected


def test_top_k_has_no_seed_and_falls_back_to_fixed():
    assert size_bytes("top-k", 61_706, 1000, "seeded") == 6000


def test_ideal_is_not_rounded():
    assert size_bytes("top-k", 3, 1, "ideal") == (32 + math.log2(3)) / 8


@pytest.mark.parametrize(
    ("d", "width"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (2**20 + 1, 21)]
)
def test_fixed_rounds_the_width_up_and_the_payload_to_bytes(d, width):
    k = min(d, 3)
    assert size_bytes("top-k", d, 3, "fixed") == 4 * k + math.ceil(k * width / 8)


@pytest.mark.parametrize("code", INDEX_CODES)
def test_dense_costs_its_values_alone(code):
    assert size_bytes("dense", 1000, 3, code) == 4000


def test_k_beyond_d_is_d():
    assert size_bytes("top-k", 10, 50, "fixed") == 45


def payload_of(strategy, d, k, seed=0, plays=1):
    rng, state = np.random.default_rng(seed), None
    residual = np.zeros(d, np.float32)
    for _ in range(plays):
        g = rng.standard_normal(d, dtype=np.float32)
        payload = with_error_feedback(strategy()).encode_in_place(
            g, residual, k, rng, state=state
        )
        state = payload.state
    return payload


@given(data=st.data())
def test_any_index_set_survives_in_a_long_vector(data):
    d = data.draw(st.sampled_from([2**16, 2**32 - 5, 2**32, 2**40]))
    indices = np.array(
        sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1, max_size=20)))
    )
    for code in ("fixed", "rice"):
        encoded = encode("top-k", indices, d, code)
        assert len(encoded) == Payload("top-k", d, indices, None).wire_bytes(code)
        assert np.array_equal(
            decode("top-k", encoded, d, len(indices), code).indices, indices
        )


def slow_rice_bits(indices, parameter):
    """The quotients in unary, then the remainders, as text."""
    gaps = [b - a - 1 for a, b in zip([-1, *indices], indices, strict=False)]
    unary = "".join("0" * (gap >> parameter) + "1" for gap in gaps)
    if not parameter:
        return unary
    return unary + "".join(format(gap % 2**parameter, f"0{parameter}b") for gap in gaps)


@given(indices=st.sets(st.integers(0, 5000), min_size=1, max_size=60).map(sorted))
def test_rice_equals_a_slow_encoder_with_the_best_parameter(indices):
    best = min(range(14), key=lambda parameter: len(slow_rice_bits(indices, parameter)))
    text = slow_rice_bits(indices, best)
    text += "0" * (-len(text) % 8)
    expected = bytes([best]) + int(text, 2).to_bytes(len(text) // 8, "big")
    data = encode("top-k", indices, 5001, "rice")
    assert data[4 * len(indices) :] == expected


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("strategy", [TopK, RandomK, Dense])
def test_data_cut_short_or_too_long_is_refused(strategy, code):
    payload = payload_of(strategy, 200, 20)
    data = payload.encoded(code)
    for wrong in (data[:-1], data[:7], b"", data + b"\0"):
        with pytest.raises(InputError, match=r"a payload of|a Rice code of"):
            decode(payload.strategy, wrong, 200, 20, code)


def test_indices_that_no_encoder_wrote_are_refused():
    values = np.zeros(2, "<f4").tobytes()
    unsorted, beyond = bytes([5, 3]), bytes([5, 250])
    for tail in (unsorted, beyond):
        with pytest.raises(InputError, match="sorted, distinct indices from 0 to 199"):
            decode("top-k", values + tail, 200, 2, "fixed")


@pytest.mark.parametrize("indices", [[], [3, 3], [4, 2], [-1, 2], [1, 200]])
def test_indices_that_are_none_are_not_encoded(indices):
    with pytest.raises(InputError, match="sorted, distinct indices"):
        encode("top-k", indices, 200, "fixed")


def test_errors_say_what_is_allowed():
    with pytest.raises(
        InputError,
        match=r"an index code: ideal, fixed, .*did you mean "
        r"'fixed'",
    ):
        size_bytes("top-k", 10, 1, "fixd")
    with pytest.raises(
        InputError, match=r"no codec 'topk', expected top-k, .*did you mean 'top-k'"
    ):
        size_bytes("topk", 10, 1, "ideal")
    with pytest.raises(
        InputError, match="got 'ideal', expected an index code with an encoder"
    ):
        decode("top-k", bytes(12), 2**16, 2, "ideal")
    with pytest.raises(InputError, match="seed"):
        encode("random-k", [1], 10, "seeded")
