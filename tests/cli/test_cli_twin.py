"""`simfed twin`: a log of a known fleet gives that fleet back."""

import csv

import numpy as np
import pandas as pd
import pytest
import yaml

import simfed
from simfed import InputError, InputErrors
from simfed.calibrate import read_log
from simfed.calibrate.twin import fit_twin
from simfed.cli import main

SPEEDS, UPLINKS_MBPS = (1.0, 2.0, 0.5), (1.0, 5.0, 10.0)


def fleet(noise=None, **more):
    groups = [
        {
            "count": 1,
            "prototype": "one",
            "device": {
                "training": "2 s",
                "handling": "0.1 s",
                "speed": speed,
                "noise": noise,
            },
            "link": {"up": f"{up} Mbps", "down": "20 Mbps"},
        }
        for speed, up in zip(SPEEDS, UPLINKS_MBPS, strict=True)
    ]
    return {**yaml.safe_load(KNOWN), "clients": groups, **more}


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


def log_of(scenario, path, watts=None):
    """Plays a scenario; its spans as a log, shifted to other instants."""
    result = simfed.run(scenario, time_only=True, progress=False)
    kinds = ["download", "training", "upload", "waiting"]
    rows = result.spans[
        result.spans["client"].notna() & result.spans["kind"].isin(kinds)
    ]
    rows = rows.assign(phase=rows["kind"], bytes=246_824)
    rows[["started_at_s", "finished_at_s"]] += 1e6
    if watts:
        rows["joules"] = rows["phase"].map(watts) * (
            rows["finished_at_s"] - rows["started_at_s"]
        )
    columns = ["round", "client", "phase", "started_at_s", "finished_at_s", "bytes"]
    rows[columns + ["joules"] * bool(watts)].to_csv(path, index=False)
    return result


