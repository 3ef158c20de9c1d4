"""A simulation held against reality, and reality turned into a profile."""

import shutil
from types import SimpleNamespace

import deploy_worlds as worlds
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import simfed
from simfed.cli import main
from simfed.cli.app import app
from simfed.report.fidelity import fidelity


def run(rows, server_s=0.0, mode="full"):
    """A run of these participations: (round, client, down, training, compression, up, host)."""
    parts, rounds, start_s = [], [], 0.0
    for number in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == number]
        lasts_s = max(sum(row[2:]) for row in mine) + server_s
        critical = max(mine, key=lambda row: sum(row[2:]))[1]
        rounds.append((number, lasts_s, server_s, critical))
        for round, client, *seconds in mine:
            phases = dict(
                zip(
                    ("downlink_s", "training_s", "compression_s", "uplink_s"), seconds, strict=False
                )
            )
            parts.append(
                {"round": round, "client": client, "arm": "top-k", "outcome": "aggregated",
                 "started_at_s": start_s, "finished_at_s": start_s + lasts_s, "offline_s": 0.0,
                 "waiting_s": lasts_s - sum(seconds), **phases}
            )  # fmt: skip
        start_s += lasts_s
    columns = ["round", "duration_s", "server_s", "critical_client"]
    return SimpleNamespace(
        participations=pd.DataFrame(parts), rounds=pd.DataFrame(rounds, columns=columns),
        manifest={"mode": mode}, scenario={"aggregation": {"mode": "synchronous"}},
    )  # fmt: skip


def test_errors_stand_per_phase_client_and_round():
    simulated = run([(1, 0, 1.0, 1.0, 0.5, 2.0), (1, 1, 1.0, 1.0, 0.5, 1.0)])
    real = run([(1, 0, 1.0, 2.0, 0.5, 2.0), (1, 1, 1.0, 4.0, 0.5, 1.0)])
    found = fidelity(simulated, real)
    phases = found.phases.set_index("phase")["error"]
    assert phases["training"] == pytest.approx(1 / 3 - 1)
    assert phases["download"] == phases["upload"] == 0
    assert found.clients["error"].tolist() == pytest.approx([4.5 / 5.5 - 1, 3.5 / 6.5 - 1])
    assert found.makespan_s == (4.5, 6.5)
    assert found.named_right == 0.0
    assert found.explanations.iloc[0].tolist()[:1] == ["training"]
    assert found.explanations.iloc[0]["explained"] == pytest.approx(1.0)
    assert len(found.beyond(0.05)) == 2
    assert found.beyond(0.5) == []


def test_host_time_and_server_work_are_assumptions_of_their_own():
    simulated = run([(r, 0, 1.0, 1.0, 0.0, 1.0) for r in (1, 2)])
    hosts = run([(r, 0, 1.0, 1.0, 0.0, 1.0, 0.7) for r in (1, 2)], mode="deployed")
    assert fidelity(simulated, hosts).explanations["phase"].iloc[0] == "host"
    servers = run([(r, 0, 1.0, 1.0, 0.0, 1.0) for r in (1, 2)], server_s=0.5, mode="deployed")
    found = fidelity(simulated, servers)
    assert found.explanations["phase"].iloc[0] == "server"
    assert "server's work" in list(found.sentences())[-1]


def test_a_run_is_no_error_away_from_itself():
    same = run([(1, 0, 1.0, 1.0, 0.5, 2.0), (1, 1, 1.0, 1.0, 0.5, 1.0)])
    found = fidelity(same, same)
    assert (found.makespan_error, found.round_error, found.named_right) == (0.0, 0.0, 1.0)
    assert found.beyond(0.001) == []


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
    assert page.read_text().count("<svg") == 1
    assert main(["compare", real, real, "--bound", "1%"]) == 0
    assert main(["compare", simulated, real, "--bound", "1%"]) == 3
    assert main(["compare", simulated, real, "--bound", "5"]) == 2


def test_a_deployed_run_becomes_a_profile_with_which_its_simulation_is_better(pair, tmp_path):
    simulated, real = pair
    out = tmp_path / "calibration" / "here.yaml"
    assert (
        main(["calibrate", "fit", "--from", str(real), "--kind", "table", "--out", str(out)]) == 0
    )
    plan = tmp_path / "here.scenario.yaml"
    shutil.move(out.with_suffix(".scenario.yaml"), plan)
    assert yaml.safe_load(plan.read_text())["clients"][0]["device"]["profile"] == "here"
    again = simfed.run(plan, progress=False, workers=1)
    there = simfed.load_run(real)
    before = fidelity(simfed.load_run(simulated), there)
    after = fidelity(again, there)
    errors = [of.phases.set_index("phase").loc["upload", "error"] for of in (before, after)]
    assert abs(errors[1]) < abs(errors[0])
    assert abs(after.makespan_error) < abs(before.makespan_error)


def test_only_real_seconds_become_a_profile(pair, tmp_path, capsys):
    simulated, _ = map(str, pair)
    out = str(tmp_path / "here.yaml")
    assert main(["calibrate", "fit", "--from", simulated, "--out", out]) == 2
    assert "a deployed run, whose seconds are real" in capsys.readouterr().err
    assert main(["calibrate", "fit", "--out", out]) == 2
