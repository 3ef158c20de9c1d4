"""Whole runs through the composition root: what is written, what is equal, what is
refused.
"""

import json
import os
import platform
import shutil
import signal
import sys
import types
from pathlib import Path

import pytest
import worlds
import yaml

import simfed
from simfed import InputError, InputErrors, Interrupted, RunFailed
from simfed.experiment import list_profiles
from simfed.experiment.running import choose_workers
from simfed.record import read_manifest
from simfed.verify import verify

TINY = """
name: tiny
rounds: 4
dataset: {name: mnist-mini, public: 32}
prototypes: {small: {model: lenet5-half}, large: {model: lenet5}}
client_order: round-robin
clients:
  - {count: 2, prototype: small, device: rtx3090-ryzen4800h,
     link: {up: 50 Mbps, down: 300 Mbps, latency: 10 ms}}
  - {count: 2, prototype: large, device: {profile: rtx3090-ryzen4800h, speed: 0.5},
     link: {up: 20 Mbps}}
compression: {k: 500}
policy: {kind: ascend, warmup: 1, reward: {local_loss: {samples: 16}}}
network: {server: {receive: 60 Mbps}}
evaluation: {every: 2}
"""
FILES = {
    *("scenario.yaml", "manifest.json", "summary.json", "journal.jsonl.zst"),
    *("checkpoint", "calibration", "rounds.parquet", "prototypes.parquet"),
    *("participations.parquet", "policies.parquet", "links.parquet", "spans.parquet"),
}


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def play(path, out=None, overrides=(), **options):
    scenario = simfed.load_scenario(path, overrides)
    return simfed.run(
        scenario, out, source=path, **{"progress": False, "workers": 1, **options}
    )


def sentences(path, overrides):
    with pytest.raises((InputErrors, InputError)) as caught:
        simfed.check(simfed.load_scenario(path, overrides), source=path)
    return str(caught.value).split("\n")


def test_a_scenario_may_be_its_file_or_a_mapping(tiny):
    timed = {**yaml.safe_load(TINY), "policy": {"kind": "uniform", "strategy": "top-k"}}
    tiny.write_text(yaml.safe_dump(timed))
    prints = {
        simfed.run(what, time_only=True, progress=False).fingerprint
        for what in (tiny, str(tiny), timed, simfed.load_scenario(tiny))
    }
    assert len(prints) == 1
    with pytest.raises(InputErrors, match="scenario: rounds: "):
        simfed.run({**timed, "rounds": 0})
    with pytest.raises(
        InputError, match="scenario: got 3, expected a scenario, its file or a mapping"
    ):
        simfed.run(3)


def test_a_notebook_shows_a_run(tiny):
    uniform = {"policy": {"kind": "uniform", "strategy": "top-k"}}
    timed = play(tiny, overrides=uniform, time_only=True)._repr_html_()
    assert "tiny" in timed
    assert "<svg" not in timed
    learned = play(tiny)._repr_html_()
    assert learned.count("<svg") == 1
    assert "test accuracy" in learned
    assert "<script" not in learned


class Shown:
    """A notebook's display, and what stood there one after the other."""

    def __init__(self):
        self.texts = []

    def __call__(self, data, *, raw, display_id):
        assert raw
        assert display_id
        return self.update(data, raw=True)

    def update(self, data, *, raw):
        self.texts.append(data["text/html"])
        return self


def in_a_notebook(monkeypatch):
    """Return what a notebook shows, as if this process were its kernel."""
    shown = Shown()
    display = types.SimpleNamespace(display=shown)
    shell = types.SimpleNamespace(
        get_ipython=object, display=display, version_info=(9, 0)
    )
    monkeypatch.setitem(sys.modules, "ipykernel", shell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shell.display)
    monkeypatch.setattr("simfed.report.notebook._LEAST_PAUSE_WALL_S", 0.0)
    monkeypatch.setattr("simfed.report.notebook._SHARE_OF_TIME", float("inf"))
    return shown


