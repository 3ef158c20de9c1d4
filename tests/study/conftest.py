"""Studies of a tiny scenario, played without learning or made up."""

import functools

import pytest
import study_fakes as fakes
import yaml

import simfed.study.drive

BASE = yaml.safe_load("""
name: tiny
rounds: 60
dataset: {name: mnist-mini}
prototypes: {small: {model: lenet5-half}}
clients:
- {count: 2, prototype: small, device: rtx3090-ryzen4800h, link: {up: 50 Mbps}}
policy: {kind: uniform, strategy: top-k}
safeguard: {rollback: null}
""")


def write(path, data):
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def study_file(folder, text="", *, base=None, **keys):
    """A study file over the tiny scenario in `folder`.

    `text` has keys of it as a file has them, `UP` for every client's uplink; keyword
    arguments are others.
    """
    keys |= yaml.safe_load(text.replace("UP", '"clients[*].link.up"')) or {}
    write(folder / "base.yaml", {**BASE, **(base or {})})
    return write(folder / "study.yaml", {"name": "test", "base": "base.yaml", **keys})


@pytest.fixture
def write_study(tmp_path):
    """`study_file` in this test's own folder."""
    return functools.partial(study_file, tmp_path)


@pytest.fixture
def out(tmp_path):
    """Where this test's study goes."""
    return tmp_path / "out"


@pytest.fixture
def make_up(tmp_path):
    """The study in a file, all of whose runs are made up."""
    return lambda path, out="out": fakes.make_up(path, tmp_path / out)


@pytest.fixture
def write_arms(write_study):
    """A study file that compares strategies, by their first letters; "tr": two."""
    named = {"t": "top-k", "r": "random-k", "p": "periodic-k"}

    def write(letters, *thresholds, seeds=(0, 1, 2), grid=(), baseline=None, **keys):
        arms = {"policy.strategy": [named[letter] for letter in letters]}
        arms_of = {"arms": "policy.strategy", "baseline": baseline}
        compared = {**arms_of, "thresholds": [*thresholds]}
        grid = {**dict(grid), **arms}
        return write_study(grid=grid, seeds=[*seeds], compare=compared, **keys)

    return write


@pytest.fixture
def inline(monkeypatch):
    """Runs of studies are done in this process; the jobs that were begun."""
    monkeypatch.setattr(simfed.study.drive, "RunProcesses", fakes.Inline)
    monkeypatch.setattr(fakes.Inline, "begun", [])
    return fakes.Inline.begun


@pytest.fixture(scope="session")
def studied(tmp_path_factory):
    """The finished study of two bandwidths, three strategies and three seeds.

    Only to be read.
    """
    folder = tmp_path_factory.mktemp("studied")
    path = study_file(
        folder,
        """
        grid: {UP: [5 Mbps, 50 Mbps], policy.strategy: [top-k, random-k, periodic-k]}
        seeds: [0, 1, 2]
        compare: {arms: policy.strategy, thresholds: [0.5, 0.9]}
        """,
    )
    return fakes.make_up(path, folder / "out")
