"""Tampering: whatever was changed in a finished run, with all digests computed again by
whoever changed it, is found.
"""

import shutil
from pathlib import Path

import pytest
from forging import FORGERIES, TINY, VALUES, Forgery, read_journal, write_journal

import simfed
from simfed.verify import again, verify

LEARNS = (
    TINY.replace(
        "policy: {kind: uniform, strategy: random-k}",
        "policy: {kind: ascend, warmup: 1, reward: {local_loss: {samples: 16}}}",
    )
    .replace("rounds: 3", "rounds: 5")
    .replace("device: rtx3090-ryzen4800h", "device: powered.yaml")
    .replace("evaluation: {every: 3}", "evaluation: {every: 3, clients: true}")
    .replace("up: {file: up.csv, format: csv, end: hold}", "up: 20 Mbps")
)


def powered(folder):
    """A device profile beside the scenario whose power is known."""
    measured = Path(__file__).parents[2] / "calibration" / "rtx3090-ryzen4800h.yaml"
    phases = {
        "training": 90,
        "compression": 60,
        "uplink": 20,
        "downlink": 19,
        "idle": 10,
    }
    watts = ", ".join(f"{phase}: {watt} W" for phase, watt in phases.items())
    (folder / "powered.yaml").write_text(measured.read_text() + f"power: {{{watts}}}\n")


def learned(folder, text, **overrides):
    """A finished run of a scenario."""
    powered(folder)
    (folder / "tiny.yaml").write_text(text)
    scenario = simfed.load_scenario(folder / "tiny.yaml", overrides)
    return simfed.run(
        scenario, folder / "run", source=folder / "tiny.yaml", workers=1, progress=False
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return learned(tmp_path_factory.mktemp("tampered"), LEARNS)


ONLY_LEARNED = {
    "journal: another accuracy, in the tables too": (
        "clients.parquet: own_accuracy of 1 rows"
    ),
    "scenario: another learning rate": "prototypes.parquet: kd_loss of",
    "checkpoint: weights of state.json": (
        "checkpoint: clients/0/rests/update after round 5"
    ),
    "checkpoint: weights of earlier.json": (
        "checkpoint: clients/0/rests/update after round 4"
    ),
}
"""What follows from nothing but learning again, and how the first sentence on it
begins."""

UNTOLD = {"scenario: another name everywhere"}
"""What follows from nothing: another run of another name would be the same."""


def verified(run, forgery, path):
    """What plain `verify` says of a forged copy."""
    try:
        broken = verify(forgery.of(run.path, path))
    except simfed.InputError as error:  # no run directory at all
        broken = [str(error)]
    assert all("\n" not in sentence for sentence in broken)
    return broken


def test_the_forger_agrees_with_himself(run, tmp_path):
    """What finds a forgery is never a digest that the forger forgot."""
    assert (
        verified(run, Forgery("nothing", lambda draft: None), tmp_path / "copy") == []
    )


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_a_forgery_is_found_but_for_what_only_learning_comes_to(run, tmp_path, every):
    """Each of them is sealed again.

    An eighth of the columns stands for all of them, but where there are minutes.
    """
    cases = [forgery for forgery in FORGERIES if forgery.name not in UNTOLD]
    cases = [
        case for case in cases if case not in VALUES or VALUES.index(case) % every == 0
    ]
    passed = [
        forgery.name
        for forgery in cases
        if not verified(run, forgery, tmp_path / "copy")
    ]
    assert sorted(passed) == sorted(ONLY_LEARNED)


@pytest.mark.parametrize("name", ONLY_LEARNED)
def test_what_was_learned_is_learned_again(run, tmp_path, name):
    forgery = next(forgery for forgery in FORGERIES if forgery.name == name)
    complaints = again.recompute(forgery.of(run.path, tmp_path / "copy"), 5, workers=1)
    assert complaints[0].startswith(ONLY_LEARNED[name])


def test_a_journal_of_other_bytes_is_found_though_it_says_the_same(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    write_journal(copy, read_journal(copy).replace(",", ", ", 1).encode())
    (sentence,) = verify(copy)
    assert "journal.jsonl.zst: it was changed, or is of another run" in sentence


def test_a_run_that_learned_stands_when_it_is_learned_again(run):
    complaints = again.recompute(run.path, 2, workers=1)
    assert complaints == []
    assert complaints.said.startswith("rounds ")
