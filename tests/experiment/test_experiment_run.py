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
TABLES = "rounds", "prototypes", "participations", "policies", "links", "spans"
FILES = {
    *("scenario.yaml", "manifest.json", "summary.json", "journal.jsonl.zst"),
    *("checkpoint", "calibration", *(f"{table}.parquet" for table in TABLES)),
}
UNIFORM = {"policy": {"kind": "uniform", "strategy": "random-k"}}


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


def play_clock(path, out=None, **options):
    """The same without learning, its overrides beside another policy."""
    overrides = UNIFORM | options.pop("overrides", {})
    return play(path, out, overrides, time_only=True, **options)


def check(path, overrides):
    return simfed.check(simfed.load_scenario(path, overrides), source=path)


def interrupt_after(last, error=KeyboardInterrupt):
    """A run's progress that ends it."""

    def progress(round, simulated_s, accuracy):
        if round == last:
            raise error

    return progress


def test_scenario_may_be_its_file_or_a_mapping(tiny):
    timed = {**yaml.safe_load(TINY), **UNIFORM}
    tiny.write_text(yaml.safe_dump(timed))
    prints = {
        simfed.run(what, time_only=True, progress=False).fingerprint
        for what in (tiny, str(tiny), timed, simfed.load_scenario(tiny))
    }
    assert len(prints) == 1
    with pytest.raises(InputErrors, match="scenario: rounds: "):
        simfed.run({**timed, "rounds": 0})
    with pytest.raises(InputError, match="got 3, expected a scenario, its file or a"):
        simfed.run(3)
    with pytest.raises(InputError, match="a run directory to go on with"):
        simfed.run(tiny, resume=True)


def test_notebook_shows_a_run(tiny):
    timed, learned = (run._repr_html_() for run in (play_clock(tiny), play(tiny)))
    assert "tiny" in timed
    assert "test accuracy" in learned
    assert [timed.count("<svg"), learned.count("<svg")] == [0, 1]
    assert "<script" not in learned


class Shown:
    """A notebook's display, and what stood there one after the other."""

    def __init__(self):
        self.texts = []

    def update(self, data, *, raw, display_id="shown"):
        assert raw
        assert display_id
        self.texts.append(data["text/html"])
        return self

    __call__ = update


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows, as if this process were its kernel."""
    shown = Shown()
    display = types.SimpleNamespace(display=shown)
    shell = types.SimpleNamespace(
        get_ipython=object, display=display, version_info=(9, 0)
    )
    monkeypatch.setitem(sys.modules, "ipykernel", shell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("simfed.report.notebook._LEAST_PAUSE_WALL_S", 0.0)
    monkeypatch.setattr("simfed.report.notebook._SHARE_OF_TIME", float("inf"))
    return shown


def test_notebook_draws_a_run_as_it_goes(tiny, shown, capsys):
    asked = {"overrides": {"rounds": 3, "evaluation.every": 2}}
    run = play(tiny, **asked, progress=True)
    first, _, last = shown.texts
    assert "round 1/3" in first
    # nothing was evaluated at first
    assert [text.count("<svg") for text in shown.texts] == [0, 1, 1]
    assert "round 3/3" in last
    assert "accuracy" in last
    assert capsys.readouterr() == ("", "")
    assert (play(tiny, **asked).fingerprint, len(shown.texts)) == (run.fingerprint, 3)


def test_run_directory_is_whole_and_sound(tiny, tmp_path):
    run = play(tiny, tmp_path / "run")
    assert {f.name for f in run.path.iterdir()} == FILES
    assert (len(run.rounds), len(run.participations)) == (4, 16)
    assert run.summary["accuracy"].keys() == {"small", "large", "mean"}
    assert run.prototypes.dropna()["round"].unique().tolist() == [2, 4]
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    large = {"model": "lenet5", "parameters": 61706, "buffers": 0}
    assert manifest["models"]["large"] == large
    assert manifest["wall_s"]["total"] > 0
    assert manifest["fingerprint"] == run.fingerprint


@pytest.mark.parametrize(
    "named",
    [
        ("lte/1.csv", "other/1.csv"),
        ("lte/{client}.csv", "other/{client}.csv"),
        ("lte", "other"),
        (["lte/1.csv"], ["other/1.csv"]),
    ],
)
def test_resolved_scenario_runs_as_it_is_where_its_files_are_gone(
    tiny, tmp_path, named
):
    """From another folder, where only the copies of profile and traces can be found."""
    source, alone = tmp_path / "source", isinstance(named[0], list)
    shutil.copytree("calibration", source)
    changes = {"clients[*].device.profile": str(source / "rtx3090-ryzen4800h.yaml")}
    for k, files in enumerate(named):
        folder = source / ("lte", "other")[k]
        folder.mkdir()
        for client in range(9):
            (folder / f"{client}.csv").write_text(f"0,{client + k + 1}\n1,20\n")
        file = [f"{source}/{files[0]}"] if alone else f"{source}/{files}"
        up = {"file": file, "format": "csv", "end": "hold"}
        changes[f"clients[{k}].link.up"] = up
    first = play_clock(tiny, tmp_path / "run", overrides=changes)
    told = "clients take 1 trace in turn" in " ".join(first.manifest["warnings"])
    assert told == alone
    shutil.rmtree(source)
    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert str(tmp_path) not in (moved / "scenario.yaml").read_text()
    again = play(moved / "scenario.yaml", time_only=True)
    assert again.fingerprint == first.fingerprint == simfed.load_run(moved).fingerprint


def test_recorded_run_is_found_from_the_scenarios_own_folder(
    tiny, tmp_path, monkeypatch
):
    """And from the new run's resolved scenario, which goes on and runs as it is."""
    full, out = play(tiny, tmp_path / "full"), tmp_path / "clock"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    overrides = {"policy.arms_from": "full", "checkpoint.every": 1}
    with pytest.raises(Interrupted):
        play(tiny, out, overrides, time_only=True, progress=interrupt_after(2))
    clock = play(tiny, out, overrides, time_only=True, resume=True)
    assert clock.participations["arm"].equals(full.participations["arm"])
    again = play(out / "scenario.yaml", time_only=True)
    assert again.fingerprint == clock.fingerprint


