"""Makes device profiles: measures, fits laws to a table or a run, checks a fit.

    measure times the learning side's functions here: the raw table from_run a deployed
    run's seconds as such a table, rates of links, the server starts what the beginning
    of training takes, told from rows of unlike steps works the models and data sets
    that rows were measured on fit one curve: a law, its parameters, its errors at sizes
    left out spread how far new measurements may lie from a law profiles a whole profile
    from a table: laws, rows, noise, notes check a profile against measurements that it
    has not seen twin_log logs of anybody's runs; twin fits a scenario to one

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
