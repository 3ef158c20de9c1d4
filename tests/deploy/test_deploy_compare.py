"""A simulation held against reality, and reality turned into a profile."""

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import deploy_worlds as worlds
import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import simfed
from simfed.calibrate import fit_profile, format_profile
from simfed.calibrate.from_run import centre_rows
from simfed.cli import main
from simfed.cli.app import app
from simfed.deploy.fidelity import fidelity
from simfed.device import load_profile, read_table

sys.path.append(str(Path(__file__).parents[1] / "experiment"))


def run(rows, server_s=0.0, mode="full"):
    """A run of these participations: (round, client, down, training, compression, up,
    host).
    """
    parts, rounds, start_s = [], [], 0.0
    for number in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == number]
        lasts_s = max(sum(row[2:]) for row in mine) + server_s
        critical = max(mine, key=lambda row: sum(row[2:]))[1]
        rounds.append((number, lasts_s, server_s, critical))
        for round, client, *seconds in mine:
            phases = dict(
                zip(
                    ("downlink_s", "training_s", "compression_s", "uplink_s"),
                    seconds,
                    strict=False,
                )
            )
            parts.append(
                {
                    "round": round,
                    "client": client,
                    "arm": "top-k",
                    "outcome": "aggregated",
                    "started_at_s": start_s,
                    "finished_at_s": start_s + lasts_s,
                    "offline_s": 0.0,
                    "waiting_s": lasts_s - sum(seconds),
                    **phases,
                }
            )
        start_s += lasts_s
    columns = ["round", "duration_s", "server_s", "critical_client"]
    return SimpleNamespace(
        participations=pd.DataFrame(parts),
        rounds=pd.DataFrame(rounds, columns=columns),
        manifest={"mode": mode},
        scenario={"aggregation": {"mode": "synchronous"}},
        spans=pd.DataFrame(
            columns=["kind", "round", "client", "started_at_s", "finished_at_s"]
        ),
    )


def test_errors_stand_per_phase_client_and_round():
    simulated = run([(1, 0, 1.0, 1.0, 0.5, 2.0), (1, 1, 1.0, 1.0, 0.5, 1.0)])
    real = run([(1, 0, 1.0, 2.0, 0.5, 2.0), (1, 1, 1.0, 4.0, 0.5, 1.0)])
    gaps = fidelity(simulated, real)
    phases = gaps.phases.set_index("phase")["error"]
    assert phases["training"] == pytest.approx(1 / 3 - 1)
    assert phases["download"] == phases["upload"] == 0
    assert gaps.clients["error"].tolist() == pytest.approx(
        [4.5 / 5.5 - 1, 3.5 / 6.5 - 1]
    )
    assert gaps.makespan_s == (4.5, 6.5)
    assert gaps.named_right == 0.0
    assert gaps.explanations.iloc[0].tolist()[:1] == ["training"]
    assert gaps.explanations.iloc[0]["explained"] == pytest.approx(1.0)
    assert len(gaps.beyond(0.05)) == 2
    assert gaps.beyond(0.5) == []
    assert gaps.lengths.paired.seeds == 1
    assert gaps.lengths.paired.ratio.exact == pytest.approx(6.5 / 4.5)
    assert "no clear difference" in "; ".join(gaps.sentences())


def test_rounds_are_compared_in_pairs_with_an_interval():
    simulated = run([(n, 0, 1.0, 1.0, 0.5, 1.0 + n / 10) for n in range(1, 6)])
    real = run([(n, 0, 1.0, 2.0, 0.5, 1.0 + n / 10) for n in range(1, 6)])
    paired = fidelity(simulated, real).lengths.paired
    assert (paired.seeds, paired.wins, paired.clear) == (5, 5, 1)
    assert paired.ratio.low < paired.ratio.exact < paired.ratio.high
    for ours, theirs, words in (
        (simulated, real, "rounds of the simulation end 1.26×"),
        (real, simulated, "rounds of reality end 1.26×"),
    ):
        assert words in "; ".join(fidelity(ours, theirs).sentences())


