"""Stars, trees and graphs: which links a client's bytes cross, and what is wrong with a
network.
"""

from __future__ import annotations

from math import inf

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_oracle import least_ways

from simfed import InputError
from simfed.net import (
    Access,
    Line,
    LinkTrace,
    Star,
    Tier,
    Trace,
    graph,
    read_graph,
    tree,
)
from simfed.net.spec import FileCapacity


def names(topology, client, direction="up"):
    return [topology.link_name(link) for link in topology.path(client, direction).links]


def both(a, b, rate=inf, latency_s=0.0, back=None):
    return [
        Line(f"{a}>{b}", a, b, rate, latency_s),
        Line(f"{b}>{a}", b, a, rate if back is None else back, latency_s),
    ]


@pytest.mark.parametrize(
    ("receive", "binds"), [(9.9, True), (10.0, True), (10.1, False)]
)
def test_a_server_link_faster_than_all_clients_together_cannot_bind(receive, binds):
    star = Star(2, up_bytes_per_s=[4.0, 6.0], receive_bytes_per_s=receive)
    assert ("server/receive" in names(star, 0)) is binds


def test_a_varying_link_counts_with_its_peak():
    trace = LinkTrace(Trace.of([0.0, 1.0], [1.0, 8.0], 2.0, "loop"))
    slow = Star(
        2,
        up_bytes_per_s=[4.0, 6.0],
        traces={(0, "up"): trace},
        receive_bytes_per_s=13.0,
    )
    assert names(slow, 0) == ["client-0/up", "server/receive"]


def test_a_varying_server_link_counts_with_its_slowest():
    trace = LinkTrace(Trace.of([0.0, 1.0], [1.0, 80.0], 2.0, "loop"))
    assert names(Star(2, up_bytes_per_s=4.0, receive_bytes_per_s=trace), 0) == [
        "client-0/up",
        "server/receive",
    ]
    always = LinkTrace(Trace.of([0.0, 1.0], [9.0, 80.0], 2.0, "loop"))
    assert names(Star(2, up_bytes_per_s=4.0, receive_bytes_per_s=always), 0) == [
        "client-0/up"
    ]


def test_a_shared_link_may_be_called_like_a_client_that_is_not_there():
    assert names(tree(2, Access(), [Tier("client-2", 1, 1.0)]), 0) == ["client-2/up"]


# ---- trees ---------------------------------------------------------------------------


def test_clients_are_dealt_in_blocks_up_a_tree():
    topology = tree(
        6,
        Access(5.0, 5.0),
        [Tier("edge", 3, 4.0, 4.0, 0.01), Tier("core", 1, 5.0, 5.0, 0.02)],
        receive_bytes_per_s=3.0,
    )
    assert [names(topology, c)[1] for c in range(6)] == ["edge-0/up"] * 2 + [
        "edge-1/up"
    ] * 2 + ["edge-2/up"] * 2
    assert names(topology, 5) == [
        "client-5/up",
        "edge-2/up",
        "core/up",
        "server/receive",
    ]
    assert names(topology, 5, "down") == ["core/down", "edge-2/down", "client-5/down"]
    assert topology.path(0, "up").latency_s == pytest.approx(0.03)


def test_a_tree_leaves_out_what_its_lower_links_cannot_fill():
    topology = tree(4, Access(1.0), [Tier("edge", 2, 3.0), Tier("core", 1, 5.0)])
    # an edge link takes in 2, the core two edges of 3
    assert names(topology, 0) == ["client-0/up", "core/up"]


# ---- graphs --------------------------------------------------------------------------


@st.composite
def drawn_lines(draw):
    """Few nodes and few latencies, so that ways tie.

    Parallel lines and loops among them.
    """
    ends = st.sampled_from(["server", *"abcdefgh"])
    latencies = st.sampled_from(
        draw(st.sampled_from([[0.0], [0.0, 1.0], [0.1, 0.2, 0.3]]))
    )
    drawn = draw(st.lists(st.tuples(ends, ends, latencies), min_size=1, max_size=40))
    return [Line(f"{a}>{b} {k}", a, b, 1.0, s) for k, (a, b, s) in enumerate(drawn)]


@settings(deadline=None)
@given(drawn_lines())
def test_routes_are_those_that_whole_ways_compared_name_by_name_would_give(lines):
    up, down = (least_ways(lines, "server", way) for way in ("up", "down"))
    homes = sorted(set(up) & set(down))
    topology = graph(len(homes), Access(1.0, 1.0), lines, node_of_client=homes)
    for client, node in enumerate(homes):
        for way, crossed in (("up", up[node]), ("down", down[node])):
            access = [2 * client + (way == "down")]
            links = [2 * len(homes) + k for k in crossed]
            path = topology.path(client, way)
            assert path.crossed == tuple(
                access + links if way == "up" else links + access
            )
            assert path.latency_s == sum([lines[k].latency_s for k in crossed])


def test_a_chain_of_ten_thousand_links_has_a_step_per_link():
    count = 10_000
    lines = [
        x
        for k in range(count)
        for x in both(f"n{k + 1}", f"n{k}" if k else "server", 1.0, 0.5)
    ]
    topology = graph(
        count,
        Access(2.0, 2.0),
        lines,
        node_of_client=[f"n{k + 1}" for k in range(count)],
    )
    assert len(topology.routes.line) == 2 * count + 2
    assert topology.path(count - 1, "up").links[:3] == (
        2 * count - 2,
        4 * count - 2,
        4 * count - 4,
    )
    assert topology.path(count - 1, "down").latency_s == count / 2
    assert len(topology.path(4, "up").crossed) == 6


