"""Makes device profiles: measures, fits laws to a table or a run, checks a fit.

Profiles are read and charged in `simfed.device`.
"""

from __future__ import annotations

from simfed.ground.lazy import load_names

_HOMES = {
    "MeasurementPlan": "measure",
    "compare": "check",
    "fit_profile": "profiles",
    "format_profile": "profiles",
    "read_log": "twin_log",
}

__all__ = sorted(_HOMES)
__getattr__ = load_names(__name__, _HOMES)
