"""Graphs of others: the Topology Zoo's layouts, units, distances, parallel edges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_net_building import build_topology
from zoo import LABELS, RAW, UNITS

from simfed import InputError
from simfed.net import read_graph
from simfed.net.spec import FileCapacity, FileLatency

SPEEDS = FileCapacity(attribute="LinkSpeedRaw", unit="bps", missing="80 Mbps")
DISTANCE = FileLatency(by="distance")


FIBRE = 2 / 3 * 299_792_458


def read(tmp_path, text, *sections):
    path = tmp_path / ("net.graphml" if text.startswith("<") else "net.gml")
    path.write_text(text)
    return {line.name: line for line in read_graph(path, *sections)}


def rates(tmp_path, text, *sections):
    lines = read(tmp_path, text, *sections)
    return {name: line.capacity_bytes_per_s for name, line in lines.items()}


def test_numbers_of_bps_parallel_edges_and_missing_speeds(tmp_path):
    both = (2.5e9 + 155e6) / 8
    assert rates(tmp_path, RAW, SPEEDS) == {
        "Bergen>Oslo": both, "Oslo>Bergen": both, "Oslo>None": 1e7, "None>Oslo": 1e7
    }  # fmt: skip


def test_letters_of_units_beside_numbers(tmp_path):
    capacity = FileCapacity(attribute="LinkSpeed", unit_attribute="LinkSpeedUnits")
    latency = FileLatency(attribute="delay", unit="ms")
    lines = read(tmp_path, UNITS, capacity, latency)
    assert list(lines) == ["Tromsø>Oslo", "Oslo>Tromsø"]
    line = lines["Oslo>Tromsø"]
    assert line.capacity_bytes_per_s == (10e9 + 155e6) / 8
    assert line.latency_s == 0.0035  # the least


def test_texts_for_people(tmp_path):
    capacity = FileCapacity(attribute="LinkLabel", missing="unlimited")
    told = rates(tmp_path, LABELS, capacity)
    assert told["Bergen>Oslo"] == (2.5e9 + 155e6) / 8
    assert told["Oslo>None"] == math.inf


def test_latency_by_distance_is_that_of_light_in_fibre(tmp_path):
    text = RAW.replace('target="2"', 'target="1"')
    line = read(tmp_path, text, SPEEDS, DISTANCE)["Oslo>Bergen"]
    # the spherical law of cosines, which is another formula for it
    lat, other, apart = map(math.radians, (59.9, 60.39, 10.75 - 5.32))
    cosine = math.sin(lat) * math.sin(other)
    cosine += math.cos(lat) * math.cos(other) * math.cos(apart)
    metres = 6_371_008.8 * math.acos(cosine)
    assert 295e3 < metres < 310e3  # Oslo to Bergen is 305 km
    assert line.latency_s == pytest.approx(metres / FIBRE, rel=1e-6)


@given(
    *[st.floats(-90, 90), st.floats(-180, 180)] * 2,
    st.sampled_from(["Latitude", "latitude"]),
)
def test_distances_are_symmetric_and_at_most_half_around(
    tmp_path_factory, lat, long, lat2, long2, name
):
    text = f"""graph [ node [ id 0 {name} {lat} Longitude {long} ]
      node [ id 1 {name} {lat2} Longitude "{long2}" ] edge [ source 0 target 1 ] ]"""
    unlimited = FileCapacity(missing="unlimited")
    lines = read(tmp_path_factory.getbasetemp(), text, unlimited, DISTANCE)
    there, back = lines.values()
    assert there.latency_s == back.latency_s
    assert 0 <= there.latency_s <= math.pi * 6_371_008.8 / FIBRE


FORWARD = {
    "graphml": """<graphml><key id="u" attr.name="up"/><key id="d" attr.name="down"/>
<graph><node id="server"/><node id="a"/><edge source="a" target="server">
<data key="u">8 Mbps</data><data key="d">4 Mbps</data></edge></graph></graphml>""",
    "gml": """graph [ node [ id 7 label "server" ] node [ id 3 label "a" ]
edge [ source 3 target 7 up "8 Mbps" down "4 Mbps" ] ]""",
}


@pytest.mark.parametrize("text", FORWARD.values(), ids=FORWARD)
def test_up_is_from_source_to_target_in_whatever_order_nodes_stand(tmp_path, text):
    assert rates(tmp_path, text) == {"a>server": 1e6, "server>a": 5e5}


def test_directed_edges_are_one_way_and_add_up_by_direction(tmp_path):
    edge = 'edge [ source %s target %s capacity "8 Mbps" loss %s ]'
    edges = [edge % (0, 1, 0.1), edge % (0, 1, 0.2), edge % (1, 0, 0)]
    nodes = "node [ id 0 ] node [ id 1 ]"
    lines = read(tmp_path, f"graph [ directed 1 {nodes} {' '.join(edges)} ]")
    told = {
        line.name: (line.capacity_bytes_per_s, line.loss) for line in lines.values()
    }
    # the largest of the losses
    assert told == {"0>1": (2e6, 0.2), "1>0": (1e6, 0.0)}


def test_graphml_says_of_each_edge_whether_it_is_directed(tmp_path):
    text = FORWARD["graphml"].replace("<edge ", '<edge directed="true" ')
    assert list(read(tmp_path, text)) == ["a>server"]


def test_defaults_of_graphml_and_labels_of_yed(tmp_path):
    text = FORWARD["graphml"].replace('<data key="d">4 Mbps</data>', "")
    text = text.replace(
        '<key id="d" attr.name="down"/>',
        '<key id="d" attr.name="down" for="edge"><default>2 Mbps</default></key>'
        '<key id="y" yfiles.type="nodegraphics"/>',
    )
    label = '<data key="y"><Shape><NodeLabel>hub</NodeLabel></Shape>'
    text = text.replace('<node id="a"/>', f'<node id="a">{label}</data></node>')
    lines = read(tmp_path, text)
    assert lines["server>hub"].capacity_bytes_per_s == 2.5e5


def test_a_zoo_s_graph_is_a_network_in_yaml(tmp_path):
    text = """{topology: graph, file: net.graphml, server: {node: Oslo},
      capacity: {attribute: LinkSpeedRaw, unit: bps, missing: 1 Gbps}, latency: %s}"""

    def build(latency="{by: distance}", graph=RAW):
        (tmp_path / "net.graphml").write_text(graph)
        places = {"link": "{at: Bergen}", "other": '{at: "None"}'}
        return build_topology(network=text % latency, folder=tmp_path, **places)

    with pytest.raises(InputError, match="'delay', expected an attribute of its edges"):
        build("{attribute: delay, unit: ms}")
    with pytest.raises(InputError, match=r"edge Oslo to None: node None: .*Latitude"):
        build()
    graph = RAW.replace(
        '<data key="d34">1', '<data key="d29">63</data><data key="d32">10'
    )
    latency_s = build(graph=graph).path(0, "up").latency_s
    assert latency_s == pytest.approx(0.00153, rel=0.01)
