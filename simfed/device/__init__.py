"""Devices: calibration profiles, and clients' processors that scale them."""

from __future__ import annotations

from simfed.device.client import Device, Processor, build_processor
from simfed.device.load import (
    find_profile,
    load_profile,
    profile_folders,
    profile_names,
    shipped_name,
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
    "load_profile",
    "profile_folders",
    "profile_names",
    "shipped_name",
]

_HOMES = {
    "MeasuredRows": "table",
    "ProcessorState": "speed",
    "Regimes": "speed",
    "Row": "table",
    "read_table": "table",
}

__getattr__ = load_names(__name__, _HOMES)
