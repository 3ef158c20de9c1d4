"""A codec for each layer: sizes are sums, what is left out stays, and patterns must
match.
"""

import numpy as np
import pytest

from simfed import InputError
from simfed.compress import PerLayer, codec_from_spec
from simfed.ground.method import Layers

NAMES = ("conv1.weight", "conv1.bias", "fc1.weight", "fc1.bias")
SHAPES = Layers([(4, 1, 3, 3), (4,), (10, 6), (10,)], NAMES)
D = 36 + 4 + 60 + 10
PLAIN = {"conv*": "top-k@25%", "fc*.weight": "qsgd(4)", "*": "dense"}


def update(seed):
    return np.random.default_rng(seed).standard_normal(D).astype(np.float32)


def encode(codec, round, state=None):
    rng = np.random.default_rng(round)
    return codec.encode(update(round), state, rng, 1, layout=SHAPES)


def test_a_payload_is_that_of_each_layer_by_the_first_pattern_that_matches():
    codec = codec_from_spec({"layers": {"conv1.weight": "random-k@4", **PLAIN}})
    vector, sent = update(1), codec.decode(encode(codec, 1)[0])
    assert np.count_nonzero(sent[:36]) == 4
    # a quarter of a bias of four
    at = 36 + np.abs(vector[36:40]).argmax()
    assert np.flatnonzero(sent[36:40]) == at - 36
    assert sent[at] == vector[at]
    assert 0 < np.abs(sent[40:100] - vector[40:100]).max() < 10
    np.testing.assert_array_equal(sent[100:], vector[100:])


@pytest.mark.parametrize("code", ["ideal", "fixed", "seeded"])
def test_the_size_is_the_sum_of_the_layers(code):
    codec = PerLayer.read(PLAIN)
    sizes = [
        codec_from_spec("top-k").size_bytes(36, 9, code),
        codec_from_spec("top-k").size_bytes(4, 1, code),
        codec_from_spec("qsgd(4)").size_bytes(60, 1, code),
        40.0,
    ]
    assert codec.size_bytes(D, 1, code, SHAPES) == pytest.approx(sum(sizes))


@pytest.mark.parametrize("code", ["fixed", "rice", "seeded"])
@pytest.mark.parametrize(
    "plain",
    [
        PLAIN,
        {"conv*": "periodic-k@5", "fc1.weight": {"svd": {"rank": 1}}},
        {"*.weight": "svd(energy=0.5)", "*.bias": "fp16"},
        {"*.weight": "random-k+fp16@10%", "*.bias": "ef-sign"},
    ],
)
def test_what_travels_is_what_is_charged_and_read_back(plain, code):
    codec, state = PerLayer.read(plain), None
    for round in range(3):
        payload, after = encode(codec, round, state)
        data = codec.to_bytes(payload, code)
        assert len(data) == codec.payload_bytes(payload, code)
        assert codec.size_bytes(D, 1, code, SHAPES) in (None, len(data))
        read = codec.from_bytes(data, D, 1, code, layout=SHAPES, state=state)
        np.testing.assert_array_equal(codec.decode(read), codec.decode(payload))
        with pytest.raises(InputError):
            codec.from_bytes(data + b"x", D, 1, code, layout=SHAPES, state=state)
        state = after
    assert codec_from_spec(codec.label).label == codec.label


def test_places_in_periods_are_kept_layer_by_layer_and_taken_back():
    codec = PerLayer.read({"fc1.weight": "periodic-k@7", "conv*": "periodic-k@3"})
    _, state = encode(codec, 0)
    second, _ = encode(codec, 1, state)
    third, _ = encode(codec, 1, codec.undo(second))
    np.testing.assert_array_equal(codec.decode(second), codec.decode(third))


def test_work_is_charged_by_pattern_at_the_density_of_its_layers():
    codec = PerLayer.read({"conv*": "top-k@10%", "fc*": "qsgd"})
    conv, fc = codec.parts(D, 1, SHAPES)
    assert conv == ("top-k", round(5 * D / 40), 40 / D)  # 4 of 36 entries, 1 of 4
    assert fc == ("qsgd(16)", D, 70 / D)