def test_host_time_and_server_work_are_assumptions_of_their_own():
    simulated = run([(r, 0, 1.0, 1.0, 0.0, 1.0) for r in (1, 2)])
    hosts = run([(r, 0, 1.0, 1.0, 0.0, 1.0, 0.7) for r in (1, 2)], mode="deployed")
    assert fidelity(simulated, hosts).explanations["phase"].iloc[0] == "host"
    servers = run(
        [(r, 0, 1.0, 1.0, 0.0, 1.0) for r in (1, 2)], server_s=0.5, mode="deployed"
    )
    gaps = fidelity(simulated, servers)
    assert gaps.explanations["phase"].iloc[0] == "server"
    assert "server's work" in list(gaps.sentences())[-1]


def test_a_run_is_no_error_away_from_itself():
    same = run([(1, 0, 1.0, 1.0, 0.5, 2.0), (1, 1, 1.0, 1.0, 0.5, 1.0)])
    gaps = fidelity(same, same)
    assert (gaps.makespan_error, gaps.round_error, gaps.named_right) == (0.0, 0.0, 1.0)
    assert gaps.beyond(0.001) == []


def test_rounds_that_name_no_straggler_are_not_counted():
    """Below edge servers the links behind them may take longer than any client."""
    rows = [(r, c, 1.0, 1.0, 0.5, 1.0 + c) for r in (1, 2) for c in (0, 1)]
    simulated, real = run(rows), run(rows)
    real.rounds["critical_client"] = [np.nan, 1.0]
    some = fidelity(simulated, real)
    assert (some.named_right, some.most_common) == (1.0, 1.0)
    real.rounds["critical_client"] = [0.0, 1.0]
    assert fidelity(simulated, real).most_common == 0.5
    simulated.rounds["critical_client"] = np.nan
    assert fidelity(simulated, real).named_right == 0.0
    real.rounds["critical_client"] = np.nan
    nobody = fidelity(simulated, real)
    assert np.isnan(nobody.named_right)
    assert "no round of reality names a straggler" in list(nobody.sentences())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(simulated, real): folders of the same scenario's runs."""
    folder = tmp_path_factory.mktemp("pair")
    plan = worlds.scenario(method="fedavg", rounds=4, checkpoint={"every": 0})
    simfed.run(plan, folder / "simulated", progress=False, workers=1)
    worlds.deployed(plan, folder / "real")
    return folder / "simulated", folder / "real"


def test_compare_prints_the_errors_and_keeps_the_bound(pair, tmp_path):
    simulated, real = map(str, pair)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["compare", simulated, real, "--out", str(page)])
    assert done.exit_code == 0
    assert "straggler named as in reality" in done.output
    text = page.read_text()
    for words in (
        "<h3>simulated</h3>",
        "<h3>real</h3>",
        "one scale of time",
        ("Per participation"),
    ):
        assert words in text
    assert main(["compare", real, real, "--bound", "1%"]) == 0
    assert main(["compare", simulated, real, "--bound", "1%"]) == 3
    assert main(["compare", simulated, real, "--bound", "5"]) == 2


def test_of_two_simulations_none_is_called_real(tmp_path, capsys):
    for number, name in enumerate(("slow/a", "fast/a", "fast/b")):
        plan = worlds.scenario(method="fedavg", rounds=3, seed=number)
        simfed.run(plan, tmp_path / name, time_only=True, progress=False)
    for first, second, names in (
        ("slow/a", "fast/b", ("a", "b")),
        ("slow/a", "fast/a", ("the first", "the second")),
    ):
        folders = [str(tmp_path / first), str(tmp_path / second)]
        assert main(["compare", *folders, "--out", str(tmp_path / "page.html")]) == 0
        said = capsys.readouterr().out
        assert said.startswith("phase ")
        assert all(name in said.splitlines()[0] for name in names)
        assert f"rounds of {names[0]}" in said
        assert not re.search(r"\breal\b|simulated|realit", said)
    text = (tmp_path / "page.html").read_text()
    assert "<h3>the first</h3>" in text
    assert "<h3>real</h3>" not in text


