"""Flower apps, unmodified, under the simulated clock.

    import simfed
    simfed.flower.run(server_app, client_app, "fleet.yaml", out="runs/app")

Clients, devices, links and availability come from a fleet file; learning is the app's
own. Needs the extra `simfed[flower]`; nothing of Flower is imported before a run.
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
