"""Charged bytes are arithmetic.

The encoders produce exactly as many; the decoders read them back.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.compress import Payload, codec_from_spec


def encode(indices, d, code):
    """Zeros at these indices as they travel."""
    values = np.zeros(len(indices), np.float32)
    return Payload("top-k", d, np.array(indices, np.int64), values).encoded(code)


@pytest.mark.parametrize(
    ("d", "width"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (2**20 + 1, 21)]
)
def test_fixed_rounds_the_width_up_and_the_payload_to_bytes(d, width):
    k, size_bytes = min(d, 3), codec_from_spec("top-k").size_bytes
    assert size_bytes(d, 3, "fixed") == 4 * k + math.ceil(k * width / 8)
    assert size_bytes(d, 3, "ideal") == k * (32 + math.log2(d)) / 8


@given(data=st.data())
def test_any_index_set_survives_in_a_long_vector(data):
    d = data.draw(st.sampled_from([2**16, 2**32 - 5, 2**32, 2**40]))
    indices = np.array(
        sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1, max_size=20)))
    )
    for code in ("fixed", "rice"):
        encoded = encode(indices, d, code)
        assert len(encoded) == Payload("top-k", d, indices, None).wire_bytes(code)
        read = codec_from_spec("top-k").from_bytes(encoded, d, len(indices), code)
        assert np.array_equal(read.indices, indices)


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
    data = encode(indices, 5001, "rice")
    assert data[4 * len(indices) :] == expected
