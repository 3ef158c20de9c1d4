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
from test_net_topology import names

from simfed import InputError
from simfed.ground import Streams
from simfed.net import Fluid, Tcp, build, build_model
from simfed.net.spec import LinkSpec, NetworkSpec
from simfed.scenario import dump_scenario, validate_scenario


def scenario(link="{}", network="{}", folder=".", other="{up: 2 Mbps, latency: 1 ms}"):
    """Return a world of two clients behind a link, as YAML says it, and of three
    others.
    """
    [group] = worlds.TINY["clients"]
    clients = [
        group | {"count": count, "link": yaml.safe_load(text)}
        for count, text in ((2, link), (3, other))
    ]
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


def latencies_s(topology):
    return pytest.approx([topology.path(0, way).latency_s for way in ("up", "down")])


def rates(topology, number=0):
    """Of a trace: 2 c for the way up of client c, 2 c + 1 down."""
    return [*topology.traces[number].trace.rates_bytes_per_s]


def test_a_tree_with_a_choice_of_nodes():
    network = """{topology: tree,
      tiers: [{name: ap, count: 2, up: 3 Mbps, down: 9 Mbps, latency: 2 ms},
                 {name: core, up: 5 Mbps}], server: {receive: 4 Mbps}}"""
    grown = build_topology("{at: ap-1}", network)
    assert names(grown, 0) == ["ap-1/up", "core/up", "server/receive"]
    # alone at ap-0, slower than it
    assert names(grown, 2) == ["client-2/up", "core/up", "server/receive"]


@pytest.mark.parametrize(
    ("link", "network", "expected_s"),
    [
        (
            "{latency: 100 ms, down_latency: 200 ms}",
            "{topology: tree, tiers: [{name: ap, latency: 2 ms, down_latency: 3 ms}],",
            [0.112, 0.223],
        ),
        ("{latency: 100 ms}", "{", [0.11, 0.12]),
        (
            "{at: a}",
            "{topology: graph, edges: [{between: [a, server], latency: 2 ms, "
            "down_latency: 3 ms}],",
            [0.012, 0.023],
        ),
    ],
)
def test_every_link_can_have_another_latency_downwards(link, network, expected_s):
    network += "server: {latency: 10 ms, down_latency: 20 ms}}"
    made = build_topology(link, network, other=link)
    assert latencies_s(made) == expected_s


def test_a_graph_of_edges_with_routes():
    network = """{topology: graph,
                 edges: [{between: [a, server], up: 1 Mbps, latency: 9 ms},
                 {between: [a, b], up: 1 Mbps, latency: 1 ms},
                 {between: [b, server], up: 1 Mbps}],
                 routes: [[client-1, a, server]]}"""
    drawn = build_topology("{at: a}", network, other="{at: b}")
    assert names(drawn, 0) == ["a>b", "b>server"]
    assert names(drawn, 1) == ["a>server"]


def test_a_graph_file_s_missing_capacities_are_what_the_scenario_says(tmp_path):
    drawn = networkx.Graph()
    drawn.add_edge("hub", "core", LinkSpeedRaw=1e7)
    drawn.add_edge("core", "server", up="4 Mbps")
    networkx.write_graphml(drawn, tmp_path / "net.graphml")

    def capacities(capacity):
        text = f"{{topology: graph, file: net.graphml, capacity: {capacity}}}"
        topology = build_topology("{at: hub}", text, folder=tmp_path, other="{at: hub}")
        return {line.name: line.capacity_bytes_per_s for line in topology.lines[:-2]}

    for missing, rate in (("8 Mbps", 1e6), ("unlimited", inf)):
        others = dict.fromkeys(("hub>core", "core>hub", "server>core"), rate)
        told = capacities(f"{{missing: {missing}}}")
        assert told == {"core>server": 5e5, **others}
    sentence = r"LinkSpeedRaw.*network\.capacity: \{attribute.*\{missing: 1 Gbps\}"
    with pytest.raises(InputError, match=sentence):
        capacities("null")


def test_loss_in_a_graph_file_needs_model_tcp_too(tmp_path):
    drawn = networkx.Graph()
    drawn.add_edge("hub", "server", capacity="1 Mbps", loss=0.1)
    networkx.write_gml(drawn, tmp_path / "net.gml")
    network = {"topology": "graph", "file": str(tmp_path / "net.gml")}
    links = [LinkSpec(at="hub")]
    sentence = (
        r"network\.file: edge hub to server: loss: model fluid ignores losses, "
        "expected no loss, or model tcp"
    )
    with pytest.raises(InputError, match=sentence):
        build(NetworkSpec(**network), links, Streams(0))
    drawn = build(NetworkSpec(**network, model="tcp"), links, Streams(0))
    assert drawn.path(0, "up").loss == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("network", "model"),
    [
        ("{}", Fluid()),
        ("{model: tcp}", Tcp()),
        (
            "{model: tcp, tcp: {handshake: false, header: 40 B, window: 64 kB}}",
            Tcp(handshake=False, header_bytes=40.0, window_bytes=64e3),
        ),
        ("{model: tcp, tcp: {window: null}}", Tcp(window_bytes=None)),
    ],
)
def test_models_and_their_options(network, model):
    assert build_model(scenario(network=network).network) == model


