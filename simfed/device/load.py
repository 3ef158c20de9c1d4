"""Reading a calibration profile: a YAML file that a person can check and edit."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from simfed.device.curve import Constant, Curve, Fitted, Points, Spread
from simfed.device.laws import LAWS, Law
from simfed.device.noise import Measured
from simfed.device.profile import ANY, QUANTITIES, Profile, codec_key
from simfed.errors import InputError, did_you_mean, listed
from simfed.reading import parse_yaml, read_text
from simfed.registry import registry
from simfed.shipped import shipped_folders
from simfed.units import parse_duration, parse_power

__all__ = ["PHASES", "find_profile", "load_profile", "profile_folders", "profile_names"]

PHASES = (*QUANTITIES, "downlink", "uplink", "idle")
"""What a device can be doing, as far as its power is concerned."""

_KEYS = ("kind", "name", "description", "provenance", "power", "noise", "uncertainty", *QUANTITIES)
KINDS = ("table", "law", "published")
_SOURCE_KEYS = ("number", "source", "method")
_LAW_KEYS = ("law", "parameters", "valid", "error", "uncertainty")
_ERROR_KEYS = ("in_sample", "worst", "cross_validated", "coverage_90", "other_model", "sizes")
_STEEPEST_LAW = 5.0
_SHIPPED = shipped_folders("calibration")


def load_profile(name_or_path: str | Path, search: Iterable[str | Path] = ()) -> Profile:
    """The profile in a file, or of this name in one of the folders `search`, simfed's own, or
    registered.

    A name is looked for as `<folder>/<name>.yaml`; a file, which a suffix tells, also in this
    folder. Raises: `InputError` in one sentence for a profile that is not there or makes no sense.
    """
    path = find_profile(name_or_path, search)
    data = _parsed(read_text(path), where=str(path))
    try:
        return _profile(data, path)
    except InputError as error:
        raise error.within(str(path)) from None


def find_profile(name_or_path: str | Path, search: Iterable[str | Path] = ()) -> Path:
    """The file of a profile, see `load_profile`."""
    given = Path(name_or_path)
    folders = [Path(folder) for folder in search]
    if given.suffix in (".yaml", ".yml"):
        for candidate in (*(folder / given for folder in folders), given):
            if os.path.isfile(candidate):  # False too for a name that no file can have
                return candidate
        raise InputError("a profile that exists", where=str(given))
    for folder in (*folders, *_SHIPPED):
        if os.path.isfile(folder / f"{given}.yaml"):
            return folder / f"{given}.yaml"
    if str(given) in registry("device"):
        return _registered(str(given))
    names = profile_names(search)
    raise InputError(
        f"a calibration profile: {listed(names)}",
        got=str(name_or_path),
        hint=did_you_mean(str(name_or_path), names),
    )


def profile_names(search: Iterable[str | Path] = ()) -> list[str]:
    """The names of the profiles in the folders, then simfed's own, then registered ones."""
    folders = [*map(Path, search), *_SHIPPED]
    found = [p.stem for folder in folders for p in sorted(folder.glob("*.yaml")) if _is_profile(p)]
    return list(dict.fromkeys([*found, *registry("device").names()]))


def _registered(name: str) -> Path:
    """The file behind a registered device: a path, or a function that returns one."""
    part = registry("device").get(name)
    path = part() if callable(part) else part
    if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
        raise InputError("a path of a calibration profile", where=f"device {name}", got=path)
    return Path(path)


def profile_folders(here: str | Path) -> list[Path]:
    """Where profiles are looked for from a folder: in it, and in a folder `calibration` in it or
    above."""
    around = Path(here).resolve()
    return [around, *(above / "calibration" for above in (around, *around.parents))]


