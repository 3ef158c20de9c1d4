"""From a scenario's YAML to links and paths: every topology, rates that vary, and what
is wrong.
"""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import networkx
import pytest
import worlds
import yaml

from simfed import InputError
from simfed.ground import Streams
from simfed.net import Fluid, LinkTrace, Tcp, build, build_model
from simfed.net.spec import LinkSpec, NetworkSpec
from simfed.scenario import dump_scenario, validate_scenario


def scenario(link="{}", network="{}", folder=".", other="{up: 2 Mbps, latency: 1 ms}"):
    """Return a world of two clients behind a link, as YAML says it, and of three
    others.
    """
    [group] = worlds.TINY["clients"]
    links = {2: yaml.safe_load(link), 3: yaml.safe_load(other)}
    clients = [group | {"count": count, "link": links[count]} for count in links]
    plain = worlds.TINY | {"clients": clients, "network": yaml.safe_load(network)}
    return validate_scenario(plain, source="x.yaml", folder=folder)


def build_topology(link="{}", network="{}", seed=0, folder=".", **other):
    plain = scenario(link, network, folder, **other)
    again = validate_scenario(
        yaml.safe_load(dump_scenario(plain)), source="again", folder="elsewhere"
    )
    # a resolved scenario is the same scenario, wherever it stands
    assert again == plain
    links = [group.link for group in plain.clients]
    return build(
        plain.network, links, Streams(seed), link_of_client=plain.group_of_client()
    )


def names(topology, client, direction="up"):
    return [topology.link_name(link) for link in topology.path(client, direction).links]


def test_a_tree_with_a_choice_of_nodes():
    network = """{topology: tree,
      tiers: [{name: ap, count: 2, up: 3 Mbps, down: 9 Mbps, latency: 2 ms},
                 {name: core, up: 5 Mbps}], server: {receive: 4 Mbps}}"""
    grown = build_topology("{at: ap-1}", network)
    assert names(grown, 0) == ["ap-1/up", "core/up", "server/receive"]
    assert names(grown, 2) == [
        "client-2/up",
        "core/up",
        "server/receive",
    ]  # alone at ap-0, slower than it


def test_every_link_can_have_another_latency_downwards():
    network = """{topology: tree,
                 tiers: [{name: ap, latency: 2 ms, down_latency: 3 ms}],
                 server: {latency: 10 ms, down_latency: 20 ms}}"""
    grown = build_topology("{latency: 100 ms, down_latency: 200 ms}", network)
    assert grown.path(0, "up").latency_s == pytest.approx(0.112)
    assert grown.path(0, "down").latency_s == pytest.approx(0.223)
    star = build_topology(
        "{latency: 100 ms}", ("{server: {latency: 10 ms, down_latency: 20 ms}}")
    )
    assert (
        star.path(0, "up").latency_s,
        star.path(0, "down").latency_s,
    ) == pytest.approx((0.11, 0.12))
    network = """{topology: graph,
      edges: [{between: [a, server], latency: 2 ms, down_latency: 3 ms}],
                 server: {latency: 10 ms, down_latency: 20 ms}}"""
    drawn = build(scenario(network=network).network, [LinkSpec(at="a")], Streams(0))
    assert (
        drawn.path(0, "up").latency_s,
        drawn.path(0, "down").latency_s,
    ) == pytest.approx((0.012, 0.023))


def test_a_graph_of_edges_with_routes():
    network = """{topology: graph,
                 edges: [{between: [a, server], up: 1 Mbps, latency: 9 ms},
                 {between: [a, b], up: 1 Mbps, latency: 1 ms},
                 {between: [b, server], up: 1 Mbps}],
                 routes: [[client-1, a, server]]}"""
    drawn = build_topology(
        "{at: a}",
        network.replace(
            "}],",
            "}, {between: [client-2, server]}, {between: [client-3, server]}, "
            "{between: [client-4, server]}],",
        ),
    )
    assert names(drawn, 0) == ["a>b", "b>server"]
    assert names(drawn, 1) == ["a>server"]