def fit(real, out, *more, kind="table"):
    """`simfed calibrate fit` of a deployed run; its exit code."""
    words = ["--kind", kind, "--out", str(out), *more]
    return main(["calibrate", "fit", "--from", str(real), *words])


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

    from simfed.verify import verify

    assert verify(pair[1]) == []
    cases = {
        forgery.name: forgery
        for forgery in VALUES
        if forgery.name.partition(".")[0] in ("rounds", "participations", "spans")
    }
    passed = {
        name
        for name, forgery in cases.items()
        if not verify(forgery.of(pair[1], tmp_path / "copy"))
    }
    assert passed <= NOT_TOLD


def test_real_clients_measure_their_training_and_their_compression(pair):
    participations = simfed.load_run(pair[1]).participations
    assert (participations[["training_s", "compression_s"]] > 0).all(axis=None)


def test_a_deployed_run_becomes_a_profile_with_which_its_simulation_is_better(
    pair, tmp_path
):
    simulated, real = pair
    out = tmp_path / "calibration" / "here.yaml"
    assert fit(real, out) == 0
    plan = tmp_path / "here.scenario.yaml"
    shutil.move(out.with_suffix(".scenario.yaml"), plan)
    assert yaml.safe_load(plan.read_text())["clients"][0]["device"]["profile"] == "here"
    # without the noise that was measured, which on a busy machine is anything
    quiet = simfed.load_scenario(plan, {"clients[*].device.noise": None})
    again = simfed.run(quiet, source=plan, progress=False, workers=1)
    there = simfed.load_run(real)
    before = fidelity(simfed.load_run(simulated), there)
    after = fidelity(again, there)
    errors = [
        gaps.phases.set_index("phase").loc["upload", "error"]
        for gaps in (before, after)
    ]
    assert abs(errors[1]) < abs(errors[0])
    assert abs(after.makespan_error) < abs(before.makespan_error)


def test_only_real_seconds_become_a_profile(pair, tmp_path, capsys):
    simulated, _ = map(str, pair)
    out = str(tmp_path / "here.yaml")
    assert main(["calibrate", "fit", "--from", simulated, "--out", out]) == 2
    assert "a deployed run, whose seconds are real" in capsys.readouterr().err
    assert main(["calibrate", "fit", "--out", out]) == 2


def test_simulated_handling_of_messages_stands_against_the_time_of_hosts():
    simulated = run([(1, 0, 1.0, 1.5, 0.0, 1.0), (2, 0, 1.0, 1.5, 0.0, 1.0)])
    spans = [
        ("handling", r, 0, 3.5 * (r - 1) + 1.0, 3.5 * (r - 1) + 1.5) for r in (1, 2)
    ]
    columns = ["kind", "round", "client", "started_at_s", "finished_at_s"]
    simulated.spans = pd.DataFrame(spans, columns=columns)
    real = run([(r, 0, 1.0, 1.0, 0.0, 1.0, 0.5) for r in (1, 2)], mode="deployed")
    phases = fidelity(simulated, real).phases.set_index("phase")
    assert phases.loc["training", ["simulated_s", "real_s"]].tolist() == pytest.approx(
        [1.0, 1.0]
    )
    assert phases.loc["host", ["simulated_s", "real_s"]].tolist() == pytest.approx(
        [0.5, 0.5]
    )


def test_what_hosts_and_the_server_took_is_in_the_scenario_that_a_deployed_run_becomes(
    pair, tmp_path
):
    """And a simulation of it takes these seconds."""
    _, real = pair
    out = tmp_path / "here.yaml"
    assert fit(real, out) == 0
    said = yaml.safe_load(out.with_suffix(".scenario.yaml").read_text())
    server = said["server"]["device"]["assume"]
    assert set(server) >= {"handling", "evaluation", "inference"}
    there = simfed.load_run(real)
    spans = there.spans[there.spans["track"] == "server"]
    spans = spans.assign(seconds=spans["finished_at_s"] - spans["started_at_s"])
    tests = spans["name"] == "evaluation"
    # nobody is asked for a loss here: the clock charges none, though a host's own
    # bookkeeping of it took a microsecond
    merging = ~tests & (spans["name"] != "losses")
    merge_s = spans[merging].groupby("round")["seconds"].sum().median()
    again = simfed.run(out.with_suffix(".scenario.yaml"), progress=False, workers=1)
    of_server = again.rounds["server_s"]
    assert of_server.iloc[0] == pytest.approx(merge_s, rel=1e-3)
    evaluation_s = of_server.iloc[-1] - of_server.iloc[0]
    assert evaluation_s == pytest.approx(spans[tests]["seconds"].median(), rel=1e-3)
    assert set(again.spans["kind"]) >= {"handling", "evaluation"}
    fit(real, out, "--no-host")
    assert "handling" not in yaml.safe_load(out.read_text())


