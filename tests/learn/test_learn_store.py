"""Clients' states in bounded memory: files that never change, and checkpoints that link
them.
"""

import errno
import os

import pytest
import torch
from worlds import play, world

import simfed
from simfed import InputError, RunFailed
from simfed.learn import store as module
from simfed.learn.state import ClientState
from simfed.learn.store import Store
from simfed.verify import verify

LATE = world(
    "tiny",
    {
        "rounds": 6,
        "clients[0].count": 4,
        "method": "scaffold",
        "training": {"batch_size": 8, "local_steps": 1},
        "aggregation": {"mode": "asynchronous", "concurrency": 3},
        "compression": {"k": 50, "strategies": ["top-k", "random-k"]},
        "policy": {"kind": "ascend"},
        "checkpoint": {"every": 2},
    },
)
"""Uploads are under way at checkpoints; clients have residuals and control variates."""


def state(value):
    return ClientState(
        own={"control": torch.full((100,), value)}, rests={"update": torch.ones(9)}
    )


def test_what_does_not_fit_comes_back_from_its_file(tmp_path):
    store = Store(1, tmp_path)
    for client in range(3):
        store[client] = state(float(client))
    files = sorted((tmp_path / "checkpoint" / "clients").iterdir())
    # the last one is warm
    assert [file.name.partition("-")[0] for file in files] == ["0", "1"]
    assert sorted(store) == [0, 1, 2]
    for client in range(3):
        assert store[client].own["control"].tolist() == [client] * 100
    store[1] = state(7.0)
    assert store[1].own["control"][0] == 7
    del store[0]
    assert sorted(store) == [1, 2]
    store.close()
    assert list(tmp_path.glob("checkpoint")) == []


def stop(round, time_s, accuracy):
    if round == 3:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole():
    return play(LATE).fingerprint


@pytest.mark.parametrize(
    ("begun", "resumed"), [("1 B", {"memory": 1, "workers": 2}), (1, {})]
)
def test_a_run_with_a_bound_stops_and_goes_on_with_the_same_bits(
    tmp_path, whole, begun, resumed
):
    with pytest.raises(simfed.Interrupted):
        play(LATE, tmp_path / "run", progress=stop, memory=begun)
    links = tmp_path / "run" / "checkpoint" / "links"
    assert links.exists()
    assert not links.with_name("clients").exists()
    again = play(LATE, tmp_path / "run", resume=True, **resumed)
    assert again.fingerprint == whole
    if resumed:  # of the two checkpoints that are kept, no other files
        assert 4 <= len(list(links.iterdir())) <= 8


def test_a_linked_file_that_has_changed_is_found_before_the_run_goes_on(tmp_path):
    play(LATE, tmp_path / "run", memory=1)
    checkpoint = tmp_path / "run" / "checkpoint"
    for file in (checkpoint / "links").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    problems = verify(tmp_path / "run")
    assert any("links" in one and "digest" in one for one in problems)


def test_a_full_disk_ends_the_run_in_a_sentence_and_it_goes_on_later(
    tmp_path, monkeypatch, whole
):
    calls, put = [], module.put_arrays

    def full(path, arrays):
        calls.append(path)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return put(path, arrays)

    monkeypatch.setattr(module, "put_arrays", full)
    with pytest.raises(
        RunFailed, match=r"clients/\d+\.safetensors: .* \(No space left on device\)"
    ):
        play(LATE, tmp_path / "run", memory=1)
    monkeypatch.setattr(module, "put_arrays", put)
    again = play(LATE, tmp_path / "run", memory=1, resume=True)
    assert again.fingerprint == whole


def test_a_size_without_a_unit_is_refused():
    with pytest.raises(InputError, match=r"memory: .* such as 10 MB"):
        play(LATE, memory="4")