def test_a_graph_file_s_missing_capacities_are_what_the_scenario_says(tmp_path):
    drawn = networkx.Graph()
    drawn.add_edge("hub", "core", LinkSpeedRaw=1e7)
    drawn.add_edge("core", "server", up="4 Mbps")
    networkx.write_graphml(drawn, tmp_path / "net.graphml")

    def rates(capacity):
        text = f"{{topology: graph, file: net.graphml, capacity: {capacity}}}"
        topology = build_topology("{at: hub}", text, folder=tmp_path, other="{at: hub}")
        return {line.name: line.capacity_bytes_per_s for line in topology.lines[:-2]}

    said = {"core>server": 5e5}
    others = ("hub>core", "core>hub", "server>core")
    assert rates("{missing: 8 Mbps}") == said | dict.fromkeys(others, 1e6)
    assert rates("{missing: unlimited}") == said | dict.fromkeys(others, inf)
    with pytest.raises(
        InputError,
        match=r"LinkSpeedRaw.*network\.capacity: \{attribute.*\{missing: 1 Gbps\}",
    ):
        rates("null")


def test_loss_in_a_graph_file_needs_model_tcp_too(tmp_path):
    drawn = networkx.Graph()
    drawn.add_edge("hub", "server", capacity="1 Mbps", loss=0.1)
    networkx.write_gml(drawn, tmp_path / "net.gml")
    plain, links = (
        {"topology": "graph", "file": str(tmp_path / "net.gml")},
        [LinkSpec(at="hub")],
    )
    with pytest.raises(
        InputError,
        match=(
            r"network\.file: edge hub to server: loss: model fluid ignores losses, "
            "expected no loss, or model tcp"
        ),
    ):
        build(NetworkSpec(**plain), links, Streams(0))
    drawn = build(NetworkSpec(**plain, model="tcp"), links, Streams(0))
    assert drawn.path(0, "up").loss == pytest.approx(0.1)


def test_models_and_their_options():
    assert build_model(scenario().network) == Fluid()
    assert build_model(scenario(network="{model: tcp}").network) == Tcp()
    options = "{model: tcp, tcp: {handshake: false, header: 40 B, window: 64 kB}}"
    assert build_model(scenario(network=options).network) == Tcp(
        handshake=False, header_bytes=40.0, window_bytes=64e3
    )
    options = "{model: tcp, tcp: {window: null}}"
    assert build_model(scenario(network=options).network) == Tcp(window_bytes=None)


def test_a_trace_file_gives_every_client_its_own_offset(tmp_path):
    (tmp_path / "a.txt").write_text("0 0\n1 8\n3 16\n")
    link = (
        "{up: {file: a.txt, format: pensieve, end: loop, factor: 0.5}, down: {file: "
        "a.txt, format: pensieve, end: loop}}"
    )
    one = build_topology(link, folder=tmp_path)
    up, down = one.traces[0], one.traces[1]
    assert tuple(up.trace.rates_bytes_per_s) == (5e5, 1e6)
    assert tuple(down.trace.rates_bytes_per_s) == (1e6, 2e6)
    assert up.offset_s == down.offset_s  # a client's two directions stay in step
    # it is in memory once for each factor
    assert one.traces[2].trace is up.trace
    assert one.traces[3].trace is down.trace
    assert len({one.traces[2 * client].offset_s for client in range(2)}) == 2
    assert all(0 <= t.offset_s < 3 for t in one.traces.values())
    assert build_topology(link, folder=tmp_path).traces == one.traces
    assert (
        build_topology(link, folder=tmp_path, seed=1).traces[0].offset_s != up.offset_s
    )


@pytest.mark.parametrize(
    ("end", "extra", "offset"),
    [("hold", "", 0.0), ("error", "", 0.0), ("loop", ", offset: 2 s", 2.0)],
)
def test_offsets_can_be_given_and_are_0_where_a_trace_ends(
    tmp_path, end, extra, offset
):
    (tmp_path / "a.txt").write_text("0 0\n1 8\n3 16\n")
    link = f"{{up: {{file: a.txt, format: pensieve, end: {end}{extra}}}}}"
    assert build_topology(link, folder=tmp_path).traces[0].offset_s == offset


def test_formats_take_their_options(tmp_path):
    (tmp_path / "m.txt").write_text("100\n200\n")
    (tmp_path / "c.csv").write_text("t,kb\n0,8\n500,16\n")
    link = """{up: {file: m.txt, format: mahimahi, end: loop, bin: 200 ms},
      down: {file: c.csv, format: csv, end: loop, time_column: t, rate_column: kb,
             time_unit: ms, rate_unit: kbps}}"""
    topology = build_topology(link, folder=tmp_path)
    assert tuple(topology.traces[0].trace.rates_bytes_per_s) == (15000.0,)
    assert tuple(topology.traces[1].trace.rates_bytes_per_s) == (1e3, 2e3)


