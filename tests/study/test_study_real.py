"""Studies of real runs: nothing made up."""

import json
import random
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from study_fakes import address

from simfed import InputError, Interrupted, RunFailed
from simfed.experiment import running as experiment
from simfed.replay import TrajectoryStore
from simfed.scenario import load_scenario
from simfed.study import draw_study_figure, load_study, plan_study, run_study

pytestmark = pytest.mark.usefixtures("inline")
UP = "clients[*].link.up"


def alone(folder, overrides=()):
    """The run of the base scenario in a folder, of no study."""
    base = folder / "base.yaml"
    scenario = load_scenario(base, overrides)
    return experiment.run(scenario, source=base, workers=1, progress=False)


LEARNING = {
    "rounds": 2,
    "dataset": {"name": "mnist-mini", "public": 32},
    "compression": {"k": 200},
}


def test_learning_is_shared_and_results_are_those_of_single_runs(write_study, tmp_path):
    path = write_study(
        "grid: {UP: [5 Mbps, 50 Mbps], policy.strategy: [top-k, random-k]}",
        base={**LEARNING, "evaluation": {"every": 1}},
    )
    store = TrajectoryStore(tmp_path / "cache")
    result = run_study(path, tmp_path / "out", progress=False, trajectories=store)
    for entry, run in result.finished[1:3]:  # a learned one and a replayed one
        assert run.fingerprint == alone(tmp_path, entry["values"]).fingerprint
        assert not (run.path / "checkpoint").exists()
    spent_s = [run.manifest["learning_wall_s"] for _, run in result.finished]
    learned = [one for one in spent_s if one.get("training", 0) > 0]
    assert len(learned) == 2  # one of two bandwidths for each strategy


def address_of(scenario, source):
    return address(scenario, source=source, device="cpu", time_only=False)


def test_the_address_counts_what_results_depend_on(write_study):
    base = write_study().parent / "base.yaml"

    def of(time_only=False, device="cpu", **changes):
        scenario = load_scenario(base, changes)
        return address(scenario, source=base, device=device, time_only=time_only)

    here = of()
    assert of(name="another", **{"checkpoint.every": 3}) == here
    others = {
        of(time_only=True),
        of(device="cuda"),
        of(seed=1),
        of(rounds=61),
        of(**{UP: "49 Mbps"}),
        of(**{"clients[0].device.speed": 0.5}),
        of(**{"charge.downlink": False}),
        of(**{"policy.strategy": "random-k"}),
        of(**{"dataset.name": "mnist"}),
    }
    assert len({here} | others) == 10


def test_a_study_finds_a_recorded_run_from_its_base_scenarios_folder(
    write_study, tmp_path, monkeypatch
):
    text = "{set: {policy: {arms_from: old}}, seeds: [0, 1]}"
    path = write_study(text, base={"rounds": 2})
    base, options = tmp_path / "base.yaml", {"time_only": True, "progress": False}
    old = experiment.run(base, tmp_path / "old", **options)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = run_study(path, tmp_path / "out", **options)
    assert len(result.finished) == 2
    for _, run in result.finished:
        assert run.participations["arm"].equals(old.participations["arm"])


def test_the_address_is_the_same_in_every_process_alone_and_among_many(write_study):
    path = write_study("{grid: {UP: [5 Mbps, 50 Mbps]}, seeds: [3, 4]}")
    code = (
        "import sys\n"
        "from simfed.study.drive import check_plan\n"
        "from simfed.study.plan import plan_study\n"
        "plan = plan_study(sys.argv[1])\n"
        "print(*check_plan(plan, sys.argv[1], device='cpu', time_only=False))\n"
        "assert not {'torch', 'simpy', 'pandas'} & set(sys.modules)\n"
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(path)], text=True)
    plan = plan_study(path)
    here = [address_of(run.scenario, plan.study.base) for run in plan.runs]
    assert said.split() == here
    assert len({*here}) == 4


def test_time_only_studies_compare_simulated_time(write_study, tmp_path):
    path = write_study(
        "{grid: {UP: [5 Mbps, 50 Mbps]}, seeds: [0, 1],"
        " compare: {arms: UP, thresholds: [0.8]}}",
        base={"rounds": 5},
    )
    result = run_study(path, tmp_path / "out", time_only=True, progress=False)
    assert (result.thresholds, result.times.empty) == ([], True)
    assert result.caveat.endswith("the time to 80 % needs learning.")
    assert result.verdicts[0].startswith("50 Mbps before 5 Mbps in simulated time: ")
    assert result.verdicts[0].endswith(" sooner in 2 of 2 seeds.")
    with pytest.raises(InputError, match="no accuracy to draw"):
        draw_study_figure(result)


