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


def update(seed=0):
    return np.random.default_rng(seed).standard_normal(D).astype(np.float32)


def test_a_payload_is_that_of_each_layer_by_the_first_pattern_that_matches():
    codec = codec_from_spec({"layers": {"conv1.weight": "random-k@4", **PLAIN}})
    vector = update()
    payload, _ = codec.encode(vector, None, np.random.default_rng(1), 7, layout=SHAPES)
    sent = codec.decode(payload)
    assert np.count_nonzero(sent[:36]) == 4
    assert np.count_nonzero(sent[36:40]) == 1  # a quarter of a bias of four
    assert (
        sent[36:40][np.argmax(np.abs(vector[36:40]))]
        == vector[36:40][np.argmax(np.abs(vector[36:40]))]
    )
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
        rng = np.random.default_rng(round)
        payload, after = codec.encode(update(round), state, rng, 1, layout=SHAPES)
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
    _, state = codec.encode(update(0), None, np.random.default_rng(0), 1, layout=SHAPES)
    second, _ = codec.encode(
        update(1), state, np.random.default_rng(1), 1, layout=SHAPES
    )
    undone = codec.undo(second)
    third, _ = codec.encode(
        update(1), undone, np.random.default_rng(1), 1, layout=SHAPES
    )
    np.testing.assert_array_equal(codec.decode(second), codec.decode(third))


def test_work_is_charged_by_pattern_at_the_density_of_its_layers():
    codec = PerLayer.read({"conv*": "top-k@10%", "fc*": "qsgd"})
    conv, fc = codec.parts(D, 1, SHAPES)
    assert conv == ("top-k", round(5 * D / 40), 40 / D)  # 4 of 36 entries, 1 of 4
    assert fc == ("qsgd(16)", D, 70 / D)


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        (
            {"conv2*": "qsgd"},
            r"got 'conv2\*', expected a pattern of the model's layers: conv1.weight",
        ),
        ({"fc1.weigth": "qsgd"}, r"did you mean 'fc1.weight'"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(plain, sentence):
    with pytest.raises(InputError, match=sentence):
        PerLayer.read(plain).size_bytes(D, 1, "fixed", SHAPES)


@pytest.mark.parametrize("layout", [None, [(D,)], Layers([(D,)], ())])
def test_layers_need_names(layout):
    with pytest.raises(InputError, match="a field whose layers have names"):
        PerLayer.read(PLAIN).size_bytes(D, 1, "fixed", layout)
