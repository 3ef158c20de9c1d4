"""Studies of a tiny scenario, played by a fake that needs no learning."""

import pytest
import yaml

import simfed.study.address
import simfed.study.drive

BASE = {
    "name": "tiny",
    "rounds": 60,
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"small": {"model": "lenet5-half"}},
    "clients": [
        {
            "count": 2,
            "prototype": "small",
            "device": {"profile": "rtx3090-ryzen4800h"},
            "link": {"up": "50 Mbps"},
        }
    ],
    "policy": {"kind": "uniform", "strategy": "top-k"},
    "safeguard": {"rollback": None},
}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


@pytest.fixture
def write_study(tmp_path):
    """Writes a study file over the tiny scenario; keyword arguments are its keys."""

    def make(base=None, **keys):
        write(tmp_path / "base.yaml", {**BASE, **(base or {})})
        return write(tmp_path / "study.yaml", {"name": "test", "base": "base.yaml", **keys})

    return make


@pytest.fixture
def fake_runs(monkeypatch):
    """Runs are made up instead of simulated."""
    monkeypatch.setattr(simfed.study.drive, "RUNNER", "study_fakes:fake_run")
    # fakes do not depend on simfed's code, which may be edited while its tests run
    monkeypatch.setattr(simfed.study.address, "own_code", lambda: "")
