"""Codecs as scenarios write them.

Chains; what they weigh; what becomes of their error.
"""

import math
import subprocess
import sys

import numpy as np
import pytest

from simfed import InputError
from simfed.compress import (
    TopK,
    WithoutFeedback,
    codec_from_spec,
    feedback_for,
    undo,
    with_error_feedback,
)

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


def gradient(round, seed=0, d=D):
    return np.random.default_rng([seed, round]).standard_normal(d, dtype=np.float32)


def rng_of(round):
    return np.random.default_rng([99, round])


# ---- names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("top-k", "top-k"),
        ("dense", "dense"),
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


@pytest.mark.parametrize("label", EVERY_KIND)
def test_data_cut_short_is_refused(label):
    codec = codec_from_spec(label)
    payload, _ = codec.encode(gradient(0), None, rng_of(0), 20, layout=LAYOUT)
    data = payload.encoded("fixed")
    for wrong in (data[:-1], data[:3], b""):
        with pytest.raises(InputError, match=r"a payload of|an Elias code of"):
            codec.from_bytes(wrong, D, 20, "fixed", layout=LAYOUT)


def test_a_wrong_layout_is_one_sentence():
    with pytest.raises(
        InputError,
        match=r"layout: got \[\(2, 2\)\], expected shapes "
        "of 5 entries in all",
    ):
        codec_from_spec("terngrad").encode(
            gradient(0, d=5), None, rng_of(0), layout=[(2, 2)]
        )
    with pytest.raises(
        InputError,
        match=r"the shapes of the layers \(layout\) for "
        r"powersgd",
    ):
        codec_from_spec("powersgd").size_bytes(100, 1, "fixed")


# ---- the error -----------------------------------------------------------------------


@pytest.mark.parametrize("label", EVERY_KIND)
def test_ideal_has_no_encoder(label):
    payload, _ = codec_from_spec(label).encode(
        gradient(0), None, rng_of(0), 20, layout=LAYOUT
    )
    with pytest.raises(
        InputError, match="got 'ideal', expected an index code with an encoder"
    ):
        payload.encoded("ideal")
    with pytest.raises(InputError, match="an index code: ideal, "):
        payload.wire_bytes("bitmpa")


@pytest.mark.parametrize("label", RESIDUAL)
def test_an_undone_play_gives_residual_and_state_back(label):
    feedback = with_error_feedback(codec_from_spec(label))
    residual = gradient(5)
    first = feedback.encode_in_place(None, residual, 40, rng_of(0), layout=LAYOUT)
    residual += gradient(6)
    u = residual.copy()
    second = feedback.encode_in_place(
        None, residual, 40, rng_of(1), state=first.state, layout=LAYOUT
    )
    state = undo(residual, second)
    assert np.abs(residual - u).max() <= 1e-6 * np.abs(u).max()
    again = feedback.encode_in_place(None, u, 40, rng_of(1), state=state, layout=LAYOUT)
    assert again.dense().tobytes() == second.dense().tobytes()


@pytest.mark.parametrize("label", ["terngrad", "dgc", "adacomp", "ef21", "detached-ef"])
def test_a_codec_without_feedback_or_with_its_own_is_not_asked_for_residuals(label):
    why = "it goes without" if label == "terngrad" else "it keeps its own error"
    with pytest.raises(
        InputError, match=f"a codec that error feedback can be put around.*{why}"
    ):
        with_error_feedback(codec_from_spec(label))
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
    """Two clients with one loss and one silent round: the next upload is the same."""
    codec = codec_from_spec(label)
    _, state = codec.encode(gradient(0), None, rng_of(0), 40, layout=LAYOUT)
    lost, _ = codec.encode(gradient(1), state, rng_of(1), 40, layout=LAYOUT)
    back = codec.undo(lost)
    assert back.facts == state.facts
    again, _ = codec.encode(np.zeros(D, np.float32), back, rng_of(1), 40, layout=LAYOUT)
    if label.startswith(("detached", "adacomp")):
        assert (
            back.arrays["error"].tobytes()
            == (state.arrays["error"] + gradient(1)).tobytes()
        )
    elif label.startswith("ef21"):
        assert back.arrays["estimate"].tobytes() == state.arrays["estimate"].tobytes()
    else:
        momentum = np.float32(codec.momentum) * state.arrays["momentum"] + gradient(1)
        assert back.arrays["momentum"].tobytes() == momentum.tobytes()
        assert (
            back.arrays["total"].tobytes()
            == (state.arrays["total"] + momentum).tobytes()
        )
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
    _, state = codec.encode(gradient(0), None, rng_of(0), 40, layout=LAYOUT)
    lost, state = codec.encode(gradient(1), state, rng_of(1), 40, layout=LAYOUT)
    later, state = codec.encode(gradient(2), state, rng_of(2), 40, layout=LAYOUT)
    undone, left = (
        codec.undo(lost),
        {name: a.copy() for name, a in state.arrays.items()},
    )
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
    import torch

    codec = codec_from_spec(label)
    one, other = None, None
    for round in range(2):
        as_array, one = codec.encode(
            gradient(round), one, rng_of(round), 40, layout=LAYOUT
        )
        as_tensor, other = codec.encode(
            torch.from_numpy(gradient(round)), other, rng_of(round), 40, layout=LAYOUT
        )
        assert isinstance(as_tensor.dense(), torch.Tensor)
        assert as_tensor.dense().numpy().tobytes() == as_array.dense().tobytes()
        assert as_tensor.encoded("rice") == as_array.encoded("rice")


@pytest.mark.parametrize("label", RESIDUAL)
def test_feedback_on_tensors_agrees(label):
    import torch

    residual, tensor = gradient(0), torch.from_numpy(gradient(0))
    feedback = with_error_feedback(codec_from_spec(label))
    one = feedback.encode_in_place(gradient(1), residual, 40, rng_of(0), layout=LAYOUT)
    other = feedback.encode_in_place(
        torch.from_numpy(gradient(1)), tensor, 40, rng_of(0), layout=LAYOUT
    )
    assert tensor.numpy().tobytes() == residual.tobytes()
    undo(residual, one)
    undo(tensor, other)
    assert tensor.numpy().tobytes() == residual.tobytes()


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30])
@pytest.mark.parametrize("label", EVERY_KIND)
def test_tiny_and_huge_numbers_are_no_trouble(label, scale):
    update = gradient(0) * np.float32(scale)
    payload, _ = codec_from_spec(label).encode(
        update, None, rng_of(0), 40, layout=LAYOUT
    )
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