def test_a_notebook_draws_a_run_as_it_goes(tiny, monkeypatch, capsys):
    shown = in_a_notebook(monkeypatch)
    asked = {"overrides": {"rounds": 3, "evaluation.every": 2}}
    run = play(tiny, **asked, progress=True)
    first, second, last = shown.texts
    assert "round 1/3" in first
    assert "<svg" not in first  # nothing was evaluated yet
    assert second.count("<svg") == last.count("<svg") == 1
    assert "round 3/3" in last
    assert "accuracy" in last
    assert capsys.readouterr() == ("", "")
    assert (play(tiny, **asked).fingerprint, len(shown.texts)) == (run.fingerprint, 3)


def test_a_run_directory_is_whole_and_sound(tiny, tmp_path):
    result = play(tiny, tmp_path / "run")
    assert {f.name for f in (tmp_path / "run").iterdir()} == FILES
    assert len(result.rounds) == 4
    assert len(result.participations) == 16
    assert result.summary["accuracy"].keys() == {"small", "large", "mean"}
    assert result.prototypes.dropna()["round"].unique().tolist() == [2, 4]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["models"]["large"] == {
        "model": "lenet5",
        "parameters": 61706,
        "buffers": 0,
    }
    assert manifest["wall_s"]["total"] > 0
    assert manifest["fingerprint"] == result.fingerprint


def test_the_resolved_scenario_runs_as_it_is_to_the_same_fingerprint(tiny, tmp_path):
    """From another folder, where only the copies of profile and traces can be found."""
    shutil.copy("calibration/rtx3090-ryzen4800h.yaml", tmp_path / "mine.yaml")
    (tmp_path / "other").mkdir()
    traces = [tmp_path / "lte.csv", tmp_path / "other" / "lte.csv"]
    for trace, low in zip(traces, (1, 3), strict=True):
        trace.write_text(f"0,20\n0.01,{low}\n")
    changes = {
        "clients[*].device.profile": "mine.yaml",
        "clients[0].link.up": {"file": str(traces[0]), "format": "csv", "end": "hold"},
        "clients[1].link.up": {"file": str(traces[1]), "format": "csv", "end": "hold"},
    }
    first = play(tiny, tmp_path / "run", changes)
    for file in (tmp_path / "mine.yaml", *traces):
        file.unlink()
    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert str(tmp_path) not in (moved / "scenario.yaml").read_text()
    second = play(moved / "scenario.yaml", tmp_path / "again")
    assert second.fingerprint == first.fingerprint == simfed.load_run(moved).fingerprint


@pytest.mark.parametrize("files", ["lte/{client}.csv", "lte", ["lte/1.csv"]])
def test_a_run_keeps_the_trace_of_each_client(tiny, tmp_path, files):
    (tmp_path / "lte").mkdir()
    for client in range(9):
        (tmp_path / "lte" / f"{client}.csv").write_text(f"0,{client + 1}\n1,20\n")
    several = [files] if isinstance(files, str) else files
    named = [str(tmp_path / name) for name in several]
    trace = {"file": named if files == several else named[0]}
    trace |= {"format": "csv", "end": "hold"}
    changes = {"clients[0].link.up": trace, "clients[1].link.up": trace}
    first = play(tiny, tmp_path / "run", time_only_overrides(**changes), time_only=True)
    said = "clients take 1 trace in turn" if files == several else "no such warning"
    assert any(said in w for w in first.manifest["warnings"]) is (files == several)
    shutil.rmtree(tmp_path / "lte")
    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert str(tmp_path) not in (moved / "scenario.yaml").read_text()
    second = play(moved / "scenario.yaml", tmp_path / "again", time_only=True)
    assert second.fingerprint == first.fingerprint


def test_resume_wants_the_same_scenario_and_a_folder(tiny, tmp_path):
    play(tiny, tmp_path / "run")
    with pytest.raises(
        InputError,
        match=r"got 'rounds: 5 in place of rounds: 4', "
        r"expected .*began with",
    ):
        play(tiny, tmp_path / "run", {"rounds": 5}, resume=True)
    with pytest.raises(InputError, match="a run directory to go on with"):
        play(tiny, resume=True)