def test_explicit_routes_win_and_a_clients_own_beats_its_nodes():
    lines = [
        *both("a", "server", 1.0),
        *both("a", "b", 2.0, 1.0),
        *both("b", "server", 3.0, 1.0),
    ]
    topology = graph(
        3,
        Access(9.0, 9.0),
        lines,
        node_of_client=["a", "a", "b"],
        routes=[
            ["a", "b", "server"],
            ["client-1", "a", "server"],
            ["server", "b", "a"],
        ],
    )
    assert names(topology, 0) == ["client-0/up", "a>b", "b>server"]
    assert names(topology, 1) == ["client-1/up", "a>server"]
    assert names(topology, 1, "down") == [
        *names(topology, 0, "down")[:-1],
        "client-1/down",
    ]
    assert names(topology, 0, "down") == ["server>b", "b>a", "client-0/down"]
    # 1 s either way: fewer links
    assert names(topology, 2) == ["client-2/up", "b>server"]


def test_a_route_from_a_client_may_begin_with_a_node_that_is_called_like_it():
    lines = [
        *both("client-0", "server", 1.0),
        *both("client-0", "b", 2.0, 1.0),
        *both("b", "server", 1.0),
    ]
    topology = graph(
        2,
        Access(),
        lines,
        node_of_client=[None, "client-0"],
        routes=[["client-0", "b", "server"], ["client-1", "client-0", "server"]],
    )
    assert names(topology, 0) == ["client-0>b", "b>server"]
    assert names(topology, 1) == ["client-0>server"]


@pytest.mark.parametrize("suffix", ["graphml", "gml"])
@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph])
def test_graph_files_give_the_same_lines_as_the_graph(tmp_path, suffix, kind):
    drawn = kind()
    drawn.add_edge("ap", "core", up="80 Mbps", down="160 Mbps", latency="5 ms")
    drawn.add_edge(
        "core", "server", capacity="1 Gbps", latency="2 ms", loss=0.01, colour="red"
    )
    path = tmp_path / f"net.{suffix}"
    getattr(networkx, f"write_{suffix}")(drawn, path)
    lines = read_graph(path)
    by_name = {line.name: line for line in lines}
    assert by_name["ap>core"].capacity_bytes_per_s == 1e7
    assert by_name["core>server"] == Line(
        "core>server", "core", "server", 1.25e8, 0.002, 0.01
    )
    assert ("core>ap" in by_name) is (kind is networkx.Graph)
    if kind is networkx.Graph:
        assert by_name["core>ap"].capacity_bytes_per_s == 2e7


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({}, "no capacity is given, expected capacity such as 10 Mbps"),
        (
            {"LinkSpeedRaw": 1e7, "delay": 3},
            ("its other attributes are LinkSpeedRaw, delay, exp"),
        ),
        ({"bandwidth": "10 Mbps"}, "its other attributes are bandwidth, expected"),
        ({f"a{k}": 1 for k in range(9)}, "a6, a7, …, expected"),
        (
            {"up": "10 Mbps", "bw": 1},
            ("no capacity back is given; .* are bw, expected capacity, or"),
        ),
    ],
)
def test_an_edge_of_a_file_without_a_capacity_is_refused(
    tmp_path, attributes, sentence
):
    drawn = networkx.Graph()
    drawn.add_edge("a", "server", **attributes)
    path = tmp_path / "net.gml"
    networkx.write_gml(drawn, path)
    with pytest.raises(InputError, match=f"net.gml: edge a to server: .*{sentence}"):
        read_graph(path)
    missing = FileCapacity(missing="16 Mbps")
    assert {line.latency_s for line in read_graph(path, missing)} == {0.0}
    back = attributes.get("up") and 1.25e6
    assert [line.capacity_bytes_per_s for line in read_graph(path, missing)] == [
        back or 2e6,
        2e6,
    ]


def test_attributes_of_the_users_own_are_left_alone(tmp_path):
    drawn = networkx.Graph()
    drawn.add_edge(
        "a", "server", owner="x", domain="y", group=3, key=1, weight=2.0, **{"class": 3}
    )
    networkx.write_gml(drawn, tmp_path / "net.gml")
    lines = read_graph(tmp_path / "net.gml", FileCapacity(missing="unlimited"))
    assert [line.name for line in lines] == ["a>server", "server>a"]


def test_a_network_beyond_the_bounds_is_refused(tmp_path, monkeypatch):
    drawn = networkx.path_graph(["a", "b", "server"])
    networkx.write_gml(drawn, tmp_path / "net.gml")
    monkeypatch.setattr("simfed.net.topology.MOST_LINES", 3)
    sentence = "got 4, expected at most 3 links between nodes, each direction counted"
    with pytest.raises(InputError, match=f"graph: {sentence}"):
        graph(
            1, Access(), [*both("a", "b"), *both("b", "server")], node_of_client=["a"]
        )
    with pytest.raises(InputError, match=f"tiers: {sentence}"):
        tree(1, Access(), [Tier("edge", 1), Tier("core", 1)])
    with pytest.raises(InputError, match=f"net.gml: {sentence}"):
        read_graph(tmp_path / "net.gml")
    monkeypatch.setattr("simfed.net.graph_files.MOST_FILE_BYTES", 20)
    with pytest.raises(
        InputError,
        match=r"net\.gml: got '201 bytes', expected a file of at most 20 "
        r"bytes",
    ):
        read_graph(tmp_path / "net.gml")


@pytest.mark.parametrize(
    ("name", "text"), [("net.gml", "graph ["), ("net.graphml", "<x")]
)
def test_a_broken_graph_file_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"{name}: no graph in {name[4:]} format"):
        read_graph(tmp_path / name)
