"""A simulation held against reality, and reality turned into a profile."""

import itertools
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import deploy_worlds as worlds
import numpy as np
import pandas as pd
import pytest
import yaml

import simfed
from simfed.calibrate import fit_profile, format_profile
from simfed.calibrate.from_run import centre_rows
from simfed.cli import main
from simfed.deploy.fidelity import fidelity
from simfed.device import load_profile, read_table
from simfed.verify import verify

sys.path.append(str(Path(__file__).parents[1] / "experiment"))

PHASES = "downlink_s", "training_s", "compression_s", "uplink_s"
SPANS = ["kind", "round", "client", "started_at_s", "finished_at_s"]


def run(rows, server_s=0.0, mode="full", spans=()):
    """A run of these participations: (round, client, down, training, compression, up,
    host).
    """
    parts, rounds, begins_s = [], [], 0.0
    for number, mine in itertools.groupby(rows, lambda row: row[0]):
        seconds_of = {client: seconds for _, client, *seconds in mine}
        took_s = {client: sum(seconds) for client, seconds in seconds_of.items()}
        lasts_s = max(took_s.values()) + server_s
        rounds.append((number, lasts_s, server_s, max(took_s, key=took_s.get)))
        parts += [
            {
                "round": number,
                "client": client,
                "arm": "top-k",
                "outcome": "aggregated",
                "started_at_s": begins_s,
                "finished_at_s": begins_s + lasts_s,
                "offline_s": 0.0,
                "waiting_s": lasts_s - took_s[client],
                **dict(zip(PHASES, seconds, strict=False)),
            }
            for client, seconds in seconds_of.items()
        ]
        begins_s += lasts_s
    columns = ["round", "duration_s", "server_s", "critical_client"]
    return SimpleNamespace(
        participations=pd.DataFrame(parts),
        rounds=pd.DataFrame(rounds, columns=columns),
        manifest={"mode": mode},
        scenario={"aggregation": {"mode": "synchronous"}},
        spans=pd.DataFrame(spans, columns=SPANS),
    )


def steady(*seconds, **options):
    """Two rounds of one client."""
    return run([(1, 0, *seconds), (2, 0, *seconds)], **options)


UNEVEN = [(1, 0, 1.0, 1.0, 0.5, 2.0), (1, 1, 1.0, 1.0, 0.5, 1.0)]


def test_errors_stand_per_phase_client_and_round():
    real = run([(1, 0, 1.0, 2.0, 0.5, 2.0), (1, 1, 1.0, 4.0, 0.5, 1.0)])
    gaps = fidelity(run(UNEVEN), real)
    phases = gaps.phases.set_index("phase")["error"]
    assert phases["training"] == pytest.approx(1 / 3 - 1)
    assert phases["download"] == phases["upload"] == 0
    errors = pytest.approx([4.5 / 5.5 - 1, 3.5 / 6.5 - 1])
    assert gaps.clients["error"].tolist() == errors
    assert (gaps.makespan_s, gaps.named_right) == ((4.5, 6.5), 0.0)
    first = gaps.explanations.iloc[0]
    assert (first["phase"], first["explained"]) == ("training", pytest.approx(1.0))
    assert len(gaps.beyond(0.05)) == 2
    assert gaps.beyond(0.5) == []
    assert gaps.lengths.paired.seeds == 1
    assert gaps.lengths.paired.ratio.exact == pytest.approx(6.5 / 4.5)
    assert "no clear difference" in "; ".join(gaps.sentences())


def test_rounds_are_compared_in_pairs_with_an_interval():
    simulated, real = (
        run([(n, 0, 1.0, training_s, 0.5, 1.0 + n / 10) for n in range(1, 6)])
        for training_s in (1.0, 2.0)
    )
    paired = fidelity(simulated, real).lengths.paired
    assert (paired.seeds, paired.wins, paired.clear) == (5, 5, 1)
    assert paired.ratio.low < paired.ratio.exact < paired.ratio.high
    for ours, theirs, who in (
        (simulated, real, "the simulation"),
        (real, simulated, "reality"),
    ):
        said = "; ".join(fidelity(ours, theirs).sentences())
        assert f"rounds of {who} end 1.26×" in said


def test_host_time_and_server_work_are_assumptions_of_their_own():
    simulated = steady(1.0, 1.0, 0.0, 1.0)
    hosts = steady(1.0, 1.0, 0.0, 1.0, 0.7, mode="deployed")
    servers = steady(1.0, 1.0, 0.0, 1.0, server_s=0.5, mode="deployed")
    for real, phase in (hosts, "host"), (servers, "server"):
        gaps = fidelity(simulated, real)
        assert gaps.explanations["phase"].iloc[0] == phase
    assert "server's work" in list(gaps.sentences())[-1]


