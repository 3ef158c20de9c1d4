"""Three graph files in the layouts of the Internet Topology Zoo, made up here."""

from __future__ import annotations

HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
HEAD += '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'

RAW = (
    HEAD
    + """\
<key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d36" />
<key attr.name="LinkLabel" attr.type="string" for="edge" id="d35" />
<key attr.name="Longitude" attr.type="double" for="node" id="d32" />
<key attr.name="label" attr.type="string" for="node" id="d33" />
<key attr.name="Latitude" attr.type="double" for="node" id="d29" />
<key attr.name="hyperedge" attr.type="int" for="node" id="d34" />
<key attr.name="Network" attr.type="string" for="graph" id="d1" />
<graph edgedefault="undirected"><data key="d1">Northern</data>
<node id="0"><data key="d29">59.9</data><data key="d32">10.75</data>
  <data key="d33">Oslo</data></node>
<node id="1"><data key="d29">60.39</data><data key="d32">5.32</data>
  <data key="d33">Bergen</data></node>
<node id="2"><data key="d33">None</data><data key="d34">1</data></node>
<edge source="1" target="0"><data key="d36">2.5E9</data>
  <data key="d35">STM-16</data></edge>
<edge source="0" target="1"><data key="d36">155000000.0</data></edge>
<edge source="0" target="2"><data key="d35" /></edge>
</graph></graphml>
"""
)
"""Speeds as numbers of bps; two parallel edges; a node of a hyper-edge, nowhere on
earth, whose edge says no speed."""

UNITS = """\
graph [
  DateObtained "3/02/11"
  GeoLocation "Norway"
  node [
    id 0
    label "Oslo"
    Latitude 59.9
    Longitude 10.75
  ]
  node [
    id 1
    label "Troms&#248;"
    Latitude 69.65
    Longitude 18.96
  ]
  edge [
    source 1
    target 0
    LinkSpeed "10"
    LinkSpeedUnits "G"
    LinkSpeedRaw 10000000000.0
    delay 3.5
  ]
  edge [
    source 0
    target 1
    LinkSpeed "155"
    LinkSpeedUnits "M"
    delay 9
  ]
]
"""
"""Speeds as numbers with the letter of a unit beside them, in GML that does not say
that it has parallel edges."""

LABELS = RAW.replace("STM-16", "2.5 Gbps").replace(
    '<data key="d36">155000000.0</data>', '<data key="d35">155 Mbps</data>'
)
"""Speeds as texts for people."""