def _is_profile(path: Path) -> bool:
    """By its looks, as other YAML files may lie in the same folder."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(rf"^\W*kind:\s*({'|'.join(KINDS)})\b", text, re.MULTILINE) is not None


@lru_cache(maxsize=16)
def _parsed(text: str, *, where: str) -> Any:
    """What a profile's YAML says, only to be read: a study of 300 runs asks 300 times for one
    file."""
    return parse_yaml(text, where=where)


def _profile(data: Any, path: Path) -> Profile:
    data = _mapping(data, "", "a profile: a mapping with kind, name and measured times")
    _only(data, _KEYS, "")
    kind = data.get("kind")
    if kind not in KINDS:
        raise InputError(listed(KINDS), where="kind", got=kind)
    curves: dict[tuple[str, str, str], Curve] = {}
    for quantity in QUANTITIES:
        if quantity in data:
            curves.update(_quantity(data[quantity], quantity))
    if not curves:
        raise InputError(f"times for at least one of {listed(QUANTITIES)}", got=sorted(data))
    power = _mapping(data.get("power", {}), "power", "watts per phase")
    _only(power, PHASES, "power")
    noise = _mapping(data.get("noise", {}), "noise", "noise per kind of work")
    _only(noise, QUANTITIES, "noise")
    uncertainty = _mapping(data.get("uncertainty", {}), "uncertainty", "a number per kind of work")
    _only(uncertainty, QUANTITIES, "uncertainty")
    provenance = dict(_mapping(data.get("provenance", {}), "provenance", "a mapping"))
    _check_files(provenance.get("files", []))
    if kind == "published":
        _check_sources(provenance)
    if "description" in data:
        provenance["description"] = str(data["description"])
    return Profile(
        name=str(data.get("name", path.stem)),
        kind=kind,
        curves=curves,
        power_w={phase: parse_power(w, where=f"power.{phase}") for phase, w in power.items()},
        noise={q: Measured.read(node, f"noise.{q}") for q, node in noise.items()},
        uncertainty={q: _number(sd, f"uncertainty.{q}") for q, sd in uncertainty.items()},
        provenance=provenance,
        source=str(path),
    )


def _check_sources(provenance: Mapping[str, Any]) -> None:
    """What nobody here measured says how far to trust it and where every number is from."""
    if not isinstance(provenance.get("trust"), str):
        raise InputError(
            "one sentence that says how far to trust published numbers", where="provenance.trust",
            got=provenance.get("trust"),
        )  # fmt: skip
    sources = provenance.get("sources")
    for source in sources if isinstance(sources, list) and sources else [None]:
        if not isinstance(source, Mapping) or set(source) != set(_SOURCE_KEYS):
            raise InputError(
                f"a list of published numbers, each with {listed(_SOURCE_KEYS)}",
                where="provenance.sources",
                got=source,
            )


def _check_files(files: Any) -> None:
    for file in files if isinstance(files, list) else [None]:
        name = file.get("name") if isinstance(file, Mapping) else file
        if not isinstance(name, str):
            raise InputError(
                "a list of tables, each its name or {name: …, sha256: …}", where="provenance.files",
                got=files,
            )  # fmt: skip


def _quantity(node: Any, quantity: str) -> dict[tuple[str, str, str], Curve]:
    """Curves of one quantity: per model, and per strategy below it; a duration stands for all
    below."""
    depth = 2 if QUANTITIES[quantity].per_strategy else 1
    found: dict[tuple[str, str, str], Curve] = {}

    def walk(node: Any, keys: tuple[str, ...]) -> None:
        where = ".".join((quantity, *keys))
        if len(keys) < depth and isinstance(node, Mapping):
            for key, below in node.items():
                walk(below, (*keys, _strategy(str(key), where) if keys else str(key)))
            return
        filled = (*keys, *[ANY] * (depth - len(keys)))
        model, strategy = (*filled, "")[:2]
        found[quantity, model, strategy] = _curve(node, QUANTITIES[quantity].variable, where)

    walk(node, ())
    return found


def _strategy(name: str, where: str) -> str:
    try:
        return name if name == ANY else codec_key(name)
    except InputError as error:
        raise error.within(where) from None


def _curve(node: Any, variable: str, where: str) -> Curve:
    if not isinstance(node, Mapping):
        return Constant(parse_duration(node, where=where))
    return _law(node, variable, where) if "law" in node else _points(node, variable, where)


def _points(node: Mapping[Any, Any], variable: str, where: str) -> Points:
    if not node:
        raise InputError(f"at least one row `{variable}: seconds`", where=where, got={})
    rows = []
    for x, text in node.items():
        is_number = isinstance(x, (int, float)) and not isinstance(x, bool)
        if not is_number or not 1 <= x <= sys.float_info.max:
            raise InputError(f"a {variable} of at least 1 as the key", where=where, got=x)
        rows.append((float(x), parse_duration(text, where=f"{where}.{x}")))
    rows.sort()
    return Points(variable, tuple(x for x, _ in rows), tuple(s for _, s in rows))


def _law(node: Mapping[Any, Any], variable: str, where: str) -> Fitted:
    _only(node, _LAW_KEYS, where)
    name = node["law"]
    fitting = [n for n, law in LAWS.items() if (variable == "k") == ("k" in law.needs)]
    if name not in fitting:
        raise InputError(
            f"a law for this work: {listed(fitting)}", where=f"{where}.law", got=name,
            hint=did_you_mean(str(name), fitting),
        )  # fmt: skip
    law = LAWS[name]
    given = _mapping(node.get("parameters"), f"{where}.parameters", "the law's parameters")
    _exactly(given, law.parameters, f"{where}.parameters")
    parameters = {p: _number(given[p], f"{where}.parameters.{p}") for p in law.parameters}
    if not any(value > 0 for p, value in parameters.items() if p != "p"):
        raise InputError("a law with a parameter above 0", where=f"{where}.parameters", got=given)
    if parameters.get("p", 0.0) > _STEEPEST_LAW:
        raise InputError(
            f"an exponent of at most {_STEEPEST_LAW:g}",
            where=f"{where}.parameters.p",
            got=parameters["p"],
        )
    valid = _mapping(node.get("valid", {}), f"{where}.valid", "a range per size")
    _only(valid, law.needs, f"{where}.valid")
    error = _mapping(node.get("error", {}), f"{where}.error", "the fit's errors")
    _only(error, _ERROR_KEYS, f"{where}.error")
    return Fitted(
        law,
        parameters,
        {v: _range(pair, f"{where}.valid.{v}") for v, pair in valid.items()},
        {k: None if x is None else _number(x, f"{where}.error.{k}") for k, x in error.items()},
        _spread(law, node["uncertainty"], f"{where}.uncertainty")
        if "uncertainty" in node
        else None,
    )


def _spread(law: Law, node: Any, where: str) -> Spread:
    node = _mapping(node, where, "the law's uncertainty")
    _exactly(node, ("residual", "freedom", "standard_error", "correlation"), where)
    errors = _mapping(node["standard_error"], f"{where}.standard_error", "a number per parameter")
    _only(errors, law.coordinates, f"{where}.standard_error")
    used = [i for i, name in enumerate(law.coordinates) if name in errors]
    sd = np.array([_number(errors[law.coordinates[i]], f"{where}.standard_error") for i in used])
    try:
        correlation = np.array(node["correlation"], dtype=float).reshape(len(used), len(used))
        sound = (
            np.allclose(correlation, correlation.T)
            and np.linalg.eigvalsh(correlation).min() > -1e-3
        )
    except (TypeError, ValueError, OverflowError):
        sound = False
    if not sound or not np.allclose(np.diag(correlation), 1):
        raise InputError(
            f"a correlation matrix of {len(used)} parameters", where=f"{where}.correlation",
            got=node["correlation"],
        )  # fmt: skip
    covariance = np.zeros((len(law.coordinates), len(law.coordinates)))
    covariance[np.ix_(used, used)] = correlation * np.outer(sd, sd)
    freedom = _number(node["freedom"], f"{where}.freedom")
    if freedom <= 0:
        raise InputError("a number above 0", where=f"{where}.freedom", got=node["freedom"])
    return Spread(_number(node["residual"], f"{where}.residual"), freedom, covariance)


def _range(pair: Any, where: str) -> tuple[float, float]:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise InputError("[low, high]", where=where, got=pair)
    low, high = (_number(x, where) for x in pair)
    if low > high:
        raise InputError("[low, high]", where=where, got=pair)
    return low, high


def _number(value: Any, where: str) -> float:
    """A finite number of at least 0; one in quotes is one, too."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError("a number of at least 0", where=where, got=value)
    return number


def _mapping(value: Any, where: str, allowed: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InputError(allowed or "a mapping", where=where or None, got=value)
    return value


def _exactly(node: Mapping[Any, Any], keys: Sequence[str], where: str) -> None:
    if set(node) != set(keys):
        raise InputError(f"the keys {', '.join(keys)}", where=where, got=sorted(map(str, node)))


def _only(node: Mapping[Any, Any], keys: Iterable[str], where: str) -> None:
    keys = list(keys)
    for key in node:
        if key not in keys:
            raise InputError(
                f"one of the keys {listed(keys)}", where=where or None, got=key,
                hint=did_you_mean(str(key), keys),
            )  # fmt: skip