def test_a_fixed_policy_is_not_charged_for_the_losses_that_a_learning_one_waits_for(
    tmp_path,
):
    """Simulated from a deployment of the other."""
    plan = worlds.scenario(
        method="fedavg", rounds=3, policy={"kind": "exp3", "mixing": 0.1}
    )
    worlds.deployed(plan, tmp_path / "real")
    spans = simfed.load_run(tmp_path / "real").spans
    waits = spans[(spans["track"] == "server") & (spans["name"] == "losses")]
    losses_s = (waits["finished_at_s"] - waits["started_at_s"]).median()
    assert losses_s > 0
    out = tmp_path / "here.yaml"
    assert fit(tmp_path / "real", out) == 0
    of_plan = yaml.safe_load(out.with_suffix(".scenario.yaml").read_text())
    server = of_plan["server"]["device"]["assume"]
    said_s = float(str(server["losses"]).removesuffix(" ms")) / 1e3
    assert said_s == pytest.approx(losses_s, rel=1e-3)
    took = {}
    for kind, extra in (("exp3", {}), ("uniform", {"strategy": "top-k"})):
        of_plan["policy"] = {"kind": kind, **extra}
        again = simfed.run(of_plan, progress=False, workers=1, source=out)
        took[kind] = again.rounds["server_s"].iloc[0]
    assert took["exp3"] - took["uniform"] == pytest.approx(losses_s, rel=1e-3)


def test_what_a_scenario_said_of_its_devices_gives_way_to_what_was_measured(tmp_path):
    clients = [
        {
            "count": 3,
            "prototype": "small",
            "device": {
                "assume": {"training": "9 s", "compression": "9 s", "auxiliary": "1 ms"}
            },
        }
    ]
    worlds.deployed(
        worlds.scenario(method="fedavg", clients=clients), tmp_path / "real"
    )
    out = tmp_path / "here.yaml"
    fit(tmp_path / "real", out)
    (group,) = yaml.safe_load(out.with_suffix(".scenario.yaml").read_text())["clients"]
    said = {name: s for name, s in group["device"]["assume"].items() if s is not None}
    assert said == {"auxiliary": "0.001 s"}
    again = simfed.run(out.with_suffix(".scenario.yaml"), progress=False, workers=1)
    assert again.participations["training_s"].max() < 5


def limited(**changes):
    """Three clients under a quota, as far as the scenario knows."""
    device = {**worlds.TIMES, "quota": {"share": 0.2, "period": "10 ms"}}
    clients = [{"count": 3, "prototype": "small", "device": device}]
    plan = {
        "method": "fedavg",
        "rounds": 8,
        "checkpoint": {"every": 0},
        "clients": clients,
    }
    return worlds.scenario(**{**plan, **changes})


