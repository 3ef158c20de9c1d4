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


POWER = """
power: {training: 90 W, compression: 60 W, uplink: 20 W, downlink: 19 W, idle: 10 W}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on devices whose power is known."""
    folder = tmp_path_factory.mktemp("tampered")
    measured = Path(__file__).parents[2] / "calibration" / "rtx3090-ryzen4800h.yaml"
    (folder / "powered.yaml").write_text(measured.read_text() + POWER)
    (folder / "tiny.yaml").write_text(LEARNS)
    return simfed.run(folder / "tiny.yaml", folder / "run", workers=1, progress=False)


ONLY_LEARNED = {
    "journal: another accuracy, in the tables too": (
        "clients.parquet: own_accuracy of 1 rows"
    ),
    "scenario: another learning rate": "prototypes.parquet: kd_loss of",
    **{
        f"checkpoint: weights of {name}.json": (
            f"checkpoint: clients/0/rests/update after round {round}"
        )
        for name, round in (("state", 5), ("earlier", 4))
    },
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
    nothing = Forgery("nothing", lambda draft: None)
    assert verified(run, nothing, tmp_path / "copy") == []


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_forgery_is_found_but_for_what_only_learning_comes_to(run, tmp_path, every):
    """Each of them is sealed again.

    An eighth of the columns stands for all of them, but where there are minutes.
    """
    left_out = [value for k, value in enumerate(VALUES) if k % every]
    passed = [
        forgery.name
        for forgery in FORGERIES
        if forgery.name not in UNTOLD and forgery not in left_out
        if not verified(run, forgery, tmp_path / "copy")
    ]
    assert sorted(passed) == sorted(ONLY_LEARNED)


@pytest.mark.parametrize("name", ONLY_LEARNED)
def test_what_was_learned_is_learned_again(run, tmp_path, name):
    forgery = next(forgery for forgery in FORGERIES if forgery.name == name)
    complaints = again.recompute(forgery.of(run.path, tmp_path / "copy"), 5, workers=1)
    assert complaints[0].startswith(ONLY_LEARNED[name])


def test_journal_of_other_bytes_is_found_though_it_says_the_same(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    write_journal(copy, read_journal(copy).replace(",", ", ", 1).encode())
    (sentence,) = verify(copy)
    assert "journal.jsonl.zst: it was changed, or is of another run" in sentence


def test_run_that_learned_stands_when_it_is_learned_again(run):
    complaints = again.recompute(run.path, 2, workers=1)
    assert complaints == []
    assert complaints.said.startswith("rounds ")