def test_run_is_no_error_away_from_itself():
    gaps = fidelity(run(UNEVEN), run(UNEVEN))
    assert (gaps.makespan_error, gaps.round_error, gaps.named_right) == (0.0, 0.0, 1.0)
    assert gaps.beyond(0.001) == []


@pytest.mark.parametrize(
    ("simulated", "real", "named_right", "most_common"),
    [
        ([1, 1], [np.nan, 1], 1.0, 1.0),
        ([1, 1], [0, 1], 0.5, 0.5),
        ([np.nan, np.nan], [0, 1], 0.0, 0.5),
        ([np.nan, np.nan], [np.nan, np.nan], np.nan, 0.0),
    ],
)
def test_rounds_that_name_no_straggler_are_not_counted(
    simulated, real, named_right, most_common
):
    """Below edge servers the links behind them may take longer than any client."""
    pair = []
    for named in (simulated, real):
        pair.append(steady(1.0, 1.0, 0.5, 1.0))
        pair[-1].rounds["critical_client"] = named
    gaps = fidelity(*pair)
    expected = pytest.approx([named_right, most_common], nan_ok=True)
    assert [gaps.named_right, gaps.most_common] == expected
    nobody = "no round of reality names a straggler" in list(gaps.sentences())
    assert nobody == np.isnan(named_right)