def test_a_trace_file_gives_every_client_its_own_offset(tmp_path):
    (tmp_path / "a.txt").write_text("0 0\n1 8\n3 16\n")
    file = "file: a.txt, format: pensieve, end: loop"
    link = f"{{up: {{{file}, factor: 0.5}}, down: {{{file}}}}}"
    one, again, other = (
        build_topology(link, folder=tmp_path, seed=seed) for seed in (0, 0, 1)
    )
    assert (rates(one, 0), rates(one, 1)) == ([5e5, 1e6], [1e6, 2e6])
    # it is in memory once for each factor
    assert one.traces[2].trace is one.traces[0].trace
    assert one.traces[3].trace is one.traces[1].trace
    offsets_s = [one.traces[number].offset_s for number in range(4)]
    # a client's two directions stay in step
    assert offsets_s[::2] == offsets_s[1::2]
    assert len(set(offsets_s)) == 2
    assert all(0 <= offset_s < 3 for offset_s in offsets_s)
    assert again.traces == one.traces
    assert other.traces[0].offset_s != offsets_s[0]


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
    assert (rates(topology, 0), rates(topology, 1)) == ([15000.0], [1e3, 2e3])


@pytest.mark.parametrize(
    ("files", "mbytes_per_s"),
    [
        ('"each/{client}.csv"', [1, 2, 3, 4, 5]),
        ("[each/2.csv, each/0.csv]", [3, 1, 3, 1, 3]),
        ("[each/2.csv]", [3] * 5),
        # a second group begins with the first file
        ("each", [1, 2, 1, 2, 3]),
    ],
)
def test_clients_have_a_file_each(tmp_path, files, mbytes_per_s):
    (tmp_path / "each" / "deeper").mkdir(parents=True)
    (tmp_path / "each" / ".hidden").write_text("no trace")
    for k in range(5):
        (tmp_path / "each" / f"{k}.csv").write_text(f"0,{8 * (k + 1)}\n")
    link = f"{{up: {{file: {files}, format: csv, end: hold}}}}"
    topology = build_topology(link, other=link, folder=tmp_path)
    told = [rates(topology, 2 * client) for client in range(5)]
    assert told == [[1e6 * rate] for rate in mbytes_per_s]


def generated(**changes):
    """A link whose rates are drawn."""
    law = {"kind": "lognormal-ar1", "mean": "8 Mbps", "cv": 0.3, "correlation": 0.5}
    return {"generate": {**law, "step": "1 s", **changes}, "end": "loop"}


def test_traces_that_are_too_much_together_are_refused(monkeypatch):
    monkeypatch.setattr("simfed.net.building.MOST_PIECES_TOGETHER", 100)
    link = yaml.safe_dump({"up": generated(length="60 s")})
    sentence = "got 'more', expected traces of at most 100 pieces together"
    with pytest.raises(InputError, match=rf"clients\[0\].link.up: {sentence}"):
        build_topology(link)


def test_adding_clients_changes_nobodys_trace():
    links = [LinkSpec(up=generated())]
    few, many = (
        build(NetworkSpec(), links, Streams(3), link_of_client=[0] * n) for n in (2, 5)
    )
    assert all(few.traces[k] == many.traces[k] for k in few.traces)


def test_shared_links_can_vary_too():
    tiers = [{"name": "ap", "count": 2, "up": generated()}]
    server = {"receive": generated(mean="1 Mbps")}
    network = {"topology": "tree", "tiers": tiers, "server": server}
    topology = build_topology("{}", yaml.safe_dump(network))
    assert names(topology, 0) == ["ap-0/up", "server/receive"]
    assert len({tuple(rates(topology, k)) for k in topology.traces}) == 3


def test_the_examples_of_the_documentation_are_valid():
    docs = Path(__file__).parents[2] / "docs"
    pages = ("network.md", "radio-cells.md", "graphs.md")
    page = "\n".join((docs / name).read_text() for name in pages)
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    chunks = [yaml.safe_load(c) for block in blocks for c in block.split("\n\n")]
    parts = [part for chunk in chunks for part in chunk.items() if part[0] != "clients"]
    groups = [group for chunk in chunks for group in chunk.get("clients", ())]
    parts += [("link", group["link"]) for group in groups]
    kinds = {"network": NetworkSpec, "link": LinkSpec}
    seen = [kinds[key].model_validate(value) for key, value in parts]
    assert len(seen) == 13
