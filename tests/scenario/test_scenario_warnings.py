"""Warnings of what people may not have meant."""

import pytest
from worlds import FIRST

from simfed.cli import main
from simfed.device import load_profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which somebody has begun to work."""
    here = tmp_path_factory.mktemp("mistakes")
    (here / "quick.yaml").write_text(FIRST)
    return here


def test_a_link_whose_unit_is_a_slip_is_warned_of(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    slow = FIRST.replace("up: 5 Mbps", "up: 1 bps").replace(
        "down: 20 Mbps", "down: 2 kbps"
    )
    (folder / "slow.yaml").write_text(slow.replace("logistic-regression", "resnet18"))
    assert main(["validate", "slow.yaml"]) == 0
    warnings = capsys.readouterr().err
    assert (
        "clients[0].link.up: at 1 bps one upload of 45.3 kB takes 4 d 5 h" in warnings
    )
    assert "clients[0].link.down: at 2 kbps one download of 44.7 MB takes 2" in warnings
    assert "is another unit meant, such as Mbps?" in warnings
    assert main(["validate", "quick.yaml"]) == 0
    assert not capsys.readouterr().err


def test_edges_of_a_file_without_latency_are_warned_of(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    edge = 'edge [ source 1 target 0 capacity "9 Mbps" '
    nodes = (
        'graph [ node [ id 0 label "server" ] node [ id 1 label "a" ] node [ id 2 '
        'label "b" ] '
    )
    (folder / "net.gml").write_text(
        nodes + edge + 'latency "2 ms" ] ' + edge.replace("1", "2") + "delay 3 ] ]"
    )
    network = "network: {topology: graph, file: net.gml}\nname: first"
    (folder / "x.yaml").write_text(
        FIRST.replace("name: first", network).replace("up: 5", "at: b, up: 5")
    )
    assert main(["validate", "x.yaml"]) == 0
    warned = capsys.readouterr().err
    assert (
        "network.file: 2 of 4 ways over edges of net.gml take no time: their attribute"
    ) in warned
    (folder / "net.gml").write_text(
        (folder / "net.gml").read_text().replace("delay 3", 'latency "1 ms"')
    )
    assert main(["validate", "x.yaml"]) == 0
    assert not capsys.readouterr().err


def test_warnings_of_a_profile_are_one_line_that_names_the_details(
    folder, capsys, monkeypatch
):
    monkeypatch.chdir(folder)
    estimated = FIRST.replace("logistic-regression", "resnet18").replace(
        "policy: {kind: uniform, strategy: top-k}", "policy: {kind: ascend}"
    )
    (folder / "estimated.yaml").write_text(estimated)
    assert main(["validate", "estimated.yaml"]) == 0
    short = capsys.readouterr().err.splitlines()
    assert main(["validate", "--details", "estimated.yaml"]) == 0
    whole = capsys.readouterr().err.splitlines()
    assert len(whole) > 1
    assert len(short) == 1
    profile = load_profile("x86-2core-vm").name
    assert (
        f"device profile {profile}: {len(whole)} of its times are not what was"
        in short[0]
    )
    assert short[0].endswith("details: simfed validate --details estimated.yaml")
