"""Clients' states in bounded memory: files that never change, and checkpoints that link
them.
"""

import errno
import os

import pytest
import torch

import simfed
from simfed import InputError, RunFailed
from simfed.learn import store as module
from simfed.learn.state import ClientState
from simfed.learn.store import Store
from simfed.verify.run import verify

LATE = {
    "name": "stored",
    "rounds": 6,
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"only": {"model": "logistic-regression"}},
    "clients": [{"count": 4, "prototype": "only", "device": "x86-2core-vm"}],
    "method": "scaffold",
    "training": {"batch_size": 8, "local_steps": 1},
    "aggregation": {"mode": "asynchronous", "concurrency": 3},
    "compression": {"k": 50, "strategies": ["top-k", "random-k"]},
    "policy": {"kind": "ascend"},
    "checkpoint": {"every": 2},
}
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


def test_a_run_with_a_bound_of_one_byte_stops_and_goes_on_with_the_same_bits(tmp_path):
    whole = simfed.run(LATE, progress=False, workers=1)

    def stop(round, time_s, accuracy):
        if round == 3:
            raise KeyboardInterrupt

    with pytest.raises(simfed.Interrupted):
        simfed.run(LATE, tmp_path / "run", progress=stop, workers=1, memory="1 B")
    links = tmp_path / "run" / "checkpoint" / "links"
    assert links.exists()
    assert not links.with_name("clients").exists()
    again = simfed.run(
        LATE, tmp_path / "run", progress=False, workers=2, memory=1, resume=True
    )
    assert again.fingerprint == whole.fingerprint
    # of the two checkpoints that are kept, no other files
    assert 4 <= len(list(links.iterdir())) <= 8
    assert verify(tmp_path / "run") == []


def test_a_checkpoint_of_files_is_gone_on_with_without_a_bound(tmp_path):
    def stop(round, time_s, accuracy):
        if round == 3:
            raise KeyboardInterrupt

    with pytest.raises(simfed.Interrupted):
        simfed.run(LATE, tmp_path / "run", progress=stop, workers=1, memory=1)
    again = simfed.run(LATE, tmp_path / "run", progress=False, workers=1, resume=True)
    assert again.fingerprint == simfed.run(LATE, progress=False, workers=1).fingerprint


def test_a_linked_file_that_has_changed_is_found_before_the_run_goes_on(tmp_path):
    simfed.run(LATE, tmp_path / "run", progress=False, workers=1, memory=1)
    checkpoint = tmp_path / "run" / "checkpoint"
    for file in (checkpoint / "links").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    problems = verify(tmp_path / "run")
    assert any("links" in one and "digest" in one for one in problems)


def test_a_full_disk_ends_the_run_in_a_sentence_and_it_goes_on_later(
    tmp_path, monkeypatch
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
        simfed.run(LATE, tmp_path / "run", progress=False, workers=1, memory=1)
    monkeypatch.setattr(module, "put_arrays", put)
    again = simfed.run(
        LATE, tmp_path / "run", progress=False, workers=1, memory=1, resume=True
    )
    assert again.fingerprint == simfed.run(LATE, progress=False, workers=1).fingerprint


def test_a_size_without_a_unit_is_refused():
    with pytest.raises(InputError, match=r"memory: .* such as 10 MB"):
        simfed.run(LATE, progress=False, memory="4")
