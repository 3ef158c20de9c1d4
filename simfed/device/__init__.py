"""Devices: calibration profiles, and clients' processors that scale them."""

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
