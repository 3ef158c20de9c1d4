"""Graphs of others: the Topology Zoo's layouts, units, distances, parallel edges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_net_building import build_topology
from zoo import LABELS, RAW, UNITS

from simfed import InputError, InputErrors
from simfed.net import read_graph
from simfed.net.spec import FileCapacity, FileLatency

SPEEDS = FileCapacity(attribute="LinkSpeedRaw", unit="bps", missing="80 Mbps")
DISTANCE = FileLatency(by="distance")


def read(tmp_path, text, *sections):
    path = tmp_path / ("net.graphml" if text.startswith("<") else "net.gml")
    path.write_text(text)
    return {line.name: line for line in read_graph(path, *sections)}


def test_numbers_of_bps_parallel_edges_and_missing_speeds(tmp_path):
    lines = read(tmp_path, RAW, SPEEDS)
    rates = {name: line.capacity_bytes_per_s for name, line in lines.items()}
    both = (2.5e9 + 155e6) / 8
    assert rates == {
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
    lines = read(tmp_path, LABELS, capacity)
    assert lines["Bergen>Oslo"].capacity_bytes_per_s == (2.5e9 + 155e6) / 8
    assert lines["Oslo>None"].capacity_bytes_per_s == math.inf


def test_latency_by_distance_is_that_of_light_in_fibre(tmp_path):
    text = RAW.replace('target="2"', 'target="1"')
    line = read(tmp_path, text, SPEEDS, DISTANCE)["Oslo>Bergen"]
    # the spherical law of cosines, which is another formula for it
    lat, other, apart = map(math.radians, (59.9, 60.39, 10.75 - 5.32))
    cosine = math.sin(lat) * math.sin(other)
    cosine += math.cos(lat) * math.cos(other) * math.cos(apart)
    metres = 6_371_008.8 * math.acos(cosine)
    assert 295e3 < metres < 310e3  # Oslo to Bergen is 305 km
    assert line.latency_s == pytest.approx(metres / (2 / 3 * 299_792_458), rel=1e-6)


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
    assert 0 <= there.latency_s <= math.pi * 6_371_008.8 / (2 / 3 * 299_792_458)


FORWARD = {
    "graphml": """<graphml><key id="u" attr.name="up"/><key id="d" attr.name="down"/>
<graph><node id="server"/><node id="a"/><edge source="a" target="server">
<data key="u">8 Mbps</data><data key="d">4 Mbps</data></edge></graph></graphml>""",
    "gml": """graph [ node [ id 7 label "server" ] node [ id 3 label "a" ]
edge [ source 3 target 7 up "8 Mbps" down "4 Mbps" ] ]""",
}


@pytest.mark.parametrize("text", FORWARD.values(), ids=FORWARD)
def test_up_is_from_source_to_target_in_whatever_order_nodes_stand(tmp_path, text):
    lines = read(tmp_path, text)
    rates = {name: line.capacity_bytes_per_s for name, line in lines.items()}
    assert rates == {"a>server": 1e6, "server>a": 5e5}


def test_directed_edges_are_one_way_and_add_up_by_direction(tmp_path):
    edge = 'edge [ source %s target %s capacity "8 Mbps" loss %s ]'
    edges = [edge % (0, 1, 0.1), edge % (0, 1, 0.2), edge % (1, 0, 0)]
    nodes = "node [ id 0 ] node [ id 1 ]"
    lines = read(tmp_path, f"graph [ directed 1 {nodes} {' '.join(edges)} ]")
    assert lines["0>1"].capacity_bytes_per_s == 2e6
    assert lines["0>1"].loss == 0.2  # the largest
    assert lines["1>0"].capacity_bytes_per_s == 1e6


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
    (tmp_path / "Uninett.graphml").write_text(RAW)
    network = """{topology: graph, file: Uninett.graphml, server: {node: Oslo},
      capacity: {attribute: LinkSpeedRaw, unit: bps, missing: 1 Gbps},
      latency: {attribute: delay, unit: ms}}"""
    with pytest.raises(InputError, match="'delay', expected an attribute of its edges"):
        build_topology("{at: Bergen}", network, folder=tmp_path, other="{at: None}")
    network = network.replace("attribute: delay, unit: ms", "by: distance")
    with pytest.raises(InputError, match=r"edge Oslo to None: node None: .*Latitude"):
        build_topology("{at: Bergen}", network, folder=tmp_path, other="{at: None}")
    text = RAW.replace(
        '<data key="d34">1', '<data key="d29">63</data><data key="d32">10'
    )
    (tmp_path / "Uninett.graphml").write_text(text)
    topology = build_topology(
        "{at: Bergen}", network, folder=tmp_path, other='{at: "None"}'
    )
    assert topology.path(0, "up").latency_s == pytest.approx(0.00153, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        "capacity: {attribute: a, unit: ms}",
        "capacity: {attribute: a, unit: bps, unit_attribute: b}",
        "capacity: {unit: bps, missing: 1 Gbps}",
        "capacity: {missing: 0 Mbps}",
        "capacity: {}",
        "latency: {attribute: a, unit: bps}",
        "latency: {by: hand}",
        "latency: {by: distance, attribute: a}",
        "latency: {by: distance, unit: ms}",
        "latency: {}",
    ],
)
def test_sections_that_contradict_themselves_are_refused(tmp_path, wrong):
    (tmp_path / "net.graphml").write_text(RAW)
    network = f"{{topology: graph, file: net.graphml, {wrong}}}"
    with pytest.raises((InputError, InputErrors), match=r"network\.(capacity|latency)"):
        build_topology("{at: Oslo}", network, folder=tmp_path)