FEDAVG = yaml.safe_load("""
method: fedavg
dataset.public: null
prototypes: {small: {model: lenet5-half}}
clients[*].prototype: small
clients[*].count: 5000
policy: {kind: uniform, strategy: random-k}
""")
CROWD = {"clients[*].count": 6_000, "rounds": 1, "participation.clients_per_round": 3}
SHARDS = {"dataset.partition": {"kind": "shards", "shards_per_client": 2}}


def test_clients_are_at_most_the_samples_but_of_a_clock(tiny):
    assert check(tiny, FEDAVG) == []
    for more, said in (
        (CROWD, "clients: got 12000, expected at most 10000 clients, as mnist-mini"),
        (SHARDS, "shards_per_client: got 2, expected at most 1, so that no shard"),
    ):
        with pytest.raises(InputErrors, match=said):
            check(tiny, FEDAVG | more)
    assert len(play_clock(tiny, overrides=FEDAVG | CROWD).participations) == 3


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
    play_clock(tiny, tmp_path / "keep")
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
def test_refused_run_replaces_nothing(tiny, keep, options, overrides, sentence):
    before = listing(keep)
    with pytest.raises((InputError, InputErrors), match=sentence):
        play(tiny, keep, overrides, overwrite=True, **options)
    assert listing(keep) == before


@pytest.mark.parametrize(
    ("error", "told"),
    [(KeyboardInterrupt(), Interrupted), (RunFailed("diverged"), RunFailed)],
)
def test_old_run_is_back_when_nothing_came_of_the_new_one(tiny, keep, error, told):
    before, late = listing(keep), {"checkpoint.every": 3}
    stop = {"overwrite": True, "progress": interrupt_after(2, error)}
    with pytest.raises(told, match="keep holds the run that was there before"):
        play_clock(tiny, keep, overrides=late, **stop)
    assert listing(keep) == before


