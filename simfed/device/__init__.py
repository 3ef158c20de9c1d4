"""Devices: calibration profiles, and clients' processors that scale them.

A *profile* (profile, read from YAML by `load`) says what a unit of work takes on a
measured device: points or laws (curve, laws) by kind of work, model and size. A
*processor* (client) scales it for a group of clients; its *regimes* (speed, quota) are
what changes during a run, its *noise* what scatters. `spec` is the section of a
scenario; `table` reads raw measurements for `simfed.calibrate`.
"""

from __future__ import annotations

from simfed.device.client import Device, Processor, build_processor
from simfed.device.load import (
    find_profile,
    find_shipped_name,
    load_profile,
    profile_folders,
    profile_names,
)
from simfed.device.profile import QUANTITIES, ModelWork, Profile
from simfed.device.spec import DeviceSpec
from simfed.ground.lazy import load_names

__all__ = [
    "QUANTITIES",
    "Device",
    "DeviceSpec",
    "ModelWork",
    "Processor",
    "Profile",
    "build_processor",
    "find_profile",
    "find_shipped_name",
    "load_profile",
    "profile_folders",
    "profile_names",
]

_HOMES = {
    "MeasuredRows": "table",
    "ProcessorState": "speed",
    "Regimes": "speed",
    "Row": "table",
    "read_table": "table",
}

__getattr__ = load_names(__name__, _HOMES)
