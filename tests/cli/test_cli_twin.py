"""`simfed twin`: a log of a known fleet gives that fleet back."""

import itertools

import numpy as np
import pandas as pd
import pytest
import yaml

import simfed
from simfed.calibrate import read_log
from simfed.calibrate.twin import fit_twin
from simfed.cli import main

SPEEDS, UPLINKS_MBPS = (1.0, 2.0, 0.5), (1.0, 5.0, 10.0)
KNOWN = """
name: known
rounds: 8
method: fedavg
dataset: {name: mnist-mini}
prototypes: {one: {model: lenet5}}
training: {local_steps: 1}
compression: {strategies: [dense]}
policy: {kind: uniform, strategy: dense}
server: {device: {handling: 3 s}}
"""


def fleet(noise=None, **more):
    device = {"training": "2 s", "handling": "0.1 s", "noise": noise}
    groups = [
        {
            "prototype": "one",
            "device": {**device, "speed": speed},
            "link": {"up": f"{up} Mbps", "down": "20 Mbps"},
        }
        for speed, up in zip(SPEEDS, UPLINKS_MBPS, strict=True)
    ]
    return {**yaml.safe_load(KNOWN), "clients": groups, **more}


def play(scenario):
    return simfed.run(scenario, time_only=True, progress=False)


HEADER = "round,client,phase,started_at_s,finished_at_s"
WATTS = {"training": 20.0, "upload": 5.0, "download": 4.0, "waiting": 2.0}


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.csv"


def play_into(log, scenario, *measures):
    """Plays a scenario; its spans as a log, shifted to other instants."""
    run = play(scenario)
    rows = run.spans[run.spans["client"].notna() & run.spans["kind"].isin(WATTS)]
    lasts_s = rows["finished_at_s"] - rows["started_at_s"]
    rows = rows.rename(columns={"kind": "phase"})
    rows = rows.assign(bytes=246_824, joules=rows["phase"].map(WATTS) * lasts_s)
    rows[["started_at_s", "finished_at_s"]] += 1e6
    rows[[*HEADER.split(","), "bytes", *measures]].to_csv(log, index=False)
    return run


def fit(log, *lines, header=HEADER, rounds=None):
    """The twin of a log of these lines."""
    log.write_text("\n".join([header, *lines]))
    return fit_twin(read_log(log), rounds)


def test_log_of_a_run_gives_its_fleet_back(log, tmp_path, capsys):
    run, out = play_into(log, fleet()), tmp_path / "twin.yaml"
    assert main(f"twin {log} --out {out} --predict 5".split()) == 0
    table = pd.read_csv(tmp_path / "twin-clients.csv", comment="#")
    assert np.allclose(table["work_s"], [2.1 / speed for speed in SPEEDS])
    assert np.allclose(table["up_bytes_per_s"], np.array(UPLINKS_MBPS) * 1e6 / 8)
    assert np.allclose(table["down_bytes_per_s"], 20e6 / 8)
    one, other = (each.rounds["duration_s"] for each in (run, play(out)))
    assert np.allclose(one, other, rtol=1e-6)
    told = capsys.readouterr().out
    for said in (
        "played: 7.496 s a round, +0.00 %",
        "next 5 rounds: 7.496 s each",
        "Untold: joules.",
        "Untold: whether links were shared",
    ):
        assert said in told
    assert "Untold: bytes" not in told
    assert main(f"twin {log} --out {tmp_path}/2.yaml --model lenet".split()) == 2
    assert "did you mean" in capsys.readouterr().err


def test_scatter_and_errors_are_found(log):
    play_into(log, fleet({"kind": "lognormal", "cv": 0.2}, rounds=80))
    twin = fit_twin(read_log(log))
    assert len(twin.rounds_s) == 79 - 10  # the last one's end is not logged
    # training scatters, handling beside it
    assert twin.work_cv == pytest.approx(0.19, abs=0.03)
    for client, speed in zip(twin.clients, SPEEDS, strict=True):
        assert abs(client.work.value - 2.1 / speed) < 4 * client.work.error
    assert twin.server.value == pytest.approx(3.0)
    assert twin.server_cv == 0.0


def test_predicted_interval_is_students(log):
    ends = [0, 10, 21, 30, 41, 50]
    pairs = itertools.pairwise(ends)
    twin = fit(log, *(f"{n},,round,{a},{b}" for n, (a, b) in enumerate(pairs, 1)))
    assert twin.rounds_s.tolist() == [9.0, 11.0, 9.0]  # the first half is settling
    scatter_s = np.std([11, 9, 11, 9], ddof=1)
    half_s = 2.3534 * scatter_s * np.sqrt(1 / 3 + 1 / 12)
    interval_s = pytest.approx([29 / 3 - half_s, 29 / 3 + half_s], rel=1e-4)
    assert [*twin.predict(12)[1:]] == interval_s


def test_whole_rounds_alone_make_one_client_for_all(log):
    lines = []
    for n in range(6):
        lines.append(f"{n + 1},,round,{10 * n},{10 * n + 10}")
        lines.append(f"{n + 1},,participation,{10 * n + 1},{10 * n + 8}")
    twin = fit(log, *lines)
    [client] = twin.clients
    assert (client.name, client.work.value, twin.server.value) == ("all", 8.0, 2.0)
    untold = " ".join(twin.untold)
    assert "how many clients" in untold
    assert "shares of computing and links" in untold
    assert "links were shared" not in untold


def test_joules_become_watts_of_a_profile(log, tmp_path):
    play_into(log, fleet(), "joules")
    twin = fit_twin(read_log(log))
    watts = {"training": 20.0, "uplink": 5.0, "downlink": 4.0, "idle": 2.0}
    assert twin.power_w == pytest.approx(watts)
    run = play(twin.write(tmp_path / "out" / "twin.yaml")[0])
    first = run.participations.query("round == 1 and client == 2").iloc[0]
    idle = first["waiting_s"] * watts.pop("idle")
    joules = idle + sum(first[f"{phase}_s"] * w for phase, w in watts.items())
    assert first["energy_j"] == pytest.approx(joules, rel=1e-6)
    assert "measured on" not in " ".join(run.manifest["warnings"])


@pytest.mark.parametrize("rounds", [3, 6])
def test_sizes_that_differ_tell_latency_from_rate(log, tmp_path, rounds):
    lines = []
    for n in range(rounds):
        begins_s, size = 100 * n, 1000 * (1 + n % 3)
        ends_s = begins_s + 5.5 + size / 500
        lines.append(f"{n + 1},7,training,{begins_s},{begins_s + 5},")
        lines.append(f"{n + 1},7,upload,{begins_s + 5},{ends_s},{size}")
        lines.append(f"{n + 1},,server,{begins_s + 90},{begins_s + 100},")
    twin = fit(log, *lines, header=f"{HEADER},bytes", rounds=(1, rounds))
    assert twin.clients[0].latency_s == pytest.approx(0.5)
    run = play(twin.write(tmp_path / "twin.yaml")[0])
    uplink_s = run.participations["uplink_s"].tolist()
    assert uplink_s == pytest.approx([0.5 + 2000 / 500] * rounds)