def test_interruption_before_the_first_round_leaves_nothing(tiny, monkeypatch):
    def interrupt(self, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("simfed.sim.Simulation.run", interrupt)
    said = "stopped at once; no round was done and nothing is kept"
    with pytest.raises(Interrupted, match=said):
        play_clock(tiny, tiny.with_name("run"))
    assert not tiny.with_name("run").exists()


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_folder_in_which_a_run_is_going_is_nobody_elses(tiny, tmp_path, options):
    out, said = tmp_path / "run", []

    def begin_another(round, simulated_s, accuracy):
        with pytest.raises(InputError) as caught:
            play_clock(tiny, out, **options)
        said.append(str(caught.value))

    first = play_clock(tiny, out, progress=begin_another)
    assert {*said} == {
        f"{out}: got 'one held by process {os.getpid()} on {platform.node()}', "
        "expected a run folder that nobody else is writing"
    }
    assert simfed.load_run(out).fingerprint == first.fingerprint
    assert verify(out) == []


def test_going_on_with_a_finished_run_gives_it_and_changes_nothing(tiny, keep):
    before = listing(keep)
    run = play_clock(tiny, keep, resume=True)
    assert run.fingerprint == simfed.load_run(keep).fingerprint
    assert listing(keep) == before


def test_run_goes_into_the_folder_one_is_in_and_behind_a_link(
    tiny, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert len(play_clock(tiny, ".").rounds) == 4
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "here")
    play_clock(tiny, link, overrides={"seed": 7}, overwrite=True)
    assert link.is_symlink()
    assert simfed.load_run(".").manifest["seed"] == 7


def test_failing_run_says_so_and_is_not_taken_for_a_finished_one(tiny, tmp_path):
    boom = interrupt_after(1, RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        play_clock(tiny, tmp_path / "run", progress=boom)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["reason"]) == ("failed", "boom")


@pytest.fixture
def profile(tmp_path):
    """Changes the profile in use, beside the scenario, before it is read."""
    name = "rtx3090-ryzen4800h.yaml"
    shipped = yaml.safe_load(Path("calibration", name).read_text())

    def change(**changes):
        (tmp_path / name).write_text(yaml.safe_dump({**shipped, **changes}))
        return shipped

    return change


def test_what_a_rollback_forces_must_be_in_the_profile(tiny, profile):
    models = profile()["compression"]
    for times in models.values():
        del times["top-k"]
    profile(compression=models)
    blind = {"compression.strategies": ["random-k", "periodic-k"]}
    with pytest.raises(InputErrors, match="got 'top-k'"):
        check(tiny, blind)
    check(tiny, {**blind, "safeguard.rollback": None})


def test_power_is_known_of_every_phase_or_of_none(tiny, profile):
    power = dict.fromkeys(("training", "uplink", "idle"), "1 W")
    profile(power=power)
    with pytest.raises(InputErrors, match="none for compression, downlink"):
        check(tiny, {})
    profile(power=power | dict.fromkeys(("compression", "downlink"), "1 W"))
    check(tiny, {})


def test_run_without_learning_that_was_stopped_begins_again(tiny, tmp_path):
    def press_ctrl_c(round, simulated_s, accuracy):
        if round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    out, said = tmp_path / "run", "stopped after round 3"
    with pytest.raises(Interrupted, match=f"{said}$"):
        play_clock(tiny, out, progress=press_ctrl_c)
    assert read_manifest(out)["reason"] == said
    resumed = play_clock(tiny, out, resume=True)
    assert resumed.fingerprint == play_clock(tiny).fingerprint


def test_other_yaml_files_are_no_profiles_and_a_broken_profile_says_so(tiny, tmp_path):
    (tmp_path / "calibration").mkdir()
    odd = tmp_path / "calibration" / "odd.yaml"
    odd.write_text("kind: table\nname: odd\nsurprise: 1\n")
    listed = dict(list_profiles(tmp_path))
    assert "tiny" not in listed
    assert "surprise" in listed["odd"]


BUFFERED = {"aggregation": {"mode": "buffered", "concurrency": 2, "buffer": 2}}
HUNDRED = {"clients[*].count": 50}


@pytest.mark.parametrize(
    ("changes", "asked", "cores", "workers"),
    [
        ({}, None, 2, 2),
        ({}, 1_000_000, 16, 4),
        (HUNDRED, 1_000_000, 2, 8),
        (HUNDRED, 5, 2, 5),
        ({"participation.clients_per_round": 3}, None, 16, 3),
        (BUFFERED | UNIFORM, 1_000_000, 16, 2),
    ],
)
def test_workers_never_outnumber_who_takes_part_and_a_few_for_each_core(
    tiny, monkeypatch, changes, asked, cores, workers
):
    for room in ("ground.cores", "experiment.running"):
        monkeypatch.setattr(f"simfed.{room}.available_cores", lambda: cores)
    assert choose_workers(simfed.load_scenario(tiny, changes), asked) == workers


D = 15_738
WHOLE = "dense", "qsgd", "fp16", "ef-sign", "terngrad", "powersgd", "svd"
TOLD = {
    **dict.fromkeys((*WHOLE, "ef21(qsgd(4))"), D),
    **dict.fromkeys(("top-k", "random-k+qsgd(4)", "ef21"), 500),
    # of 75 weights 8, of 3 biases 1
    "layers(conv1*=top-k@10%,*=fp16)": D - 78 + 9,
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
