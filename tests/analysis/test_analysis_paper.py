"""RESULTS.md says what the kept rows say, and its studies make such rows."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import paper
import paper_rows
import pytest
import yaml
from paper_claims import Check, Claim, attempts, open_points
from paper_rows import KEYS, Rows, first_s, setting

from simfed.report.statistics import Estimate
from simfed.study import plan_study, run_study

STUDIES = Path(__file__).resolve().parents[2] / "scenarios" / "paper"
NUMBERS = paper.numbers()


def items():
    """The page's paragraphs and items of lists, each in one line."""
    text = re.sub(
        r"^(?:\d+\.|-) ", "\n", paper.PAGE.read_text("utf-8"), flags=re.MULTILINE
    )
    return [" ".join(item.split()) for item in re.split(r"\n\s*\n", text)]


@pytest.mark.parametrize("begins", NUMBERS)
def test_sentences_state_the_numbers_of_the_rows(begins):
    (item,) = (item for item in items() if item.startswith(begins))
    for number in NUMBERS[begins]:
        assert number in item


def test_every_figure_of_the_page_is_drawn():
    shown = re.findall(r"\(figures/(.*?)\.png\)", paper.PAGE.read_text("utf-8"))
    assert sorted(shown) == sorted(paper.FIGURES)
    for draw in paper.FIGURES.values():
        assert draw(paper.rows()).axes


def test_rows_are_runs_of_the_studies():
    planned = set()
    for path in STUDIES.glob("*.yaml"):
        if "base" in yaml.safe_load(path.read_text("utf-8")):
            for run in plan_study(path).runs:
                at = setting(run.scenario)
                planned.add((*(at[key] for key in KEYS), run.seed))
    kept = [(*(getattr(run, key) for key in KEYS), run.seed) for run in Rows().all]
    assert len(kept) == len(set(kept))
    assert set(kept) <= planned
    on_gpu = sum(run[KEYS.index("k")] >= 100_000 for run in planned)
    assert (
        f"{len(kept)} of {len(planned)} distinct runs ({on_gpu} need a GPU)"
        in "".join(items())
    )


def test_a_played_study_adds_rows_once(tmp_path, monkeypatch):
    study = {
        "name": "small",
        "base": str(STUDIES / "mnist.yaml"),
        "seeds": [0],
        "set": {
            "rounds": 4,
            "dataset.name": "mnist-mini",
            "evaluation.every": 2,
            "policy.warmup": 1,
        },
        "grid": {"policy.reward.clip": [[-1, 1], None]},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    played = run_study(tmp_path / "study.yaml", tmp_path / "played", jobs=1)
    before = len(pd.read_parquet(paper_rows.ROWS))
    rows = tmp_path / "paper.parquet"
    rows.write_bytes(paper_rows.ROWS.read_bytes())
    monkeypatch.setattr(paper_rows, "ROWS", rows)
    assert paper_rows.add(tmp_path / "played") == 2
    assert paper_rows.add(tmp_path / "played") == 0
    assert len(pd.read_parquet(rows)) == before + 2
    at = {"dataset": "mnist-mini", "rounds": 4, "variant": "clip none"}
    (one,) = Rows().of("ascend", **at).values()
    (run,) = (
        r for _, r in played.finished if r.scenario["policy"]["reward"]["clip"] is None
    )
    assert one.uplink_bytes == run.summary["uplink_bytes"]
    tested = run.prototypes.dropna(subset=["test_accuracy"]).groupby("round")
    means = tested["test_accuracy"].mean().tolist()
    assert one.accuracy.tolist() == pytest.approx(means)
    assert one.at_s.tolist() == run.rounds["finished_at_s"].iloc[[1, 3]].tolist()
    free = run.participations["choice"].isin(["explore", "exploit"]).sum()
    assert one.smaller_chose.sum() + one.larger_chose.sum() == free > 0
    assert (len(one.smaller_kd), one.clipped) == (4, 0)


@pytest.mark.parametrize(
    ("low", "high", "seeds", "state"),
    [
        (1, 2, 5, "holds"),
        (-2, -1, 5, "fails"),
        (-1, 1, 5, "cannot be told"),
        (-2, 0, 5, "fails"),
        (0, 2, 5, "cannot be told"),
        (1, 2, 4, "short of seeds"),
    ],
)
def test_a_comparison_holds_where_its_whole_interval_does(low, high, seeds, state):
    middle = (low + high) / 2
    assert Check("", Estimate(middle, middle, low, high, 0.95), seeds).state == state
    if seeds == 5:
        unsure = Estimate(middle, middle, low, high, 0.75)
        assert Check("", unsure, seeds).state == "cannot be told"


@pytest.mark.parametrize(
    ("states", "verdict"),
    [("hh", "holds"), ("hu", "cannot be told"), ("huf", "fails"), ("gg", ("follows "
                                                                          "from "
                                                                         "the set-up")),
     ("gh", "holds"), ("hfm", "cannot be told"), ("mm", "cannot be told")],
)  # fmt: skip
def test_verdicts_come_of_the_worst_comparison(states, verdict):
    ends = {"h": (1, 2), "u": (-1, 1), "f": (-2, -1), "g": (0, 0), "m": (1, 2)}
    checks = [
        Check("", Estimate(0, 0, *ends[s], 0.95), 5 - (s == "m"), given=s == "g")
        for s in states
    ]
    assert Claim("a claim", checks).verdict == verdict


def test_times_between_evaluations_lie_on_a_line():
    run = SimpleNamespace(
        accuracy=np.array([0.5, 0.7, 0.9]),
        at_s=np.array([1.0, 2.0, 4.0]),
        simulated_s=5.0,
    )
    assert [first_s(run, level) for level in (0.4, 0.6, 0.8, 0.95)] == [
        (1.0, True), (pytest.approx(1.5), True), (pytest.approx(3.0), True),
        (5.0, False),
    ]  # fmt: skip


def test_second_attempts_are_those_after_an_accepted_round():
    losses = np.array([1, 1, 5, 8, 1, 1, 9, 1, 1, 4], np.float32)
    run = SimpleNamespace(
        undone=np.array([3, 4, 7, 10]),
        rounds=10,
        smaller_kd=losses,
        larger_kd=losses / losses,
    )
    # the fourth round's was undone; nothing follows the tenth
    first, second = attempts(run)
    assert (first.again, first.times) == (True, pytest.approx(1.6))
    assert (second.again, second.times) == (False, pytest.approx(1 / 9))


def test_open_points_are_a_balanced_design():
    for k, settings in ((1000, 16), (5000, 8)):
        for _, cells, effects in open_points(Rows(), k):
            assert len(cells) == settings
            for effect in effects:
                assert (
                    sum(effect.factor in cell.others for cell in cells) == settings / 2
                )
                assert not math.isnan(effect.estimate.low)
