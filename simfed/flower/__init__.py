"""Flower apps, unmodified, under the simulated clock.

    import simfed simfed.flower.run(server_app, client_app, "fleet.yaml",
    out="runs/app")

Clients, devices, links and availability come from a fleet file; learning is the app's
own. Needs the extra `simfed[flower]`; nothing of Flower is imported before a run.

    running a run from fleet and app to a run directory; begin to read here loading an
    app from its folder, as Flower loads it turns one baton: threads of the app take
    turns with the clock clocks the time and the random numbers that the app is given
    grid Flower's grid, whose questions the clock answers play messages on the clock:
    nodes, waiting, expiry crew, work what a client app does with a message, in this
    process or others node a node's device in one participation exchanges messages as
    rounds of a run directory price seconds of foreign code, by one kind of computing
    charging the prices of a run, and its warnings metering counted steps and passes of
    PyTorch code; flops has the formulas measuring `simfed flower measure`: forge plays,
    probing chooses plays, laws fits workfile what measuring writes and price reads
"""

from __future__ import annotations

from simfed.flower.running import HOST_TIMEOUT_S, read_config, run, run_folder
from simfed.ground.lazy import load_names

__all__ = ["HOST_TIMEOUT_S", "read_config", "run", "run_folder"]

_HOMES = {
    "COUNT": "workfile",
    "Forge": "forge",
    "HostSpent": "computing",
    "Kernel": "workfile",
    "LawPlay": "workfile",
    "PassSum": "metering",
    "Price": "price",
    "SIZE": "workfile",
    "Visible": "workfile",
    "WorkCount": "metering",
    "WorkFile": "workfile",
    "WorkWatch": "computing",
    "fit_kinds": "laws",
    "load_work": "workfile",
    "write_work": "workfile",
}

__getattr__ = load_names(__name__, _HOMES)