def test_under_a_quota_the_seconds_of_processors_are_the_measurements(tmp_path):
    """What clients told.

    What the server took is the server's, so that no quota stretches it.
    """
    worlds.deployed(limited(), tmp_path / "real")
    there = simfed.load_run(tmp_path / "real")
    told = there.table("processor").to_pandas()
    assert list(zip(told["round"], told["client"], strict=True)) == [
        (round, client) for round in range(1, 9) for client in range(3)
    ]
    assert (told[["training_s", "compression_s"]] > 0).all(axis=None)
    out = tmp_path / "here.yaml"
    assert fit(tmp_path / "real", out, kind="law") == 0
    rows = pd.read_csv(out.with_suffix(".csv"))
    for quantity in ("training", "compression"):
        seconds = rows[rows["quantity"] == quantity]["seconds"]
        assert seconds.tolist() == pytest.approx(told[f"{quantity}_s"].tolist())
    handling_s = rows[rows["quantity"] == "handling"]["seconds"]
    assert handling_s.tolist() == pytest.approx(told["other_s"].tolist())
    said = yaml.safe_load(out.with_suffix(".scenario.yaml").read_text())
    spans = there.spans.assign(
        s=there.spans["finished_at_s"] - there.spans["started_at_s"]
    )
    sending = spans[spans["name"].isin(["serialising", "waking up"])]
    sending_s = sending.groupby(["round", "client"])["s"].sum().median()
    merging = spans[(spans["track"] == "server") & (spans["name"] != "evaluation")]
    merge_s = merging.groupby("round")["s"].sum().median()
    handling = float(said["server"]["device"]["assume"]["handling"].removesuffix(" ms"))
    assert handling == pytest.approx(1e3 * (sending_s + merge_s), rel=1e-3)
    assert said["clients"][0]["device"]["quota"] == {"share": 0.2, "period": "0.01 s"}


def test_runs_with_other_numbers_of_steps_tell_what_the_beginning_takes(tmp_path):
    from_ = []
    for steps in (1, 40):
        training = {"local_steps": steps}
        folder = tmp_path / f"{steps}"
        worlds.deployed(
            limited(training=training, rounds=4, name=f"steps-{steps}"), folder
        )
        from_ += ["--from", str(folder)]
    out = tmp_path / "here.yaml"
    assert main(["calibrate", "fit", *from_, "--kind", "table", "--out", str(out)]) == 0
    rows = pd.read_csv(out.with_suffix(".csv"))
    steps = rows[rows["quantity"] == "training"].groupby("steps")["seconds"].median()
    assert list(steps.index) == [1, 40]
    whole_s = {n: n * seconds for n, seconds in steps.items()}
    slope_s = (whole_s[40] - whole_s[1]) / 39
    profile = load_profile(out)
    starting_s = 0.0
    if whole_s[1] > slope_s:  # else nothing of it shows on a busy machine
        starting_s = profile.seconds("starting", model="lenet5-half", samples=1)
        assert starting_s == pytest.approx(whole_s[1] - slope_s, rel=1e-3, abs=1e-6)
    noise = profile.noise["training"]
    step_s = profile.seconds("training", model="lenet5-half", batch=32)
    means = rows[rows["quantity"] == "training"].groupby("steps")["seconds"].mean()
    predicted_s = [(starting_s + n * step_s) * noise.mean(n) for n in (1, 40)]
    measured_s = [n * means[n] for n in (1, 40)]
    assert np.mean(np.array(predicted_s) / measured_s) == pytest.approx(1.0, rel=0.5)


def test_rows_with_the_profiles_scatter_have_the_means_that_were_measured(tmp_path):
    """One model's work is mostly short and sometimes long, the other's the other way
    round.
    """
    rng = np.random.default_rng(5)
    lines = ["quantity,model,strategy,k,seconds"]
    for model, chance in (("lenet5-half", 0.4), ("lenet5", 0.6)):
        seconds = np.where(rng.random(200) < chance, rng.uniform(1.0, 3.0, 200), 0.1)
        lines += [f"compression,{model},top-k,1000,{s!r}" for s in seconds.tolist()]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    table = read_table([path])
    document = centre_rows(fit_profile(table, kind="table", name="x").document, table)
    (tmp_path / "x.yaml").write_text(format_profile(document, "made here"))
    profile = load_profile(tmp_path / "x.yaml")
    noise = profile.noise["compression"]
    for model in ("lenet5-half", "lenet5"):
        nominal_s = profile.seconds(
            "compression", model=model, strategy="top-k", k=1000
        )
        measured = [
            row.seconds for row in table.rows_of(("compression", model, "top-k"))
        ]
        assert nominal_s * noise.mean() == pytest.approx(np.mean(measured), rel=1e-4)
