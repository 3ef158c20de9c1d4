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
