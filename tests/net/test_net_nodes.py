"""Paths between any two nodes, and transfers over them."""

import json

import pytest
import simpy

from simfed.ground.errors import InputError
from simfed.net import Access, Line, Network, Nodes, Star, Tier, graph, tree
from simfed.net.topology import Cell


def small_tree(**access):
    """Four clients, two below each edge, both edges below one fog node."""
    edge = Tier("edge", 2, up_bytes_per_s=50.0, down_bytes_per_s=60.0, latency_s=0.1)
    fog = Tier("fog", 1, up_bytes_per_s=70.0, down_bytes_per_s=80.0, latency_s=0.2)
    line = Access(up_bytes_per_s=10.0, down_bytes_per_s=20.0, latency_s=0.01, **access)
    return tree(4, line, [edge, fog], receive_bytes_per_s=90.0, server_latency_s=0.4)


def names(topology, source, target):
    path = Nodes(topology).path(source, target)
    return [topology.link_name(link) for link in path.links]


@pytest.mark.parametrize(
    ("source", "target", "links", "latency_s"),
    [
        ("client-3", "edge-1", ["client-3/up"], 0.01),
        ("edge-1", "client-3", ["client-3/down"], 0.01),
        ("client-3", "fog", ["client-3/up", "edge-1/up"], 0.11),
        ("fog", "client-0", ["edge-0/down", "client-0/down"], 0.11),
        ("edge-0", "server", ["edge-0/up", "fog/up", "server/receive"], 0.7),
        ("server", "edge-0", ["fog/down", "edge-0/down"], 0.7),
        ("edge-0", "edge-1", ["edge-0/up", "edge-1/down"], 0.2),
        ("client-0", "client-1", ["client-0/up", "client-1/down"], 0.02),
        ("client-0", "edge-1", ["client-0/up", "edge-0/up", "edge-1/down"], 0.21),
    ],
)
def test_a_path_is_what_lies_between(source, target, links, latency_s):
    topology = small_tree()
    path = Nodes(topology).path(source, target)
    assert names(topology, source, target) == links
    assert path.latency_s == pytest.approx(latency_s, rel=1e-12)
    assert path.rtt_s == pytest.approx(2 * latency_s, rel=1e-12)


def test_a_client_and_the_server_have_the_path_that_transfers_have():
    topology = small_tree()
    nodes = Nodes(topology)
    for client in range(4):
        assert nodes.path(f"client-{client}", "server") == topology.path(client, "up")
        assert nodes.path("server", f"client-{client}") == topology.path(client, "down")


def test_a_tier_is_the_clients_own_node_of_it():
    nodes = Nodes(small_tree())
    assert [nodes.node_of(client, "edge") for client in range(4)] == ["edge-0"] * 2 + ["edge-1"] * 2
    assert nodes.node_of(3, "edge-0") == "edge-0"
    assert nodes.node_of(3, "fog") == "fog"
    with pytest.raises(InputError, match="did you mean 'edge'"):
        nodes.node_of(0, "egde")
    with pytest.raises(InputError, match="a node of the network"):
        nodes.path("client-9", "server")


def test_in_a_graph_others_take_the_way_of_least_latency():
    ways = (
        ("a>b", "a", "b", 0.1),
        ("b>c", "b", "c", 0.1),
        ("a>c", "a", "c", 0.5),
        ("c>a", "c", "a", 0.5),
        ("c>server", "c", "server", 0.1),
        ("server>c", "server", "c", 0.1),
        ("b>lone", "b", "lone", 0.1),
    )
    lines = [Line(name, tail, head, 5.0, s) for name, tail, head, s in ways]
    topology = graph(2, Access(), lines, node_of_client=["a", "c"])
    assert names(topology, "a", "c") == ["a>b", "b>c"]
    assert names(topology, "client-1", "client-0") == ["c>a"]
    with pytest.raises(InputError, match="can reach"):
        Nodes(topology).path("lone", "a")


def test_what_a_node_sends_shares_its_link_with_clients():
    """Uploads of 10 bytes/s each never fill the edge's 50; what the edge sends itself does."""
    env = simpy.Environment()
    network = Network(env, small_tree())
    assert network.nodes is not None
    upload = network.send(0, 99.0)
    sent = network.send_between("edge-0", "fog", 400.0, key=(7, 1))
    env.run()
    assert upload.done.value == pytest.approx(0.71 + 9.9, rel=1e-12)
    # 50 bytes/s for 0.61 s, then 40
    assert sent.done.value == pytest.approx(0.71 + (400.0 - 30.5) / 40.0, rel=1e-12)
    assert sent.name == "edge-0 to fog"


def test_keys_and_ends_of_transfers_are_in_the_state():
    env = simpy.Environment()
    network = Network(env, small_tree())
    network.send(3, 40.0, key=(3, 0))
    network.send_between("edge-0", "server", 40.0, key=(-1, 2))
    again = Network(simpy.Environment(), network.topology)
    again.restore(json.loads(json.dumps(network.state())))
    assert [(t.key, t.name) for t in again.transfers] == [
        ((3, 0), "client 3 up"),
        ((-1, 2), "edge-0 to server"),
    ]


def test_two_clients_of_one_star_meet_at_its_switch():
    env = simpy.Environment()
    network = Network(env, Star(3, up_bytes_per_s=[1.0, 2.0, 4.0], down_bytes_per_s=3.0))
    sent = [network.send_between(f"client-{c}", f"client-{(c + 1) % 3}", 12.0) for c in range(3)]
    assert [env.run(transfer.done) for transfer in sent] == [12.0, 6.0, 4.0]


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ([Cell("home", [0, 1], [1.0, 1.0], [1.0, 1.0])], 8 / 4 + 8 / 2),
        ([Cell("home", [0], [1.0], [1.0]), Cell("street", [1], [1.0], [1.0])], 8 / 2),
    ],
)
def test_what_one_client_sends_another_takes_the_air_of_both_ends(cells, seconds):
    """One air carries every byte twice; two carry it at the same time."""
    env = simpy.Environment()
    star = Star(2, up_bytes_per_s=[4.0, 2.0], down_bytes_per_s=[4.0, 2.0], cells=cells)
    sent = Network(env, star).send_between("client-0", "client-1", 8.0)
    assert env.run(sent.done) == pytest.approx(seconds, rel=1e-12)
