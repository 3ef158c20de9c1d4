"""The fleet that benchmarks of the clock play.

It imports nothing of simfed, so that another checkout of it can be measured by the same
world.
"""

from __future__ import annotations

from typing import Any


def drawn_fleet(clients: int, rounds: int, **others: Any) -> dict[str, Any]:
    """A scenario whose clients are drawn from distributions, behind one link of the
    server.
    """
    down = {"lognormal": {"median": "50 Mbps", "cv": 0.8, "low": "5 Mbps"}}
    up = {"lognormal": {"median": "10 Mbps", "cv": 0.8, "low": "1 Mbps"}}
    speed = {"lognormal": {"median": 0.3, "cv": 0.5}}
    group = {
        "count": clients,
        "prototype": "small",
        "device": {"profile": "x86-2core-vm", "speed": speed},
        "link": {"up": up, "down": down, "latency": "20 ms"},
    }
    return {
        "name": "fleet",
        "rounds": rounds,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini", "public": 0},
        "prototypes": {"small": {"model": "lenet5-half"}},
        "clients": [group],
        "compression": {"strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "network": {"server": {"receive": "1 Gbps", "send": "1 Gbps"}},
        **others,
    }
