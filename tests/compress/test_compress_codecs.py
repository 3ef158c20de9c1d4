"""Codecs as scenarios write them.

Chains; what they weigh; what becomes of their error.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from simfed import InputError
from simfed.compress import (
    TopK,
    WithoutFeedback,
    codec_from_spec,
    feedback_for,
    undo,
    with_error_feedback,
)
from simfed.ground.vocabulary import INDEX_CODES

LAYOUT = ((6, 1, 5, 5), (6,), (30, 12), (10, 30), (10,))
D = sum(math.prod(shape) for shape in LAYOUT)
EVERY_KIND = [
    "top-k",
    "random-k",
    "periodic-k",
    "dense",
    "qsgd(16)",
    "qsgd(4,bucket=64)",
    "qsgd(300)",
    "terngrad(2.5)",
    "ef-sign",
    "fp16",
    "bf16",
    "top-k+qsgd(4)",
    "random-k+qsgd(4,bucket=64)",
    "periodic-k+ef-sign",
    "top-k+fp16",
    "random-k+bf16",
    "top-k+terngrad(2.5)",
    "dgc(0.9)",
    "dgc(0.5,warmup=0)",
    "adacomp(500)",
    "ef21(top-k)",
    "ef21(top-k+qsgd(4))",
    "ef21(qsgd(4))",
    "detached-ef(random-k)",
    "detached-ef(periodic-k+fp16)",
    "detached-ef(ef-sign)",
    "powersgd(2)",
    "svd(2)",
    "svd(energy=0.5)",
]
RESIDUAL = [
    c for c in EVERY_KIND if codec_from_spec(c).feedback in ("wanted", "optional")
]
OWN = [c for c in EVERY_KIND if codec_from_spec(c).feedback == "own"]


def gradient(round):
    return np.random.default_rng(round).standard_normal(D, dtype=np.float32)


def rng_of(round):
    return np.random.default_rng([99, round])


def encode(codec, update, state=None, round=0):
    """The payload and the state of one play."""
    return codec.encode(update, state, rng_of(round), 40, layout=LAYOUT)


# ---- names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("qsgd", "qsgd(16)"),
        ({"qsgd": {"levels": 16}}, "qsgd(16)"),
        ({"qsgd": None}, "qsgd(16)"),
        ({"chain": ["top-k", {"qsgd": {"levels": 4}}]}, "top-k+qsgd(4)"),
        ("random-k + fp16", "random-k+fp16"),
        ({"qsgd": {"levels": 4, "bucket": 64}}, "qsgd(4,bucket=64)"),
        ({"chain": ["dense", "fp16"]}, "fp16"),
        ({"chain": ["top-k"]}, "top-k"),
        ({"svd": {"energy": 0.9}}, "svd(energy=0.9)"),
        ({"terngrad": {"clip": None}}, "terngrad"),
        ({"ef21": {"inner": {"chain": ["top-k", "qsgd"]}}}, "ef21(top-k+qsgd(16))"),
        ({"detached-ef": {"weight": 1}}, "detached-ef(random-k,weight=1)"),
    ],
)
def test_a_spec_has_a_short_label(spec, label):
    assert codec_from_spec(spec).label == label


# ---- sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "code", "expected"),
    [
        ("qsgd(16)", "fixed", 4 * 121 + math.ceil(61_706 * 6 / 8)),
        ("qsgd(16)", "ideal", (32 * 121 + 61_706 * math.log2(33)) / 8),
        ("qsgd(16,bucket=64)", "fixed", 4 * 965 + math.ceil(61_706 * 6 / 8)),
        ("top-k+qsgd(4)", "fixed", 4 * 2 + 1000 * 4 / 8 + 1000 * 16 / 8),
        (
            "top-k+qsgd(4)",
            "ideal",
            (64 + 1000 * math.log2(9) + 1000 * math.log2(61_706)) / 8,
        ),
        ("random-k+fp16", "seeded", 2000 + 8),
        ("terngrad(2.5)", "fixed", 4 * 4 + math.ceil(61_706 * 2 / 8)),
        ("terngrad(2.5)", "ideal", (32 * 4 + 61_706 * math.log2(3)) / 8),
        ("top-k", "seeded", 6000),  # it has no seed
        *(
            (label, code, size)
            for label in ("random-k", "periodic-k")
            for code, size in (
                ("ideal", 1000 * (32 + math.log2(61_706)) / 8),
                ("fixed", 4000 + 1000 * 16 / 8),
                ("rice", None),
                ("seeded", 4000 + 8),
            )
        ),
        *(("dense", code, 4 * 61_706) for code in INDEX_CODES),
        ("ef-sign", "rice", 4 + math.ceil(61_706 / 8)),
        ("fp16", "seeded", 2 * 61_706),
        ("bf16", "ideal", 2 * 61_706),
        ("dgc(0.9,warmup=0)", "fixed", 4 + 6000),
        ("dgc(0.9)", "fixed", None),
        ("adacomp(500)", "fixed", None),
        ("ef21(top-k)", "fixed", 6000),
        ("detached-ef(random-k)", "seeded", 4008),
        ("powersgd(2)", "fixed", 4 * (2 * (6 + 25) + 6 + 2 * (61_540 // 10 + 10) + 10)),
        ("svd(energy=0.9)", "ideal", None),
    ],
)
def test_sizes_by_hand_with_k_of_1000(label, code, expected):
    layout = [(6, 1, 5, 5), (6,), (10, 6154), (10,)]
    assert sum(map(math.prod, layout)) == 61_706
    assert codec_from_spec(label).size_bytes(61_706, 1000, code, layout) == expected


@pytest.mark.parametrize("code", ["fixed", "rice", "seeded"])
@pytest.mark.parametrize("label", EVERY_KIND)
def test_data_cut_short_or_too_long_is_refused(label, code):
    codec = codec_from_spec(label)
    data = encode(codec, gradient(0))[0].encoded(code)
    for wrong in (data[:-1], data[:3], b"", data + b"\0"):
        with pytest.raises(InputError, match=r"a payload of|an? (Elias|Rice) code of"):
            codec.from_bytes(wrong, D, 40, code, layout=LAYOUT)


# ---- the error -----------------------------------------------------------------------


@pytest.mark.parametrize("label", EVERY_KIND)
def test_ideal_has_no_encoder(label):
    payload, _ = encode(codec_from_spec(label), gradient(0))
    with pytest.raises(InputError, match="an index code with an encoder"):
        payload.encoded("ideal")
    with pytest.raises(InputError, match="an index code: ideal, "):
        payload.wire_bytes("bitmpa")


@pytest.mark.parametrize("label", RESIDUAL)
def test_an_undone_play_gives_residual_and_state_back(label):
    feedback = with_error_feedback(codec_from_spec(label))
    residual = gradient(5)

    def play(rest, round, state=None):
        return feedback.encode_in_place(
            None, rest, 40, rng_of(round), state=state, layout=LAYOUT
        )

    first = play(residual, 0)
    residual += gradient(6)
    u = residual.copy()
    second = play(residual, 1, first.state)
    state = undo(residual, second)
    assert np.abs(residual - u).max() <= 1e-6 * np.abs(u).max()
    assert play(u, 1, state).dense().tobytes() == second.dense().tobytes()


@pytest.mark.parametrize("label", ["terngrad", "dgc", "adacomp", "ef21", "detached-ef"])
def test_a_codec_without_feedback_or_with_its_own_is_not_asked_for_residuals(label):
    why = "it goes without" if label == "terngrad" else "it keeps its own error"
    with pytest.raises(InputError, match=why):
        feedback_for(codec_from_spec(label), True)
    assert isinstance(feedback_for(codec_from_spec(label)), WithoutFeedback)


def test_residuals_can_be_left_out_on_purpose():
    player = feedback_for(TopK(), False)
    buffer = np.array([1.0, -4.0, 2.0], np.float32)
    payload = player.encode_in_place(None, buffer, 1)
    assert payload.dense().tolist() == [0.0, -4.0, 0.0]
    assert buffer.tolist() == [0.0, 0.0, 0.0]
    assert payload.codec.undo(payload) is None
    assert buffer.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("label", OWN)
def test_own_memory_taken_back_has_sent_nothing(label):
    """A loss and a silent round: the next upload is the same."""
    codec, update = codec_from_spec(label), gradient(1)
    _, state = encode(codec, gradient(0))
    lost, _ = encode(codec, update, state, 1)
    back, was = codec.undo(lost), state.arrays
    assert back.facts == state.facts
    if label.startswith(("detached", "adacomp")):
        expected = {"error": was["error"] + update}
    elif label.startswith("ef21"):
        expected = {"estimate": was["estimate"]}
    else:
        momentum = np.float32(codec.momentum) * was["momentum"] + update
        expected = {"momentum": momentum, "total": was["total"] + momentum}
    for name, array in expected.items():
        assert back.arrays[name].tobytes() == array.tobytes()
    again, _ = encode(codec, np.zeros(D, np.float32), back, 1)
    assert np.isfinite(again.dense()).all()


@pytest.mark.parametrize(
    "label",
    ["dgc(0,warmup=1)", "adacomp(500)", "ef21(top-k)", "detached-ef(periodic-k)"],
)
def test_own_memory_of_later_plays_loses_what_an_earlier_one_sent(label):
    """What is kept is what the lost play was to keep, and what the later one did to
    that.
    """
    codec = codec_from_spec(label)
    _, state = encode(codec, gradient(0))
    lost, state = encode(codec, gradient(1), state, 1)
    later, state = encode(codec, gradient(2), state, 2)
    left = {name: a.copy() for name, a in state.arrays.items()}
    undone = codec.undo(lost)
    without = codec.undo_earlier(state, undone, lost.dense())
    moved = gradient(2) - later.dense()
    if label.startswith("ef21"):
        moved = later.dense() - lost.dense()
    [name] = {"total", "error", "estimate"} & without.arrays.keys()
    expected = undone.arrays[name] + moved
    assert np.abs(without.arrays[name] - expected).max() < 1e-5
    assert without.facts == (2 if label.startswith("dgc") else undone.facts)
    assert all(np.array_equal(state.arrays[name], kept) for name, kept in left.items())


# ---- tensors, bad numbers ------------------------------------------------------------


@pytest.mark.parametrize("label", EVERY_KIND)
def test_tensors_and_arrays_agree(label):
    codec, one, other = codec_from_spec(label), None, None
    for round in range(2):
        update = gradient(round)
        as_array, one = encode(codec, update, one, round)
        as_tensor, other = encode(codec, torch.from_numpy(update), other, round)
        assert isinstance(as_tensor.dense(), torch.Tensor)
        assert as_tensor.dense().numpy().tobytes() == as_array.dense().tobytes()
        assert as_tensor.encoded("rice") == as_array.encoded("rice")


@pytest.mark.parametrize("label", RESIDUAL)
def test_feedback_on_tensors_agrees(label):
    residual, feedback = gradient(0), with_error_feedback(codec_from_spec(label))
    tensor = torch.tensor(residual)
    played = [
        feedback.encode_in_place(update, rest, 40, rng_of(0), layout=LAYOUT)
        for update, rest in (
            (gradient(1), residual),
            (torch.tensor(gradient(1)), tensor),
        )
    ]
    assert tensor.numpy().tobytes() == residual.tobytes()
    undo(residual, played[0])
    undo(tensor, played[1])
    assert tensor.numpy().tobytes() == residual.tobytes()


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30])
@pytest.mark.parametrize("label", EVERY_KIND)
def test_tiny_and_huge_numbers_are_no_trouble(label, scale):
    payload, _ = encode(codec_from_spec(label), gradient(0) * np.float32(scale))
    assert np.isfinite(payload.dense()).all()


def test_neither_torch_nor_scipy_is_imported_for_sizes_of_any_codec():
    code = (
        "import sys, simfed.policy; from simfed.compress import codec_from_spec;"
        "[codec_from_spec(c).size_bytes(100, 10, 'fixed', [(10, 10)]) for c in"
        " ('top-k+qsgd(4)', 'fp16', 'powersgd(2)', 'ef21', 'dgc', 'terngrad')];"
        "print(sorted({'torch', 'scipy', 'pandas', 'simpy', 'pydantic'} & "
        "set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
