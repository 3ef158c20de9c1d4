"""`simfed study` and `simfed cache` as typed. Runs are made up."""

import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
import study_fakes as fakes

from simfed.cli import main
from simfed.report.statistics import estimate_mean
from simfed.study import RunProcesses, ScenarioRuns, render_study_page

pytestmark = pytest.mark.usefixtures("inline")
BAD = 101
"""A batch size that raises."""


@pytest.fixture(autouse=True)
def made_up(monkeypatch, tmp_path):
    def play(kind, job, out):
        scenario = kind.validate(job.plain, source=job.source, folder=tmp_path)
        if scenario.training.batch_size == BAD:
            raise RuntimeError("unlucky")
        fakes.make_up_run(scenario, out)

    monkeypatch.setattr(ScenarioRuns, "play", play)
    monkeypatch.setenv("SIMFED_CACHE", str(tmp_path / "cache"))


def test_a_study_from_its_file_to_its_page(write_arms, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["study", "run", str(write_arms("tr", 0.5)), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("test: 0 of 6 runs done\n")
    assert "[6/6] strategy random-k, seed 2: finished in" in shown.err
    verdict = "top-k before random-k to 50 %: top-k 1.67× [1.67, 1.67] sooner in 3 of 3"
    assert verdict in shown.out
    assert f"the same as a page: {out}/report.html" in shown.out
    assert verdict in (out / "report.html").read_text()
    assert main(["study", "status", str(out)]) == 0
    assert capsys.readouterr().out == "test: 6 of 6 runs finished\n"
    assert main(["study", "table", str(out), "--runs"]) == 0
    _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [row[:3] for row in rows[:2]] == [
        ["top-k", "0", "finished"],
        ["random-k", "0", "finished"],
    ]
    table, picture = tmp_path / "arms.csv", tmp_path / "figure.svg"
    assert main(["study", "table", str(out), "--csv", str(table)]) == 0
    assert list(pd.read_csv(table)["arm"]) == ["top-k", "random-k"]
    assert main(["study", "report", str(out), "--out", str(picture)]) == 0
    texts = "".join(ElementTree.parse(picture).getroot().itertext())
    assert "random-k" in texts
    assert "simulated time" in texts


def test_one_cell_is_run_by_its_name_and_what_is_no_longer_named_is_pruned(
    write_study, tmp_path, capsys
):
    path = write_study(grid={"policy.strategy": ["top-k", "random-k"]}, seeds=[0, 1])
    ask, out = ["study", "run", str(path), "--quiet", "--out"], str(tmp_path / "out")
    assert main([*ask, out, "--only", "strategy=random-k,seed=1"]) == 0
    assert main(["study", "status", out]) == 0
    assert capsys.readouterr().out == "test: 1 of 4 runs finished, 3 waiting\n"
    assert main([*ask, out, "--set", "seeds=[0]"]) == 0
    assert main(["study", "prune", out]) == 0
    assert capsys.readouterr().out == f"{out}: 1 run deleted\n"
    assert len([*(tmp_path / "out" / "runs").iterdir()]) == 2
    assert main(["study", "prune", str(tmp_path)]) == 2


def test_failures_are_shown_and_have_exit_code_1(write_study, out, capsys):
    path = write_study(grid={"training.batch_size": [32, BAD]})
    assert main(["study", "run", str(path), "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert "1 of 2 runs are not finished" in shown.out
    _, sentence = shown.err.split("\nsimfed: ")
    said = "1 of 2 runs failed, such as batch_size 101, seed 0: RuntimeError: unlucky;"
    assert sentence.startswith(said)
    assert main(["study", "status", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "test: 1 of 2 runs finished, 1 failed",
        "  batch_size 101, seed 0: failed: RuntimeError: unlucky",
    ]


def test_more_jobs_than_the_cores_can_do_are_not_started(capsys, monkeypatch):
    monkeypatch.setattr("simfed.ground.cores.available_cores", lambda: 2)
    assert RunProcesses(1_000_000).slots() == 8
    assert main(["study", "run", "no.yaml", "--jobs", "1000000"]) == 2
    assert capsys.readouterr().err.startswith(
        "--jobs: 1,000,000 processes are too many, 8 do the work (at most a few for "
        "each core)\n"
    )


def test_the_cache_is_listed_and_cleared(tmp_path, capsys):
    from simfed.replay import TrajectoryStore

    about = {
        "scenario": {
            "seed": 3,
            "dataset": {"name": "mnist-mini"},
            "prototypes": {"p": {"model": "lenet5"}},
        },
        "clients": {"order": [0, 0]},
    }
    trajectory = TrajectoryStore(tmp_path / "cache").open("abcdef", about)
    trajectory.add("node", {"x": 1})
    trajectory.close()
    assert main(["cache", "list"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("abcdef ")
    assert " 1 steps " in first
    assert first.endswith("mnist-mini, lenet5, 2 clients, seed 3")
    assert f"{tmp_path}/cache: 1 trajectory," in last
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/cache: 1 trajectory deleted\n"
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/cache: 0 trajectories")


def test_the_page_holds_bands_and_escapes_labels(studied, write_study, make_up):
    page = render_study_page(studied)
    for sentence in studied.verdicts:
        assert sentence in page
    path = write_study(grid={"policy.strategy": {"<script>alert(1)</script>": "top-k"}})
    page = render_study_page(make_up(path))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_bands_are_students_interval_over_seeds_at_equal_times(studied):
    one = studied.bands.query("setting == 'up 5 Mbps' and arm == 'top-k'")
    last = one.iloc[-1]
    mean = estimate_mean([fakes.accuracy(60, seed, 1.0) for seed in (0, 1, 2)])
    assert last["accuracy"] == pytest.approx(mean.exact)
    assert last["high"] == pytest.approx(mean.high)
    assert len(one) == 12