@pytest.fixture
def stopped(write_study, tmp_path):
    """(study file, folder of its one run, which stopped in round 5 of 6 after a
    checkpoint).
    """

    def stop(base=None, *, cache=False):
        path = write_study(base={**LEARNING, "rounds": 6, **(base or {})})
        (planned,) = plan_study(path).runs
        source = tmp_path / "base.yaml"
        out = tmp_path / "out" / "runs" / address_of(planned.scenario, source)

        def progress(round, simulated_s, measure):
            if round == 5:
                raise KeyboardInterrupt

        store = TrajectoryStore(tmp_path / "cache") if cache else None
        options = {"source": source, "workers": 1, "progress": progress}
        with pytest.raises(Interrupted):
            experiment.run(
                planned.scenario, out, resume=True, trajectories=store, **options
            )
        return path, out

    return stop


@pytest.mark.parametrize(
    ("cached", "then_cached", "after"),
    [
        (True, False, {}),
        (False, True, {}),
        (False, False, {"checkpoint": {"every": 3}}),
        (False, False, {"name": "other"}),
    ],
)
def test_a_run_goes_on_when_an_option_has_changed(
    cached, then_cached, after, stopped, write_study, tmp_path
):
    every = {"checkpoint": {"every": 2}}
    _, run = stopped(every, cache=cached)
    begun = json.loads((run / "manifest.json").read_text())["id"]
    path = write_study(base={**LEARNING, "rounds": 6, **every, **after})
    store = TrajectoryStore(tmp_path / "cache") if then_cached else False
    result = run_study(path, tmp_path / "out", progress=False, trajectories=store)
    ((_, finished),) = result.finished
    assert (finished.path, finished.manifest["id"]) == (run, begun)
    assert finished.fingerprint == alone(tmp_path).fingerprint


OFF = {"progress": False, "trajectories": False}


def test_what_cannot_go_on_is_kept_and_said(stopped, out):
    path, run = stopped({"checkpoint": {"every": 1}})
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(
        RunFailed, match=f"it was changed.*once {run} is deleted, the run"
    ):
        run_study(path, out, **OFF)
    assert (run / "checkpoint" / "state.json").is_file()
    shutil.rmtree(run)
    assert len(run_study(path, out, **OFF).finished) == 1


def test_a_run_that_fails_keeps_what_it_learned(stopped, out, monkeypatch):
    path, run = stopped({"checkpoint": {"every": 2}})
    kept = sorted((run / "checkpoint").iterdir())

    def fail(*_, **__):
        raise RunFailed("no")

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_play_rounds", fail)
        with pytest.raises(RunFailed, match="1 of 1 runs failed"):
            run_study(path, out, **OFF)
    assert sorted((run / "checkpoint").iterdir()) == kept
    assert list(load_study(out).summary["status"]) == ["failed"]
    result = run_study(path, out, retry_failed=True, **OFF)
    assert list(result.summary["status"]) == ["finished"]


SCRIPT = """
import sys
from simfed.replay import TrajectoryStore
from simfed.study import run_study
if __name__ == "__main__":
    cache = TrajectoryStore(sys.argv[3])
    run_study(sys.argv[1], sys.argv[2], jobs=2, progress=False, trajectories=cache)
"""


@pytest.mark.long
def test_killed_again_and_again_it_comes_to_the_same(write_study, tmp_path):
    """kill -9 at random moments, in mid-run and between; then one undisturbed call."""
    path = write_study(
        """
        grid:
          UP: [5 Mbps, 50 Mbps]
          policy: [{kind: ascend, warmup: 1}, {kind: uniform, strategy: top-k}]
        seeds: [0, 1]
        set: {rounds: 12, checkpoint.every: 3, evaluation.every: 4}
        """,
        base=LEARNING,
    )
    quiet = run_study(path, tmp_path / "quiet", **OFF)
    out, cache = tmp_path / "out", tmp_path / "cache"
    command = [sys.executable, "-c", SCRIPT, path, out, cache]
    pause, rng, before = threading.Event(), random.Random(7), 0
    for _ in range(3):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        pause.wait(rng.uniform(4, 12))
        process.send_signal(signal.SIGKILL)
        process.wait()
        begun = (out / "study.json").exists()
        done = len(load_study(out).finished) if begun else 0
        assert done >= before  # nothing finished is ever lost
        before = done
    subprocess.run(command, check=True)
    result = load_study(out)
    assert list(result.summary["fingerprint"]) == list(quiet.summary["fingerprint"])
