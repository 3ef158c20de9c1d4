"""Error feedback: nothing is lost, to the bit, and a lost upload can be taken back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.compress import Dense, PeriodicK, RandomK, TopK, undo, with_error_feedback

STRATEGIES = [TopK, RandomK, PeriodicK, Dense]


def bits(vector):
    return vector.view(np.uint32).tolist()


def gradient(d, round, seed=0):
    return np.random.default_rng([seed, round]).standard_normal(d, dtype=np.float32)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(d=st.integers(1, 60), k=st.integers(1, 70), seed=st.integers(0, 1000))
def test_undo_right_after_the_play_restores_every_bit(strategy, d, k, seed):
    rng = np.random.default_rng(seed)
    feedback, residual = with_error_feedback(strategy()), gradient(d, 0, seed)
    state = feedback.encode_in_place(gradient(d, 1, seed), residual, k, rng).state
    residual[::2] = -0.0
    before = residual + np.where(
        np.arange(d) % 3, np.float32(-0.0), gradient(d, 2, seed)
    )
    buffer = before.copy()
    payload = feedback.encode_in_place(None, buffer, k, rng, state=state)
    assert undo(buffer, payload) == state
    assert bits(buffer) == bits(before)


def test_undo_after_later_plays_adds():
    residual = np.array([1.0, 5.0, 2.0], np.float32)
    feedback = with_error_feedback(TopK())
    lost = feedback.encode_in_place(None, residual, 1)
    feedback.encode_in_place(np.array([0, 1, 1], np.float32), residual, 1)
    undo(residual, lost)
    assert residual.tolist() == [1.0, 6.0, 0.0]


def test_gradients_may_come_parameter_by_parameter():
    g = gradient(24, 0)
    parts = [g[:6].reshape(2, 3), g[6:7], g[7:24].reshape(17, 1)]
    one, other = np.zeros(24, np.float32), np.zeros(24, np.float32)
    with_error_feedback(TopK()).encode_in_place(g, one, 5)
    with_error_feedback(TopK()).encode_in_place(parts, other, 5)
    assert bits(one) == bits(other)


@pytest.mark.parametrize("residual_is_tensor", [False, True])
def test_tensors_in_any_memory_layout(residual_is_tensor):
    import torch

    weight = (
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    )
    bias = torch.tensor([30.0], requires_grad=True)
    residual = torch.zeros(25) if residual_is_tensor else np.zeros(25, np.float32)
    payload = with_error_feedback(TopK()).encode_in_place([weight, bias], residual, 3)
    assert isinstance(payload.values, type(residual))
    assert payload.indices.tolist() == [22, 23, 24]
    assert payload.values.tolist() == [22.0, 23.0, 30.0]
    assert residual.tolist() == [*map(float, range(22)), 0.0, 0.0, 0.0]
    assert payload.dense().tolist() == [0.0] * 22 + [22.0, 23.0, 30.0]
    undo(residual, payload)
    assert residual.tolist() == [*map(float, range(24)), 30.0]


@pytest.mark.parametrize(
    "update", [np.zeros(4), [np.zeros(2), np.zeros(4)], np.zeros(6)]
)
def test_an_update_of_another_length_is_refused_before_anything_changes(update):
    residual = np.ones(5)
    with pytest.raises(InputError, match="an update of 5 entries"):
        with_error_feedback(TopK()).encode_in_place(update, residual, 2)
    assert residual.tolist() == [1.0] * 5
