"""The ground floor: whatever every other room may use.

Errors, units, seeds, parts by name, files read with care, laws and tables of numbers,
the contract of methods, levels. Standard library and NumPy.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "Arrival": "method",
    "Discrete": "distributions",
    "Field": "method",
    "IMPORTS": "registry",
    "LinkUse": "vocabulary",
    "LinkUses": "uses",
    "Method": "method",
    "NO_AIR": "uses",
    "Only": "registry",
    "Plan": "method",
    "REGISTRIES": "registry",
    "Registry": "registry",
    "SERVER": "method",
    "Size": "method",
    "Streams": "seeding",
    "UniformLaw": "distributions",
    "VERSION": "version",
    "Who": "method",
    "Work": "method",
    "format_duration": "units",
    "parse_yaml": "reading",
    "read_arithmetic": "arithmetic",
    "read_bytes": "inputs",
    "read_columns": "tables",
    "read_json": "inputs",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
