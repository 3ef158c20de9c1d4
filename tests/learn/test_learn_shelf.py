"""Tensors go between processes in shared memory, everything else through pipes."""

import pickle

import pytest
import torch

from simfed.learn.shelf import Shelf

ROOM = 1 << 16


@pytest.fixture
def ends():
    """The same shelf, as the first process and another one use it."""
    first = Shelf([ROOM, ROOM])
    return first, first.end(1)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(1000.0).view(10, 100),
        torch.arange(1000),
        torch.arange(600, dtype=torch.float64),
        torch.ones(3),
        torch.zeros(0),
        torch.tensor(2.5),
        torch.arange(2000.0)[::2],
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.dtype}",
)
def test_a_tensor_comes_as_it_went(ends, tensor):
    first, other = ends
    assert same(other.unpack(first.pack(tensor)), tensor)


def test_a_tensor_that_is_sent_again_takes_no_more_room(ends):
    first, other = ends
    model = torch.ones(1000)
    one, two = other.unpack(first.pack([model])), other.unpack(first.pack([model]))
    assert one[0].data_ptr() == two[0].data_ptr()


def test_a_tensor_that_has_changed_is_sent_anew(ends):
    first, other = ends
    model = torch.ones(1000)
    first.pack(model)
    model.add_(1)
    assert other.unpack(first.pack(model)).sum() == 2000


def test_copies_stay_when_the_other_process_clears_its_part(ends):
    first, other = ends
    answer = first.unpack(other.pack(torch.ones(1000)), copied=True)
    other.clear()
    other.pack(torch.zeros(1000))
    assert answer.sum() == 1000


def test_what_finds_no_room_travels_through_the_pipe(ends):
    first, other = ends
    large = torch.ones(ROOM)
    message = first.pack(large)
    assert len(message) > 4 * ROOM
    assert same(other.unpack(message), large)


def test_the_first_process_forgets_once_half_of_its_room_is_used(ends):
    first, other = ends
    older, newer = torch.ones(ROOM // 8), torch.full((ROOM // 8,), 2.0)
    before = other.unpack(first.pack(older))
    first.make_room()  # half is used, not more
    assert other.unpack(first.pack(older)).data_ptr() == before.data_ptr()
    first.pack(torch.zeros(1000))
    first.make_room()
    after = other.unpack(first.pack(newer))
    assert after.data_ptr() == before.data_ptr()
    assert same(after, newer)


def test_a_message_is_no_pickle_without_its_shelf(ends):
    first, _ = ends
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(first.pack(torch.ones(1000)))
