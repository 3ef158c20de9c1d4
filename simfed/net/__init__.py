"""Links, topologies, exact max-min sharing, TCP start-up, traces.

SimPy only in `simfed.net.driver` and `instants`.

Build a topology (`Star`, `tree`, `graph`, or `build` from a scenario), give it to a
`Network` in a SimPy environment, `send`. Without SimPy: `replay` plays a case of given
flows, `Engine` is beneath.

Begin to read in `driver`: `Network.send` asks a `topology` for the path of a message,
has a model (`models`) make a `Flow` of it, and gives it to the `engine`, whose
`sharing` finds every rate. `flows` holds the plain records, `maxmin` the definition
that rates are held to, `meter` what links carried. `traces`, `stalls` and `delays` are
what varies in time, `cells` radio; `spec` is the section of a scenario, and `building`
makes a topology of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simfed.ground.lazy import load_names
from simfed.ground.uses import LinkUses
from simfed.ground.vocabulary import LinkUse
from simfed.net.building import build, build_model
from simfed.net.cases import error_table, replay
from simfed.net.graph_files import read_graph
from simfed.net.graphs import Tier, graph, tree
from simfed.net.maxmin import max_min, why_not_max_min
from simfed.net.models import Fluid, Model, Tcp
from simfed.net.playing import FlowEnd, FlowStart, play
from simfed.net.stalls import stall
from simfed.net.topology import Access, Line, Path, Routes, Star, Topology
from simfed.net.trace_files import read_csv, read_mahimahi, read_pensieve
from simfed.net.traces import LinkTrace, Trace, lognormal_ar1, markov_on_off

if TYPE_CHECKING:
    from simfed.net.driver import Network, Transfer

__all__ = [
    "Access",
    "FlowEnd",
    "FlowStart",
    "Fluid",
    "Line",
    "LinkTrace",
    "LinkUse",
    "LinkUses",
    "Model",
    "Network",
    "Path",
    "Routes",
    "Star",
    "Tcp",
    "Tier",
    "Topology",
    "Trace",
    "Transfer",
    "build",
    "build_model",
    "error_table",
    "graph",
    "lognormal_ar1",
    "markov_on_off",
    "max_min",
    "play",
    "read_csv",
    "read_graph",
    "read_mahimahi",
    "read_pensieve",
    "replay",
    "stall",
    "tree",
    "why_not_max_min",
]

_HOMES = {"Network": "driver", "Transfer": "driver"}
"""The driver alone imports SimPy."""

__getattr__ = load_names(__name__, _HOMES)
