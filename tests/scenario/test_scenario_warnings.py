"""Warnings of what people may not have meant."""

from pathlib import Path

import pytest
from worlds import FIRST

from simfed.cli import main


@pytest.fixture
def warn(tmp_path, monkeypatch, capsys):
    """What `simfed validate` warns of a first scenario with other words in it."""
    monkeypatch.chdir(tmp_path)

    def warn(changes, *options):
        text = FIRST
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        Path("x.yaml").write_text(text)
        assert main(["validate", "x.yaml", *options]) == 0
        return capsys.readouterr().err

    return warn


BIG = {"logistic-regression": "resnet18"}


def test_link_whose_unit_is_a_slip_is_warned_of(warn):
    warnings = warn({"up: 5 Mbps": "up: 1 bps", "20 Mbps": "2 kbps", **BIG})
    for said in (
        "clients[0].link.up: at 1 bps one upload of 45.3 kB takes 4 d 5 h",
        "clients[0].link.down: at 2 kbps one download of 44.7 MB takes 2",
        "is another unit meant, such as Mbps?",
    ):
        assert said in warnings
    assert not warn({})


NODES = """graph [
node [ id 0 label "server" ] node [ id 1 label "a" ] node [ id 2 label "b" ]
edge [ source 1 target 0 capacity "9 Mbps" latency "2 ms" ]
edge [ source 2 target 0 capacity "9 Mbps" %s ] ]"""


def test_edges_of_a_file_without_latency_are_warned_of(warn):
    graph = "name: first\nnetwork: {topology: graph, file: net.gml}"
    changes = {"name: first": graph, "up: 5": "at: b, up: 5"}
    said = "network.file: 2 of 4 ways over edges of net.gml take no time: their attrib"
    for attribute, told in (("delay 3", said), ('latency "1 ms"', "")):
        Path("net.gml").write_text(NODES % attribute)
        warned = warn(changes)
        assert told in warned
        assert bool(warned) == bool(told)


def test_warnings_of_a_profile_are_one_line_that_names_the_details(warn):
    ascend = {"kind: uniform, strategy: top-k": "kind: ascend", **BIG}
    whole = warn(ascend, "--details").splitlines()
    [short] = warn(ascend).splitlines()
    assert len(whole) > 1
    assert f"x86-2core-vm: {len(whole)} of its times are not what was" in short
    assert short.endswith("details: simfed validate --details x.yaml")
