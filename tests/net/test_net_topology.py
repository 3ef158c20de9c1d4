"""Stars, trees and graphs: which links a client's bytes cross, and what is wrong with a
network.
"""

from __future__ import annotations

from itertools import pairwise
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


def both(a, b, rate=inf, latency_s=0.0):
    ways = (a, b), (b, a)
    return [Line(f"{one}>{other}", one, other, rate, latency_s) for one, other in ways]


def varying(slow, fast):
    return LinkTrace(Trace.of([0.0, 1.0], [slow, fast], 2.0, "loop"))


@pytest.mark.parametrize(
    ("receive", "binds"),
    [
        (9.9, True),
        (10.0, True),
        (10.1, False),
        (varying(1.0, 80.0), True),  # it counts with its slowest
        (varying(11.0, 80.0), False),
    ],
)
def test_a_server_link_faster_than_all_clients_together_cannot_bind(receive, binds):
    star = Star(2, up_bytes_per_s=[4.0, 6.0], receive_bytes_per_s=receive)
    assert names(star, 0) == ["client-0/up", *["server/receive"] * binds]


def test_a_varying_link_counts_with_its_peak():
    traces = {(0, "up"): varying(1.0, 8.0)}
    slow = Star(2, up_bytes_per_s=[4.0, 6.0], traces=traces, receive_bytes_per_s=13.0)
    assert names(slow, 0) == ["client-0/up", "server/receive"]


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
    for c in range(6):
        mine = f"client-{c}/up", f"edge-{c // 2}/up"
        assert names(topology, c) == [*mine, "core/up", "server/receive"]
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
            links = [2 * len(homes) + k for k in crossed]
            links.insert(0 if way == "up" else len(links), 2 * client + (way == "down"))
            path = topology.path(client, way)
            assert path.crossed == tuple(links)
            assert path.latency_s == sum([lines[k].latency_s for k in crossed])


def test_a_chain_of_ten_thousand_links_has_a_step_per_link():
    count = 10_000
    nodes = ["server", *(f"n{k + 1}" for k in range(count))]
    lines = [x for near, far in pairwise(nodes) for x in both(far, near, 1.0, 0.5)]
    topology = graph(count, Access(2.0, 2.0), lines, node_of_client=nodes[1:])
    assert len(topology.routes.line) == 2 * count + 2
    last = topology.path(count - 1, "up")
    assert last.links[:3] == (2 * count - 2, 4 * count - 2, 4 * count - 4)
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
    for client in (0, 1):
        way = ["server>b", "b>a", f"client-{client}/down"]
        assert names(topology, client, "down") == way
    # 1 s either way: fewer links
    assert names(topology, 2) == ["client-2/up", "b>server"]


def test_a_route_from_a_client_may_begin_with_a_node_that_is_called_like_it():
    ends = [("client-0", "server"), ("client-0", "b"), ("b", "server")]
    topology = graph(
        2,
        Access(),
        [line for pair in ends for line in both(*pair, 1.0)],
        node_of_client=[None, "client-0"],
        routes=[["client-0", "b", "server"], ["client-1", "client-0", "server"]],
    )
    assert names(topology, 0) == ["client-0>b", "b>server"]
    assert names(topology, 1) == ["client-0>server"]


def read_edges(tmp_path, *edges, section=None, kind=networkx.Graph, suffix="gml"):
    """The lines of a file of (end, end, attributes)."""
    drawn, path = kind(edges), tmp_path / f"net.{suffix}"
    getattr(networkx, f"write_{suffix}")(drawn, path)
    return read_graph(path, *[section] * bool(section))


@pytest.mark.parametrize("suffix", ["graphml", "gml"])
@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph])
def test_graph_files_give_the_same_lines_as_the_graph(tmp_path, suffix, kind):
    ways = {"up": "80 Mbps", "down": "160 Mbps", "latency": "5 ms"}
    fast = {"capacity": "1 Gbps", "latency": "2 ms", "loss": 0.01, "colour": "red"}
    edges = ("ap", "core", ways), ("core", "server", fast)
    lines = read_edges(tmp_path, *edges, kind=kind, suffix=suffix)
    rates = {line.name: line.capacity_bytes_per_s for line in lines}
    back = {"core>ap": 2e7, "server>core": 1.25e8}
    there = {"ap>core": 1e7, "core>server": 1.25e8}
    assert rates == there | (back if kind is networkx.Graph else {})
    last = Line("core>server", "core", "server", 1.25e8, 0.002, 0.01)
    assert last in lines


def test_an_edge_of_a_file_without_a_capacity_has_that_of_the_missing(tmp_path):
    many = {f"a{k}": 1 for k in range(9)}
    with pytest.raises(InputError, match="a6, a7, …, expected"):
        read_edges(tmp_path, ("a", "server", many))
    missing = FileCapacity(missing="16 Mbps")
    lines = read_edges(
        tmp_path, ("a", "server", {"up": "10 Mbps", "bw": 1}), section=missing
    )
    assert [line.capacity_bytes_per_s for line in lines] == [1.25e6, 2e6]
    assert {line.latency_s for line in lines} == {0.0}


def test_attributes_of_the_users_own_are_left_alone(tmp_path):
    own = ("owner", "domain", "group", "key", "weight", "class")
    lines = read_edges(
        tmp_path,
        ("a", "server", dict.fromkeys(own, 3)),
        section=FileCapacity(missing="unlimited"),
    )
    assert [line.name for line in lines] == ["a>server", "server>a"]


def test_a_network_beyond_the_bounds_is_refused(tmp_path, monkeypatch):
    drawn = networkx.path_graph(["a", "b", "server"])
    networkx.write_gml(drawn, tmp_path / "net.gml")
    monkeypatch.setattr("simfed.net.topology.MOST_LINES", 3)
    lines = [*both("a", "b"), *both("b", "server")]
    for where, make in (
        ("graph", lambda: graph(1, Access(), lines, node_of_client=["a"])),
        ("tiers", lambda: tree(1, Access(), [Tier("edge", 1), Tier("core", 1)])),
        ("net.gml", lambda: read_graph(tmp_path / "net.gml")),
    ):
        sentence = "got 4, expected at most 3 links between nodes, each direction"
        with pytest.raises(InputError, match=f"{where}: {sentence} counted"):
            make()
    monkeypatch.setattr("simfed.net.graph_files.MOST_FILE_BYTES", 20)
    sentence = r"net\.gml: got '201 bytes', expected a file of at most 20 bytes"
    with pytest.raises(InputError, match=sentence):
        read_graph(tmp_path / "net.gml")