def write(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


HEADER = ("round", "client", "phase", "started_at_s", "finished_at_s")


def test_a_runs_own_log_gives_its_fleet_back(tmp_path, capsys):
    result = log_of(fleet(), tmp_path / "log.csv")
    out = tmp_path / "twin.yaml"
    assert main(f"twin {tmp_path}/log.csv --out {out} --predict 5".split()) == 0
    table = pd.read_csv(tmp_path / "twin-clients.csv", comment="#")
    assert np.allclose(table["work_s"], [2.1 / speed for speed in SPEEDS])
    assert np.allclose(table["up_bytes_per_s"], np.array(UPLINKS_MBPS) * 1e6 / 8)
    assert np.allclose(table["down_bytes_per_s"], 20e6 / 8)
    twin = simfed.run(out, time_only=True, progress=False)
    assert np.allclose(
        twin.rounds["duration_s"], result.rounds["duration_s"], rtol=1e-6
    )
    told = capsys.readouterr().out
    assert "played: 7.496 s a round, +0.00 %" in told
    assert "next 5 rounds: 7.496 s each" in told
    assert "Untold: joules." in told
    assert "Untold: whether links were shared" in told
    assert "Untold: bytes" not in told


def test_scatter_and_errors_are_found(tmp_path):
    noise = {"kind": "lognormal", "cv": 0.2}
    log_of(fleet(noise, rounds=80), tmp_path / "log.csv")
    twin = fit_twin(read_log(tmp_path / "log.csv"))
    assert len(twin.rounds_s) == 79 - 10  # the last one's end is not logged
    # training scatters, handling beside it
    assert twin.work_cv == pytest.approx(0.19, abs=0.03)
    for client, speed in zip(twin.clients, SPEEDS, strict=True):
        assert abs(client.work.value - 2.1 / speed) < 4 * client.work.error
    assert twin.server.value == pytest.approx(3.0)
    assert twin.server_cv == 0.0


def test_a_predicted_interval_is_students(tmp_path):
    ends = [10, 21, 30, 41, 50]
    rows = [
        (n + 1, "", "round", 0 if n == 0 else ends[n - 1], end)
        for n, end in enumerate(ends)
    ]
    twin = fit_twin(read_log(write(tmp_path / "log.csv", HEADER, *rows)))
    assert twin.rounds_s.tolist() == [9.0, 11.0, 9.0]  # the first half is settling
    low_s, high_s = twin.predict(12)[1:]
    scatter_s = np.std([11, 9, 11, 9], ddof=1)
    half_s = 2.3534 * scatter_s * np.sqrt(1 / 3 + 1 / 12)
    assert (low_s, high_s) == pytest.approx(
        (29 / 3 - half_s, 29 / 3 + half_s), rel=1e-4
    )


def test_whole_rounds_alone_make_one_client_for_all(tmp_path):
    rows = []
    for n in range(6):
        rows.append((n + 1, "", "round", 10 * n, 10 * n + 10))
        rows.append((n + 1, "", "participation", 10 * n + 1, 10 * n + 8))
    twin = fit_twin(read_log(write(tmp_path / "log.csv", HEADER, *rows)))
    assert [client.name for client in twin.clients] == ["all"]
    assert (twin.clients[0].work.value, twin.server.value) == (8.0, 2.0)
    assert any("how many clients" in sentence for sentence in twin.untold)
    assert any("shares of computing and links" in sentence for sentence in twin.untold)
    assert not any("links were shared" in sentence for sentence in twin.untold)


def test_joules_become_watts_of_a_profile(tmp_path):
    watts = {"training": 20.0, "upload": 5.0, "download": 4.0, "waiting": 2.0}
    log_of(fleet(), tmp_path / "log.csv", watts)
    twin = fit_twin(read_log(tmp_path / "log.csv"))
    assert twin.power_w == pytest.approx(
        {"training": 20.0, "uplink": 5.0, "downlink": 4.0, "idle": 2.0}
    )
    twin.write(tmp_path / "out" / "twin.yaml")
    played = simfed.run(tmp_path / "out" / "twin.yaml", time_only=True, progress=False)
    first = played.participations.query("round == 1 and client == 2").iloc[0]
    phases = {"training_s": 20.0, "uplink_s": 5.0, "downlink_s": 4.0, "waiting_s": 2.0}
    joules = sum(w * first[phase] for phase, w in phases.items())
    assert first["energy_j"] == pytest.approx(joules, rel=1e-6)
    assert not [w for w in played.manifest["warnings"] if "measured on" in w]


@pytest.mark.parametrize("rounds", [3, 6])
def test_sizes_that_differ_tell_latency_from_rate(tmp_path, rounds):
    rows = [(*HEADER, "bytes")]
    for n in range(rounds):
        start_s, size = 100 * n, 1000 * (1 + n % 3)
        rows.append((n + 1, 7, "training", start_s, start_s + 5, ""))
        rows.append((n + 1, 7, "upload", start_s + 5, start_s + 5.5 + size / 500, size))
        rows.append((n + 1, "", "server", start_s + 90, start_s + 100, ""))
    twin = fit_twin(read_log(write(tmp_path / "log.csv", *rows)), (1, rounds))
    assert twin.clients[0].latency_s == pytest.approx(0.5)
    paths = twin.write(tmp_path / "twin.yaml")
    played = simfed.run(paths[0], time_only=True, progress=False)
    assert played.participations["uplink_s"].tolist() == pytest.approx(
        [0.5 + 2000 / 500] * rounds
    )


@pytest.mark.parametrize(
    ("row", "where", "allowed"),
    [
        ((1, 0, "trainin", 0, 1), "phase", "download, training"),
        ((1, "", "training", 0, 1), "phase", "where there is no client"),
        ((0, 0, "training", 0, 1), "round", "a round: 1, 2, …"),
        ((1, 0, "training", "noon", 1), "started_at_s", "seconds"),
        (
            (1, 0, "training", 5, 1),
            "finished_at_s",
            "an instant not before started_at_s, 5",
        ),
    ],
)
def test_a_bad_line_is_named_by_its_number(row, where, allowed, tmp_path):
    path = write(tmp_path / "log.csv", HEADER, (1, 1, "training", 0, 2), row)
    with pytest.raises(InputErrors) as raised:
        read_log(path)
    (error,) = raised.value.errors
    assert error.where == f"{path}: line 3: {where}"
    assert allowed in error.allowed


def test_a_file_that_is_no_log_is_refused(tmp_path, capsys):
    path = write(
        tmp_path / "log.csv", ("round", "client", "phase", "start", "finished_at_s")
    )
    assert main(["twin", str(path), "--out", str(tmp_path / "twin.yaml")]) == 2
    assert f"{path}: no column 'started_at_s'" in capsys.readouterr().err
    with pytest.raises(InputError, match="empty"):
        read_log(write(path, HEADER))
    with pytest.raises(InputError, match="no such file"):
        read_log(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("twin.csv", "--out: got 'twin.csv', expected a file that ends with .yaml"),
        ("twin.yaml --predict 0", "--predict: got 0"),
        ("twin.yaml --model lenet", "did you mean"),
    ],
)
def test_bad_options_are_told(options, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.csv", HEADER, (1, 0, "training", 0, 5))
    assert main(f"twin log.csv --out {options}".split()) == 2
    assert told in capsys.readouterr().err