def test_simulated_handling_of_messages_stands_against_the_time_of_hosts():
    spans = [("handling", 1, 0, 1.0, 1.5), ("handling", 2, 0, 4.5, 5.0)]
    simulated = steady(1.0, 1.5, 0.0, 1.0, spans=spans)
    real = steady(1.0, 1.0, 0.0, 1.0, 0.5, mode="deployed")
    phases = fidelity(simulated, real).phases.set_index("phase")
    found_s = phases.loc[["training", "host"], ["simulated_s", "real_s"]].to_numpy()
    assert found_s == pytest.approx(np.array([[1.0, 1.0], [0.5, 0.5]]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(simulated, real): folders of the same scenario's runs."""
    folder = tmp_path_factory.mktemp("pair")
    plan = worlds.scenario(method="fedavg", rounds=4, checkpoint={"every": 0})
    simfed.run(plan, folder / "simulated", progress=False, workers=1)
    worlds.deployed(plan, folder / "real")
    return folder / "simulated", folder / "real"


def test_compare_prints_the_errors_and_keeps_the_bound(pair, tmp_path, capsys):
    simulated, real = map(str, pair)
    page = tmp_path / "page.html"
    assert main(["compare", simulated, real, "--out", str(page)]) == 0
    assert "straggler named as in reality" in capsys.readouterr().out
    text = page.read_text()
    for words in ("simulated</h3>", "real</h3>", "one scale of time", "Per particip"):
        assert words in text
    assert main(["compare", real, real, "--bound", "1%"]) == 0
    assert main(["compare", simulated, real, "--bound", "1%"]) == 3


@pytest.mark.parametrize(
    ("second", "names"),
    [("fast/b", ("a", "b")), ("fast/a", ("the first", "the second"))],
)
def test_of_two_simulations_none_is_called_real(tmp_path, capsys, second, names):
    folders, page = [tmp_path / "slow/a", tmp_path / second], tmp_path / "page.html"
    for seed, folder in enumerate(folders):
        plan = worlds.scenario(method="fedavg", seed=seed)
        simfed.run(plan, folder, time_only=True, progress=False)
    assert main(["compare", *map(str, folders), "--out", str(page)]) == 0
    said = capsys.readouterr().out
    first, *_ = said.splitlines()
    assert first.startswith("phase ")
    assert all(name in first for name in names)
    assert f"rounds of {names[0]}" in said
    assert not re.search(r"\breal\b|simulated|realit", said)
    assert f"<h3>{names[0]}</h3>" in page.read_text()
    assert "<h3>real</h3>" not in page.read_text()


def fit(out, *runs, kind="table", more=()):
    """Fit a profile to deployed runs; the scenario that comes with it, as it says."""
    sources = [word for run in runs for word in ("--from", str(run))]
    words = ["--kind", kind, "--out", str(out), *more]
    assert main(["calibrate", "fit", *sources, *words]) == 0
    return yaml.safe_load(out.with_suffix(".scenario.yaml").read_text())


def play(out, scenario=None):
    """The fitted scenario, or another one beside it, simulated."""
    scenario = scenario or out.with_suffix(".scenario.yaml")
    return simfed.run(scenario, source=out, progress=False, workers=1)


def read_rows(out, quantity):
    rows = pd.read_csv(out.with_suffix(".csv"))
    return rows[rows["quantity"] == quantity]


def read_spans(run):
    spans = run.spans
    return spans.assign(s=spans["finished_at_s"] - spans["started_at_s"])


def read_ms(said):
    return float(said.removesuffix(" ms"))


NOT_TOLD = {
    "rounds.critical_phase",
    "rounds.saved_without_critical_s",
    "participations.energy_j",
    "participations.local_loss",
    "participations.gain",
    "spans.name",
}
"""Of what real clients did, nothing tells otherwise."""


@pytest.mark.long
def test_what_is_forged_in_a_run_that_no_clock_plays_again_is_found(pair, tmp_path):
    from forging import VALUES

    assert verify(pair[1]) == []
    tables = ("rounds", "participations", "spans")
    passed = {
        forgery.name
        for forgery in VALUES
        if forgery.name.partition(".")[0] in tables
        and not verify(forgery.of(pair[1], tmp_path / "copy"))
    }
    assert passed <= NOT_TOLD


def test_deployed_run_becomes_a_profile_with_which_its_simulation_is_better(
    pair, tmp_path
):
    simulated, there = map(simfed.load_run, pair)
    assert (there.participations[["training_s", "compression_s"]] > 0).all(axis=None)
    out = tmp_path / "calibration" / "here.yaml"
    said = fit(out, there.path)
    assert said["clients"][0]["device"]["profile"] == "here"
    plan = out.with_suffix(".scenario.yaml").rename(tmp_path / "here.scenario.yaml")
    # without the noise that was measured, which on a busy machine is anything
    quiet = simfed.load_scenario(plan, {"clients[*].device.noise": None})
    again = simfed.run(quiet, source=plan, progress=False, workers=1)
    before, after = fidelity(simulated, there), fidelity(again, there)
    assert abs(after.makespan_error) < abs(before.makespan_error)
    was, now = (
        gaps.phases.set_index("phase").error["upload"] for gaps in (before, after)
    )
    assert abs(now) < abs(was)


def test_what_hosts_and_the_server_took_is_in_the_scenario_that_a_deployed_run_becomes(
    pair, tmp_path
):
    """And a simulation of it takes these seconds."""
    out = tmp_path / "here.yaml"
    server = fit(out, pair[1])["server"]["device"]["assume"]
    assert {*server} >= {"handling", "evaluation", "inference"}
    spans = read_spans(simfed.load_run(pair[1]))
    spans = spans[spans["track"] == "server"]
    tests = spans["name"] == "evaluation"
    # nobody is asked for a loss here: the clock charges none, though a host's own
    # bookkeeping of it took a microsecond
    merging = ~tests & (spans["name"] != "losses")
    merge_s = spans[merging].groupby("round")["s"].sum().median()
    again = play(out)
    first_s, *_, last_s = again.rounds["server_s"]
    assert first_s == pytest.approx(merge_s, rel=1e-3)
    assert last_s - first_s == pytest.approx(spans[tests]["s"].median(), rel=1e-3)
    assert {*again.spans["kind"]} >= {"handling", "evaluation"}
    fit(out, pair[1], more=["--no-host"])
    assert "handling" not in yaml.safe_load(out.read_text())


def test_fixed_policy_is_not_charged_for_the_losses_that_a_learning_one_waits_for(
    tmp_path,
):
    """Simulated from a deployment of the other."""
    exp3 = {"kind": "exp3", "mixing": 0.1}
    plan = worlds.scenario(method="fedavg", rounds=3, policy=exp3)
    spans = read_spans(worlds.deployed(plan, tmp_path / "real"))
    waits = (spans["track"] == "server") & (spans["name"] == "losses")
    losses_s = spans[waits]["s"].median()
    assert losses_s > 0
    out = tmp_path / "here.yaml"
    said = fit(out, tmp_path / "real")
    told_ms = read_ms(said["server"]["device"]["assume"]["losses"])
    assert told_ms == pytest.approx(1e3 * losses_s, rel=1e-3)
    top_k = {"kind": "uniform", "strategy": "top-k"}
    learning_s, fixed_s = (
        play(out, {**said, "policy": policy}).rounds["server_s"].iloc[0]
        for policy in ({"kind": "exp3"}, top_k)
    )
    assert learning_s - fixed_s == pytest.approx(losses_s, rel=1e-3)


def test_what_a_scenario_said_of_its_devices_gives_way_to_what_was_measured(tmp_path):
    assume = {"training": "9 s", "compression": "9 s", "auxiliary": "1 ms"}
    clients = [{"count": 3, "prototype": "small", "device": {"assume": assume}}]
    plan = worlds.scenario(method="fedavg", clients=clients)
    worlds.deployed(plan, tmp_path / "real")
    out = tmp_path / "here.yaml"
    (group,) = fit(out, tmp_path / "real")["clients"]
    said = {name: s for name, s in group["device"]["assume"].items() if s is not None}
    assert said == {"auxiliary": "0.001 s"}
    assert play(out).participations["training_s"].max() < 5


def deploy_limited(out, **changes):
    """Deploy three clients under a quota, as far as the scenario knows."""
    device = {**worlds.TIMES, "quota": {"share": 0.2, "period": "10 ms"}}
    clients = [{"count": 3, "prototype": "small", "device": device}]
    plain = {"method": "fedavg", "checkpoint": {"every": 0}, "clients": clients}
    return worlds.deployed(worlds.scenario(**plain, **changes), out)


def test_under_a_quota_the_seconds_of_processors_are_the_measurements(tmp_path):
    """What clients told.

    What the server took is the server's, so that no quota stretches it.
    """
    there = deploy_limited(tmp_path / "real", rounds=8)
    told = there.table("processor").to_pandas()
    assert told[["round", "client"]].to_numpy().tolist() == [
        [round, client] for round in range(1, 9) for client in range(3)
    ]
    assert (told[["training_s", "compression_s"]] > 0).all(axis=None)
    out = tmp_path / "here.yaml"
    said = fit(out, tmp_path / "real", kind="law")
    for quantity, column in (
        ("training", "training_s"),
        ("compression", "compression_s"),
        ("handling", "other_s"),
    ):
        seconds = read_rows(out, quantity)["seconds"].tolist()
        assert seconds == pytest.approx(told[column].tolist())
    spans = read_spans(there)
    sending = spans[spans["name"].isin(["serialising", "waking up"])]
    sending_s = sending.groupby(["round", "client"])["s"].sum().median()
    merging = spans[(spans["track"] == "server") & (spans["name"] != "evaluation")]
    merge_s = merging.groupby("round")["s"].sum().median()
    handling_ms = read_ms(said["server"]["device"]["assume"]["handling"])
    assert handling_ms == pytest.approx(1e3 * (sending_s + merge_s), rel=1e-3)
    assert said["clients"][0]["device"]["quota"] == {"share": 0.2, "period": "0.01 s"}


def test_runs_with_other_numbers_of_steps_tell_what_the_beginning_takes(tmp_path):
    runs, out = [tmp_path / "1", tmp_path / "40"], tmp_path / "here.yaml"
    for run in runs:
        training = {"local_steps": int(run.name)}
        deploy_limited(run, rounds=4, training=training, name=f"steps-{run.name}")
    fit(out, *runs)
    seconds = read_rows(out, "training").groupby("steps")["seconds"]
    counts = np.array([*seconds.groups])
    assert counts.tolist() == [1, 40]
    first_s, last_s = counts * seconds.median()
    slope_s = (last_s - first_s) / 39
    profile = load_profile(out)
    starting_s = 0.0
    if first_s > slope_s:  # else nothing of it shows on a busy machine
        starting_s = profile.seconds("starting", model="lenet5-half", samples=1)
        assert starting_s == pytest.approx(first_s - slope_s, rel=1e-3, abs=1e-6)
    step_s = profile.seconds("training", model="lenet5-half", batch=32)
    noise = np.array([*map(profile.noise["training"].mean, counts)])
    predicted_s = (starting_s + counts * step_s) * noise
    measured_s = counts * seconds.mean()
    assert np.mean(predicted_s / measured_s) == pytest.approx(1.0, rel=0.5)


def test_rows_with_the_profiles_scatter_have_the_means_that_were_measured(tmp_path):
    """One model's work is mostly short and sometimes long, the other's the other way
    round.
    """
    rng, path = np.random.default_rng(5), tmp_path / "table.csv"
    lines, means_s = ["quantity,model,strategy,k,seconds"], {}
    for model, chance in (("lenet5-half", 0.4), ("lenet5", 0.6)):
        seconds = np.where(rng.random(200) < chance, rng.uniform(1.0, 3.0, 200), 0.1)
        lines += [f"compression,{model},top-k,1000,{s!r}" for s in seconds.tolist()]
        means_s[model] = seconds.mean()
    path.write_text("\n".join(lines))
    table = read_table([path])
    document = centre_rows(fit_profile(table, kind="table", name="x").document, table)
    (tmp_path / "x.yaml").write_text(format_profile(document, "made here"))
    profile = load_profile(tmp_path / "x.yaml")
    for model, mean_s in means_s.items():
        work = {"model": model, "strategy": "top-k", "k": 1000}
        nominal_s = profile.seconds("compression", **work)
        scatter = profile.noise["compression"].mean()
        assert nominal_s * scatter == pytest.approx(mean_s, rel=1e-4)