@pytest.mark.parametrize(
    ("files", "rates"),
    [
        ('"each/{client}.csv"', [1, 2]),
        ("[each/2.csv, each/0.csv]", [3, 1]),
        ("[each/2.csv]", [3, 3]),
        ("each", [1, 2]),
    ],
)
def test_clients_have_a_file_each(tmp_path, files, rates):
    (tmp_path / "each" / "deeper").mkdir(parents=True)
    (tmp_path / "each" / ".hidden").write_text("no trace")
    for k in range(3):
        (tmp_path / "each" / f"{k}.csv").write_text(f"0,{8 * (k + 1)}\n")
    link = f"{{up: {{file: {files}, format: csv, end: hold}}}}"
    topology = build_topology(link, folder=tmp_path)
    assert [
        topology.traces[2 * client].trace.rates_bytes_per_s[0] / 1e6
        for client in range(2)
    ] == rates


def test_a_second_group_begins_with_the_first_file(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}.csv").write_text(f"0,{8 * (k + 1)}\n")
    link = "{up: {file: [0.csv, 1.csv, 2.csv], format: csv, end: hold}}"
    topology = build_topology(link, other=link, folder=tmp_path)
    firsts = [trace.trace.peak_bytes_per_s for trace in topology.traces.values()]
    assert firsts == [1e6, 2e6, 1e6, 2e6, 3e6]


def test_traces_that_are_too_much_together_are_refused(monkeypatch):
    monkeypatch.setattr("simfed.net.building.MOST_PIECES_TOGETHER", 100)
    link = (
        "{up: {generate: {kind: lognormal-ar1, mean: 8 Mbps, cv: 0.3, correlation: "
        "0.5, step: 1 s, length: 60 s}, end: loop}}"
    )
    with pytest.raises(
        InputError,
        match=r"clients\[0\].link.up: got 'more', expected traces of at "
        r"most 100 pieces together",
    ):
        build_topology(link)


def test_adding_clients_changes_nobodys_trace():
    spec = {
        "generate": {
            "kind": "lognormal-ar1",
            "mean": "8 Mbps",
            "cv": 1.0,
            "correlation": 0.0,
            "step": "1 s",
        },
        "end": "loop",
    }
    network, links = NetworkSpec(), [LinkSpec(up=spec)]
    few, many = (
        build(network, links, Streams(3), link_of_client=[0] * n) for n in (2, 5)
    )
    assert all(few.traces[k] == many.traces[k] for k in few.traces)


def test_shared_links_can_vary_too(tmp_path):
    spec = (
        "{generate: {kind: lognormal-ar1, mean: 1 Mbps, cv: 0.3, correlation: 0.5, "
        "step: 1 s}, end: loop}"
    )
    network = (
        f"{{topology: tree, tiers: [{{name: ap, count: 2, up: {spec}}}], server: "
        f"{{receive: {spec}}}}}"
    )
    topology = build_topology("{}", network)
    assert names(topology, 0) == ["ap-0/up", "server/receive"]
    traces = [topology.traces[k] for k in sorted(topology.traces)]
    assert len(traces) == 3
    assert all(isinstance(trace, LinkTrace) for trace in traces)
    assert len({tuple(trace.trace.rates_bytes_per_s) for trace in traces}) == 3


def test_the_examples_of_the_documentation_are_valid():
    docs = Path(__file__).parents[2] / "docs"
    page = "\n".join(
        (docs / name).read_text()
        for name in ("network.md", "radio-cells.md", "graphs.md")
    )
    chunks = [
        c
        for block in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
        for c in block.split("\n\n")
    ]
    kinds = {"network": NetworkSpec, "link": LinkSpec}
    seen = [
        kinds[key].model_validate(value)
        for c in chunks
        for key, value in yaml.safe_load(c).items()
        if key != "clients"
    ]
    assert len(seen) == 10
    groups = [group for c in chunks for group in yaml.safe_load(c).get("clients", ())]
    assert [LinkSpec.model_validate(group["link"]).cell for group in groups] == [
        "home",
        "home",
        "street",
    ]
