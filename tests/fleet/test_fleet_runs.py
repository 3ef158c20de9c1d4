"""Runs of drawn fleets: the drawn value does what the written value does, and a run
keeps its tables.
"""

from pathlib import Path

import pytest
import worlds
import yaml

import simfed
from simfed.cli import main
from simfed.replay import learning_key

TEXT = """\
name: drawn
rounds: 3
dataset: {name: mnist-mini, public: 16}
prototypes: {small: {model: lenet5-half}, large: {model: lenet5}}
clients:
- {count: 3, prototype: small, device: {profile: rtx3090-ryzen4800h}, link: {}}
- {count: 2, prototype: large, device: {profile: rtx3090-ryzen4800h}, link: {}}
policy: {kind: uniform, strategy: top-k}
network: {server: {receive: 20 Mbps}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("score,up_mbps\n0.25,2\n0.5,6\n1,20\n")


def written(**changes):
    """Load the scenario that `s.yaml` holds from now on."""
    data = worlds.change(yaml.safe_load(TEXT), changes)
    Path("s.yaml").write_text(yaml.safe_dump(data))
    return simfed.load_scenario("s.yaml")


def play(out=None, **changes):
    return worlds.play(written(**changes), out, source="s.yaml", time_only=True)


def test_a_choice_of_one_value_is_that_value():
    plain = {
        "clients[0].device.speed": 0.5,
        "clients[0].link.up": "4 Mbps",
        "clients[1].link.down": "40 Mbps",
        "clients[1].link.latency": "7 ms",
        "clients[0].k": 500,
    }
    one = {key: {"choice": {"values": [value]}} for key, value in plain.items()}
    assert play(**one).fingerprint == play(**plain).fingerprint != play().fingerprint


def test_a_run_directory_holds_the_tables_that_it_was_drawn_from():
    drawn = {
        "clients[0].device.speed": {"table": "t.csv", "column": "score"},
        "clients[1].devices": {"table": "t.csv"},
        "clients[1].link.up": {"column": "up_mbps", "unit": "Mbps"},
    }
    first = play("r", **drawn)
    Path("t.csv").unlink()
    moved = Path("r").rename("moved") / "scenario.yaml"
    made = simfed.load_scenario(moved)
    again = worlds.play(made, source=moved, time_only=True)
    assert again.fingerprint == first.fingerprint


def test_the_learning_key_knows_the_drawn_entries_and_no_other_draw():
    def key(**keys):
        return learning_key(worlds.world("tiny", clients=worlds.groups(keys)))

    def law(high):
        return {"uniform": {"low": 10, "high": high}}

    assert key() == key(device={**worlds.DEVICE, "speed": law(1000)})
    kept = {key(), key(k=law(1000)), key(k=law(999)), key(k="1%")}
    assert len(kept) == 4


def test_validate_and_show_say_what_was_drawn(capsys):
    written()
    law = "clients[0].device.speed={uniform: {low: 0.5, high: 1}}"
    assert main(["validate", "s.yaml", "--resolved", "--set", law]) == 0
    said = capsys.readouterr().out
    drawn = [line for line in said.splitlines() if line.startswith("# drawn: ")]
    assert len(drawn) == 1
    assert drawn[0].startswith("# drawn: clients[0].device.speed: n 3, min 0.")
    Path("resolved.yaml").write_text(said)
    speed = {"clients[0].device.speed": {"uniform": {"low": 0.5, "high": 1}}}
    assert simfed.load_scenario("resolved.yaml") == written(**speed)
    written()
    up = "clients[1].link.up={lognormal: {median: 5 Mbps, cv: 1}}"
    for out in ([], ["--out", "f.svg"]):
        assert main(["show", "fleet", "s.yaml", "--set", law, "--set", up, *out]) == 0
    said = capsys.readouterr().out
    assert "clients[0]: 3 × small, rtx3090-ryzen4800h" in said
    assert "device.speed  uniform" in said
    assert "compression of lenet5-half by top-k, K = 1,000" in said
    assert "unlimited" in said
    assert Path("s-fleet.png").read_bytes().startswith(b"\x89PNG")
    assert "uplink, Mbps" in Path("f.svg").read_text()


def test_show_says_who_is_there_when(capsys):
    daily = {"from": "06:00", "to": "18:00"}
    written(**{"clients[0].availability": {"daily": daily}})
    assert main(["show", "fleet", "s.yaml", "--out", "f.svg"]) == 0
    said = capsys.readouterr().out
    assert "there: 0% to 100% of its clients, median 0%, in 48 h" in said
    assert "there: 100% to 100% of its clients" in said
    assert "there at, simulated h" in Path("f.svg").read_text()


def test_a_forgotten_link_is_warned_of_and_recorded(capsys):
    result = play("r", **{"clients[1].link": worlds.GONE})
    assert main(["validate", "s.yaml"]) == 0
    forgotten = "clients[1].link is omitted"
    assert f"warning: {forgotten}: its 2 clients" in capsys.readouterr().err
    assert result.fingerprint == play().fingerprint
    assert any(w.startswith(forgotten) for w in result.manifest["warnings"])
