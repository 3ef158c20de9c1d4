"""Runs of drawn fleets: the drawn value does what the written value does, and a run
keeps its tables.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import simfed
from simfed.cli import main
from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.replay import learning_key
from simfed.scenario import validate_scenario

SCENARIO = {
    "name": "drawn",
    "rounds": 3,
    "dataset": {"name": "mnist-mini", "public": 16},
    "prototypes": {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
    "clients": [
        {
            "count": 3,
            "prototype": "small",
            "device": {"profile": "rtx3090-ryzen4800h"},
            "link": {},
        },
        {
            "count": 2,
            "prototype": "large",
            "device": {"profile": "rtx3090-ryzen4800h"},
            "link": {},
        },
    ],
    "policy": {"kind": "uniform", "strategy": "top-k"},
    "network": {"server": {"receive": "20 Mbps"}},
}
TABLE = "score,up_mbps,down_mbps\n0.25,2,10\n0.5,6,30\n1,20,90\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path


def written(overrides=None, name="s.yaml"):
    Path(name).write_text(yaml.safe_dump(SCENARIO))
    return simfed.load_scenario(name, overrides or {})


def play(overrides=None, out=None, **options):
    made = written(overrides)
    return simfed.run(
        made, out, source="s.yaml", time_only=True, progress=False, **options
    )


def test_a_choice_of_one_value_is_that_value(here):
    one = {
        "clients[*].device.speed": {"choice": {"values": [0.5]}},
        "clients[*].link.up": {"choice": {"values": ["4 Mbps"]}},
        "clients[*].link.down": {"choice": {"values": ["40 Mbps"]}},
        "clients[*].link.latency": {"choice": {"values": ["7 ms"]}},
        "clients[0].k": {"choice": {"values": [500]}},
    }
    plain = {
        "clients[*].device.speed": 0.5,
        "clients[*].link.up": "4 Mbps",
        "clients[*].link.down": "40 Mbps",
        "clients[*].link.latency": "7 ms",
        "clients[0].k": 500,
    }
    assert play(one).fingerprint == play(plain).fingerprint != play().fingerprint


def test_drawn_speeds_and_links_give_their_times(here):
    """One client alone on its links: seconds are bytes over its own rate, work over its
    own speed.
    """
    result = play(
        {
            "clients[*].devices": {"table": "t.csv"},
            "clients[*].device.speed": {"column": "score"},
            "clients[*].link.up": {"column": "up_mbps", "unit": "Mbps"},
            "clients[*].link.down": {"column": "down_mbps", "unit": "Mbps"},
            "network": {},
        }
    )
    processor = build_processor(
        DeviceSpec(profile="p"), load_profile("rtx3090-ryzen4800h")
    )
    models = {"small": "lenet5-half", "large": "lenet5"}
    rows = {(0.25, 2.0, 10.0), (0.5, 6.0, 30.0), (1.0, 20.0, 90.0)}
    for row in result.participations.itertuples():
        step_s = processor.nominal_s("training", model=models[row.prototype], batch=32)
        speed = step_s / row.training_s
        up, down = (
            row.uplink_bytes * 8e-6 / row.uplink_s,
            row.downlink_bytes * 8e-6 / row.downlink_s,
        )
        assert any(
            (speed, up, down) == pytest.approx(device, rel=1e-9) for device in rows
        )


def test_a_run_directory_holds_the_tables_that_it_was_drawn_from(here):
    drawn = {
        "clients[0].device.speed": {"table": "t.csv", "column": "score"},
        "clients[1].devices": {"table": "t.csv"},
        "clients[1].link.up": {"column": "up_mbps", "unit": "Mbps"},
    }
    first = play(drawn, "r")
    (here / "t.csv").unlink()
    (here / "r").rename(here / "moved")
    again = simfed.run(
        simfed.load_scenario("moved/scenario.yaml"),
        source="moved/scenario.yaml",
        time_only=True,
        progress=False,
    )
    assert again.fingerprint == first.fingerprint


def test_each_client_reads_its_own_column_of_a_trace(here):
    rates = [8, 16, 32, 64, 128]
    head = "t," + ",".join(f"ue{client}" for client in range(5))
    Path("ran.csv").write_text(
        f"{head}\n0,{','.join(map(str, rates))}\n1,{','.join(map(str, rates))}\n"
    )
    trace = {
        "file": "ran.csv",
        "format": "csv",
        "end": "hold",
        "time_column": "t",
        "rate_column": "ue{client}",
    }
    result = play({"clients[*].link.up": trace, "network": {}})
    for row in result.participations.itertuples():
        assert row.uplink_bytes * 8e-6 / row.uplink_s == pytest.approx(
            rates[row.client]
        )


def test_the_learning_key_knows_the_drawn_entries_and_no_other_draw(here):
    def key(**keys):
        group = {
            "count": 2,
            "prototype": "p",
            "device": "rtx3090-ryzen4800h",
            "link": {},
            **keys,
        }
        data = {
            **SCENARIO,
            "prototypes": {"p": {"model": "lenet5-half"}},
            "clients": [group],
        }
        return learning_key(validate_scenario(data, source="s", folder=here))

    law = {"uniform": {"low": 10, "high": 1000}}
    fast = {
        "profile": "rtx3090-ryzen4800h",
        "speed": {"uniform": {"low": 0.1, "high": 1}},
    }
    assert key() == key(device=fast)
    assert (
        len(
            {
                key(),
                key(k=law),
                key(k={"uniform": {"low": 10, "high": 999}}),
                key(k="1%"),
            }
        )
        == 4
    )


def test_validate_and_show_say_what_was_drawn(here, capsys):
    written()
    law = "clients[0].device.speed={uniform: {low: 0.5, high: 1}}"
    assert main(["validate", "s.yaml", "--resolved", "--set", law]) == 0
    said = capsys.readouterr().out
    drawn = [line for line in said.splitlines() if line.startswith("# drawn: ")]
    assert len(drawn) == 1
    assert drawn[0].startswith("# drawn: clients[0].device.speed: n 3, min 0.")
    Path("resolved.yaml").write_text(said)
    assert simfed.load_scenario("resolved.yaml") == simfed.load_scenario(
        "s.yaml", [("clients[0].device.speed", {"uniform": {"low": 0.5, "high": 1}})]
    )
    up = "clients[1].link.up={lognormal: {median: 5 Mbps, cv: 1}}"
    for out in ([], ["--out", "f.svg"]):
        assert main(["show", "fleet", "s.yaml", "--set", law, "--set", up, *out]) == 0
    said = capsys.readouterr().out
    assert "clients[0]: 3 × small, rtx3090-ryzen4800h" in said
    assert "device.speed  uniform" in said
    assert "unlimited" in said
    assert Path("s-fleet.png").read_bytes().startswith(b"\x89PNG")
    assert "uplink, Mbps" in Path("f.svg").read_text()


def test_show_fleet_shows_what_learns_and_has_sizes_from_data(tmp_path, capsys):
    scenario = Path(__file__).parents[2] / "scenarios" / "changes.yaml"
    words = ["show", "fleet", str(scenario), "--set", "compression.index_code=rice"]
    assert main([*words, "--out", str(tmp_path / "fleet.svg")]) == 0
    said = capsys.readouterr().out
    assert "link.up" in said
    assert "device.speed" in said


def test_show_says_who_is_there_when(here, capsys):
    data = {**SCENARIO, "clients": [dict(group) for group in SCENARIO["clients"]]}
    data["clients"][0]["availability"] = {"daily": {"from": "06:00", "to": "18:00"}}
    Path("s.yaml").write_text(yaml.safe_dump(data))
    assert main(["show", "fleet", "s.yaml", "--out", "f.svg"]) == 0
    said = capsys.readouterr().out
    assert "there: 0% to 100% of its clients, median 0%, in 48 h" in said
    assert "there: 100% to 100% of its clients" in said
    assert "there at, simulated h" in Path("f.svg").read_text()


def test_a_forgotten_link_is_warned_of_and_recorded(here, capsys):
    made = written()
    data = yaml.safe_load(Path("s.yaml").read_text())
    del data["clients"][1]["link"]
    Path("s.yaml").write_text(yaml.safe_dump(data))
    assert main(["validate", "s.yaml"]) == 0
    assert (
        "warning: clients[1].link is omitted: its 2 clients" in capsys.readouterr().err
    )
    silent = simfed.load_scenario("s.yaml")
    result = simfed.run(silent, "r", time_only=True, progress=False)
    assert (
        result.fingerprint
        == simfed.run(made, time_only=True, progress=False).fingerprint
    )
    warnings = json.loads(Path("r/manifest.json").read_text())["warnings"]
    assert any(w.startswith("clients[1].link is omitted") for w in warnings)
