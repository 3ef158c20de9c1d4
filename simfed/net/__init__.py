"""Links, topologies, exact max-min sharing, TCP start-up, traces; the SimPy driver is `simfed.net.driver`.

Everything here but the driver works without SimPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simfed.net.driver import LinkUse, Network, Transfer
    from simfed.net.topology import Path, Star, Topology

__all__ = ["LinkUse", "Network", "Path", "Star", "Topology", "Transfer"]

_HOMES = {
    "LinkUse": "driver",
    "Network": "driver",
    "Path": "topology",
    "Star": "topology",
    "Topology": "topology",
    "Transfer": "driver",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