def test_another_run_is_never_overwritten_unasked(tiny, tmp_path):
    play(tiny, tmp_path / "run", time_only_overrides(), time_only=True)
    with pytest.raises(InputError, match="it holds a run"):
        play(tiny, tmp_path / "run")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="a folder with other files in it"):
        play(tiny, tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "precious"
    play(
        tiny,
        tmp_path / "run",
        time_only_overrides(seed=9),
        time_only=True,
        overwrite=True,
    )
    assert simfed.load_run(tmp_path / "run").manifest["seed"] == 9


def time_only_overrides(**more):
    return {"policy": {"kind": "uniform", "strategy": "random-k"}, **more}


def test_a_recorded_run_is_found_from_the_scenarios_own_folder(
    tiny, tmp_path, monkeypatch
):
    """And from the new run's resolved scenario, which goes on and runs as it is."""

    def stop_after_two(round, simulated_s, accuracy):
        if round == 2:
            raise KeyboardInterrupt

    full = play(tiny, tmp_path / "full")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    overrides = {"policy.arms_from": "full", "checkpoint.every": 1}
    with pytest.raises(Interrupted):
        play(
            tiny, tmp_path / "clock", overrides, time_only=True, progress=stop_after_two
        )
    clock = play(tiny, tmp_path / "clock", overrides, time_only=True, resume=True)
    assert clock.participations["arm"].equals(full.participations["arm"])
    again = play(tmp_path / "clock" / "scenario.yaml", time_only=True)
    assert again.fingerprint == clock.fingerprint


FEDAVG = {
    "method": "fedavg",
    "dataset.public": None,
    "prototypes": {"small": {"model": "lenet5-half"}},
    "clients[*].prototype": "small",
    "policy": {"kind": "uniform", "strategy": "top-k"},
}


def test_federated_averaging_too_is_checked_against_the_data_and_not_by_a_clock(tiny):
    crowd = {
        **FEDAVG,
        "clients[*].count": 6_000,
        "rounds": 1,
        "participation.clients_per_round": 3,
    }
    (sentence,) = sentences(tiny, crowd)
    assert (
        "clients: got 12000, expected at most 10000 clients, as mnist-mini has 10000 "
        "training samples" in sentence
    )
    assert len(play(tiny, overrides=crowd, time_only=True).participations) == 3
    exactly = {**FEDAVG, "clients[*].count": 5_000}
    assert simfed.check(simfed.load_scenario(tiny, exactly), source=tiny) == []
    shards = {"dataset.partition": {"kind": "shards", "shards_per_client": 2}}
    (sentence,) = sentences(tiny, {**exactly, **shards})
    assert (
        "dataset.partition.shards_per_client: got 2, expected at most 1, so that no "
        "shard is empty"
    ) in sentence


# ---- one folder, several wishes ------------------------------------------------------


def listing(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def keep(tiny, tmp_path):
    """A finished run, and something of the user's beside its tables."""
    play(tiny, tmp_path / "keep", time_only_overrides(), time_only=True)
    (tmp_path / "keep" / "notes.txt").write_text("mine")
    return tmp_path / "keep"


@pytest.mark.parametrize(
    ("options", "overrides", "sentence"),
    [
        ({"time_only": True}, {}, "a policy that needs no rewards"),
        ({}, {"policy.arms_from": "/nope"}, "policy.arms_from"),
        ({"device": "nothing"}, {}, "a device: cpu or cuda"),
    ],
)
def test_a_refused_run_replaces_nothing(tiny, keep, options, overrides, sentence):
    before = listing(keep)
    with pytest.raises((InputError, InputErrors), match=sentence):
        play(tiny, keep, overrides, overwrite=True, **options)
    assert listing(keep) == before


def a_run_of(tiny, out, error, at_round, **overrides):
    def fail(round, simulated_s, accuracy):
        if round == at_round:
            raise error

    return play(
        tiny,
        out,
        time_only_overrides(**overrides),
        time_only=True,
        overwrite=True,
        progress=fail,
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [(KeyboardInterrupt(), Interrupted), (RunFailed("diverged"), RunFailed)],
)
def test_the_old_run_is_back_when_nothing_came_of_the_new_one(tiny, keep, error, told):
    before = listing(keep)
    with pytest.raises(told, match="keep holds the run that was there before"):
        a_run_of(tiny, keep, error, 2, **{"checkpoint.every": 3})
    assert listing(keep) == before


def test_an_interruption_before_the_first_round_leaves_nothing(
    tiny, tmp_path, monkeypatch
):
    def interrupt(self, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("simfed.sim.Simulation.run", interrupt)
    with pytest.raises(
        Interrupted, match="stopped at once; no round was done and nothing is kept"
    ):
        play(tiny, tmp_path / "run", time_only_overrides(), time_only=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_a_folder_in_which_a_run_is_going_is_nobody_elses(tiny, tmp_path, options):
    overrides, out, said = (
        time_only_overrides(**{"checkpoint.every": 1}),
        tmp_path / "run",
        [],
    )

    def second(round, simulated_s, accuracy):
        if round == 2:
            with pytest.raises(InputError) as caught:
                play(tiny, out, overrides, time_only=True, **options)
            said.append(str(caught.value))

    first = play(tiny, out, overrides, time_only=True, progress=second)
    assert said == [
        (
            f"{out}: got 'one held by process {os.getpid()} on {platform.node()}', "
            "expected a run folder that nobody else is writing"
        )
    ]
    assert simfed.load_run(out).fingerprint == first.fingerprint
    assert verify(out) == []


def test_going_on_with_a_finished_run_gives_it_and_changes_nothing(tiny, keep):
    before = listing(keep)
    run = play(tiny, keep, time_only_overrides(), time_only=True, resume=True)
    assert run.fingerprint == simfed.load_run(keep).fingerprint
    assert listing(keep) == before


def test_a_run_goes_into_the_folder_one_is_in_and_behind_a_link(
    tiny, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert len(play(tiny, ".", time_only_overrides(), time_only=True).rounds) == 4
    (tmp_path / "link").symlink_to(tmp_path / "here")
    play(
        tiny,
        tmp_path / "link",
        time_only_overrides(seed=7),
        time_only=True,
        overwrite=True,
    )
    assert (tmp_path / "link").is_symlink()
    assert simfed.load_run(".").manifest["seed"] == 7


def test_a_failing_run_says_so_and_is_not_taken_for_a_finished_one(tiny, tmp_path):
    def explode(round, simulated_s, accuracy):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        play(
            tiny,
            tmp_path / "run",
            time_only_overrides(),
            time_only=True,
            progress=explode,
        )
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["reason"]) == ("failed", "boom")


@pytest.fixture
def profile(tmp_path):
    """Changes the profile in use, beside the scenario, before it is read."""

    def change(**changes):
        shipped = yaml.safe_load(
            Path("calibration/rtx3090-ryzen4800h.yaml").read_text()
        )
        (tmp_path / "rtx3090-ryzen4800h.yaml").write_text(
            yaml.safe_dump({**shipped, **changes})
        )
        return shipped

    return change


def test_what_a_rollback_forces_must_be_in_the_profile(tiny, profile):
    models = profile()["compression"]
    profile(
        compression={
            m: {s: v for s, v in one.items() if s != "top-k"}
            for m, one in models.items()
        }
    )
    blind = {"compression.strategies": ["random-k", "periodic-k"]}
    assert "got 'top-k'" in "".join(sentences(tiny, blind))
    assert (
        simfed.check(
            simfed.load_scenario(tiny, {**blind, "safeguard.rollback": None}),
            source=tiny,
        )
        is not None
    )


def test_power_is_known_of_every_phase_or_of_none(tiny, profile):
    profile(power={"training": "4 W", "uplink": "1 W", "idle": "1 W"})
    said = sentences(tiny, {})
    assert "none for compression, downlink" in said[0]
    profile(
        power=dict.fromkeys(
            ("training", "compression", "uplink", "downlink", "idle"), "1 W"
        )
    )
    assert simfed.check(simfed.load_scenario(tiny), source=tiny) is not None


def test_a_run_without_learning_that_was_stopped_begins_again(tiny, tmp_path):
    def press_ctrl_c(round, simulated_s, accuracy):
        if round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    overrides = time_only_overrides()
    with pytest.raises(Interrupted, match=r"stopped after round 3$"):
        play(tiny, tmp_path / "run", overrides, time_only=True, progress=press_ctrl_c)
    assert read_manifest(tmp_path / "run")["reason"] == "stopped after round 3"
    resumed = play(tiny, tmp_path / "run", overrides, time_only=True, resume=True)
    assert (
        resumed.fingerprint
        == play(tiny, overrides=overrides, time_only=True).fingerprint
    )


def test_other_yaml_files_are_no_profiles_and_a_broken_profile_says_so(tiny, tmp_path):
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "odd.yaml").write_text(
        "kind: table\nname: odd\nsurprise: 1\n"
    )
    listed = dict(list_profiles(tmp_path))
    assert "tiny" not in listed
    assert "surprise" in listed["odd"]


@pytest.mark.parametrize(
    ("changes", "asked", "cores", "workers"),
    [
        ({}, None, 2, 2),
        ({}, 1_000_000, 16, 4),
        ({"clients[*].count": 50}, 1_000_000, 2, 8),
        ({"clients[*].count": 50}, 5, 2, 5),
        ({"participation.clients_per_round": 3}, None, 16, 3),
        (
            {
                "aggregation": {"mode": "buffered", "concurrency": 2, "buffer": 2},
                "policy": {"kind": "uniform", "strategy": "top-k"},
            },
            1_000_000,
            16,
            2,
        ),
    ],
)
def test_workers_never_outnumber_who_takes_part_and_a_few_for_each_core(
    tiny, monkeypatch, changes, asked, cores, workers
):
    monkeypatch.setattr("simfed.ground.cores.available_cores", lambda: cores)
    monkeypatch.setattr("simfed.experiment.running.available_cores", lambda: cores)
    assert choose_workers(simfed.load_scenario(tiny, changes), asked) == workers


TOLD = {
    "dense": 15_738,
    "qsgd": 15_738,
    "fp16": 15_738,
    "ef-sign": 15_738,
    "terngrad": 15_738,
    "powersgd": 15_738,
    "svd": 15_738,
    "top-k": 500,
    "random-k+qsgd(4)": 500,
    "ef21": 500,
    "ef21(qsgd(4))": 15_738,
    # of 75 weights 8, of 3 biases 1
    "layers(conv1*=top-k@10%,*=fp16)": 15_738 - 78 + 9,
}


def test_k_is_the_number_of_entries_that_a_payload_says_anything_about():
    [group] = worlds.TINY["clients"]
    policies = [{"kind": "uniform", "strategy": codec} for codec in TOLD]
    clients = [group | {"count": 1, "policy": policy} for policy in policies]
    keys = {"rounds": 1, "clients": clients, "prototypes.a.model": "lenet5-half"}
    run = worlds.play(worlds.world("tiny", keys | {"compression.k": 500}))
    assert run.participations["k"].tolist() == [*TOLD.values()]


def count_sent(codec, size_bytes):
    """Return K of an upload of 7,850 entries, two layers, with indices of 13 bits."""
    heads = 4 + 4 * 2 * (codec == "adacomp")
    value_bits = 1 if codec == "adacomp" else 32
    return next(
        k
        for k in range(1, 7851)
        if heads + -(-value_bits * k // 8) + -(-13 * k // 8) == size_bytes
    )


@pytest.mark.parametrize("codec", ["adacomp", "dgc"])
def test_k_of_what_a_codec_chose_itself_is_what_was_sent(codec):
    keys = {
        "rounds": 6,
        "clients[0].count": 3,
        "clients[0].failure": {"training": 0.2, "upload": 0.3},
        "training.local_steps": 1,
        "compression": {"k": 50, "index_code": "fixed"},
        "policy.strategy": codec,
    }
    parts = worlds.play(worlds.world("tiny", keys)).participations
    arrived = parts[parts["outcome"] == "aggregated"]
    assert len(arrived) < len(parts)
    sent = [count_sent(codec, size) for size in arrived["uplink_bytes"]]
    assert arrived["k"].tolist() == sent
    assert len({*sent}) > 2
    never_began = parts[(parts["outcome"] == "failed") & (parts["uplink_bytes"] == 0)]
    assert {*never_began["k"]} == {50}
