"""Reading a calibration profile: a YAML file that a person can check and edit.

`load_profile` finds and reads one; every mistake is one sentence with file and key.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from simfed.device.curve import Constant, Curve, Fitted, Points
from simfed.device.laws import LAWS
from simfed.device.noise import Measured
from simfed.device.profile import ANY, QUANTITIES, Key, ModelWork, Profile, name_codec
from simfed.ground.errors import InputError, check_known, did_you_mean, listed, within
from simfed.ground.inputs import make_missing_file_error, read_bytes, read_text
from simfed.ground.memo import Memo
from simfed.ground.plain import Plain
from simfed.ground.reading import parse_yaml
from simfed.ground.registry import registry
from simfed.ground.shipped import list_shipped_folders
from simfed.ground.units import parse_duration, parse_power, read_number

_Read = TypeVar("_Read")

PHASES = (*QUANTITIES, "downlink", "uplink", "idle")
"""The phases of a device, as far as its power is concerned."""

_KEYS = (
    "kind",
    "name",
    "description",
    "provenance",
    "measured_on",
    "power",
    "noise",
    "uncertainty",
    *QUANTITIES,
)
KINDS = ("table", "law", "published")
_SOURCE_KEYS = ("number", "source", "method")
_LAW_KEYS = ("law", "parameters", "valid", "error", "uncertainty")
_SHAPE_KEYS = ("input", "classes", "d", "forward_flops", "train_flops")
_ERROR_KEYS = (
    "in_sample",
    "worst",
    "cross_validated",
    "coverage_90",
    "other_model",
    "sizes",
)
_SHIPPED = list_shipped_folders("calibration")


def load_profile(
    name_or_path: str | Path, search: Iterable[str | Path] = ()
) -> Profile:
    """Return the profile in a file, or of this name.

    Args:
        name_or_path: a name, which is looked for as `<folder>/<name>.yaml`, then among
            registered profiles; or a file, which its suffix tells.
        search: folders that are looked into before simfed's own.

    Raises:
        InputError: a profile that is not there or makes no sense, in one sentence.

    >>> load_profile("x86-2core-vm").name
    'x86-2core-vm'
    """
    path = find_profile(name_or_path, search)
    read = _read_once(read_text(path), path)
    return replace(
        read,
        models={},
        warnings=[],
        provenance=dict(read.provenance),
        _memo_s=Memo(),
        _warned=set(),
    )


def find_profile(name_or_path: str | Path, search: Iterable[str | Path] = ()) -> Path:
    """Return the file of a profile, which need not be a sound one.

    Args:
        name_or_path: as of `load_profile`.
        search: folders that are looked into first.

    Raises:
        InputError: there is none, with the names that come near.
    """
    wanted = Path(name_or_path)
    folders = [Path(folder) for folder in search]
    if wanted.suffix in (".yaml", ".yml"):
        for candidate in (*(folder / wanted for folder in folders), wanted):
            if os.path.exists(candidate):  # False too for a name that no file can have
                return candidate
        raise make_missing_file_error(wanted)
    for folder in (*folders, *_SHIPPED):
        if os.path.isfile(folder / f"{wanted}.yaml"):
            return folder / f"{wanted}.yaml"
    if str(wanted) in registry("device"):
        return _find_registered_file(str(wanted))
    names = profile_names(search)
    name = str(name_or_path)
    problem, hint = f"no calibration profile {name!r}", did_you_mean(name, names)
    raise InputError(listed(names), got=name, problem=problem, hint=hint)


def profile_names(search: Iterable[str | Path] = ()) -> list[str]:
    """Return the names of profiles, each once: of the folders, shipped, registered.

    Args:
        search: folders that are looked into first.

    >>> "raspberry-pi-4" in profile_names()
    True
    """
    folders = [*map(Path, search), *_SHIPPED]
    files = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    names = [path.stem for path in files if _is_profile(path)]
    return list(dict.fromkeys([*names, *registry("device").names()]))


def find_shipped_name(file: Path) -> str | None:
    """Return the name of simfed's own profile that a file is, to the byte.

    None: it is another's.
    """
    content = read_bytes(file)
    shipped = (path for folder in _SHIPPED for path in sorted(folder.glob("*.yaml")))
    return next((path.stem for path in shipped if path.read_bytes() == content), None)


def _find_registered_file(name: str) -> Path:
    """Return the file behind a registered device.

    It is registered as a path, or a function that returns one.
    """
    part = registry("device").get(name)
    path = part() if callable(part) else part
    if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
        raise InputError(
            "a path of a calibration profile", where=f"device {name}", got=path
        )
    return Path(path)


def profile_folders(here: str | Path) -> list[Path]:
    """Return the folders in which profiles are looked for, nearest first.

    Args:
        here: a folder; it comes first, then `calibration` in it and above it.
    """
    around = Path(os.path.realpath(here))
    return [around, *(above / "calibration" for above in (around, *around.parents))]


def _is_profile(path: Path) -> bool:
    """Return whether a YAML file looks like a profile; others may lie beside it."""
    try:
        text = read_text(path)
    except InputError:
        return False
    return (
        re.search(rf"^\W*kind:\s*({'|'.join(KINDS)})\b", text, re.MULTILINE) is not None
    )


@lru_cache(maxsize=16)
def _read_once(text: str, path: Path) -> Profile:
    """Return the profile of a file's text, not to be changed.

    A study of 300 runs asks 300 times for one file.

    Raises: `InputError`.
    """
    data = parse_yaml(text, where=str(path))
    with within(str(path)):
        return _read_profile(data, path)


def _read_profile(data: Plain, path: Path) -> Profile:
    """Return the profile of a file's data.

    Args:
        data: as parsed.
        path: of the file, whose stem is its name where it says none.
    """
    data = _require_mapping(
        data, "", "a profile: a mapping with kind, name and measured times"
    )
    _check_keys(data, _KEYS, "")
    kind = data.get("kind")
    check_known(kind, KINDS, where="kind")
    curves: dict[Key, Curve] = {}
    for quantity in QUANTITIES:
        if quantity in data:
            curves.update(_read_quantity(data[quantity], quantity))
    if not curves:
        raise InputError(
            f"times for at least one of {listed(QUANTITIES)}", got=sorted(data)
        )
    provenance = dict(
        _require_mapping(data.get("provenance", {}), "provenance", "a mapping")
    )
    _check_files(provenance.get("files", []))
    if kind == "published":
        _check_sources(provenance)
    timed = dict.fromkeys(model for _, model, _ in curves if model != ANY)
    if "description" in data:
        provenance["description"] = str(data["description"])
    return Profile(
        name=str(data.get("name", path.stem)),
        kind=kind,
        curves=curves,
        power_w=_read_each(
            data,
            "power",
            PHASES,
            "watts per phase",
            lambda value, where: parse_power(value, where=where),
        ),
        noise=_read_each(
            data, "noise", QUANTITIES, "noise per kind of work", Measured.read
        ),
        uncertainty=_read_each(
            data, "uncertainty", QUANTITIES, "a number per kind of work", _read_number
        ),
        provenance=provenance,
        source=str(path),
        measured_on=_read_each(
            data, "measured_on", timed, "what each model was measured on", _read_shape
        ),
    )


def _read_shape(node: Plain, where: str) -> ModelWork:
    """Return what a model was measured on, or the FLOPs of auxiliary work."""
    allowed = f"the keys {', '.join(_SHAPE_KEYS)}, or flops alone of auxiliary work"
    node = _require_mapping(node, where, allowed)
    keys = ("flops",) if "flops" in node else _SHAPE_KEYS
    _check_all_keys(node, keys, where)
    flops = [
        _read_number(node[key], f"{where}.{key}")
        for key in keys
        if key.endswith("flops")
    ]
    if not all(flops):
        raise InputError("FLOPs above 0", where=where, got=flops)
    if keys == ("flops",):
        return ModelWork(0, flops[0], flops[0])
    lengths = node["input"] if isinstance(node["input"], list) else [node["input"]]
    whole = [*lengths, node["classes"], node["d"]]
    if not lengths or any(type(number) is not int or number < 1 for number in whole):
        allowed = (
            "whole numbers above 0 such as input: [1, 28, 28], classes: 10, d: 61706"
        )
        raise InputError(allowed, where=where, got=whole)
    return ModelWork(node["d"], flops[0], flops[1], tuple(lengths), node["classes"])


def _check_sources(provenance: Mapping[str, Plain]) -> None:
    """Check a published profile's trust and sources.

    What nobody here measured says how far to trust it and where every number is from.
    """
    trust = provenance.get("trust")
    if not isinstance(trust, str):
        allowed = "one sentence that says how far to trust published numbers"
        raise InputError(allowed, where="provenance.trust", got=trust)
    sources = provenance.get("sources")
    for source in sources if isinstance(sources, list) and sources else [None]:
        if not isinstance(source, Mapping) or set(source) != set(_SOURCE_KEYS):
            allowed = f"a list of published numbers, each with {listed(_SOURCE_KEYS)}"
            raise InputError(allowed, where="provenance.sources", got=source)


def _check_files(files: Plain) -> None:
    """Refuse a list of measured tables whose names or digests make no sense."""
    for file in files if isinstance(files, list) else [None]:
        name = file.get("name") if isinstance(file, Mapping) else file
        if not isinstance(name, str):
            allowed = "a list of tables, each its name or {name: …, sha256: …}"
            raise InputError(allowed, where="provenance.files", got=files)
        digest = file.get("sha256") if isinstance(file, Mapping) else None
        if digest is not None and not re.fullmatch("[0-9a-f]{64}", str(digest)):
            allowed = "64 hexadecimal digits, as sha256sum gives them, in quotes"
            raise InputError(
                allowed, where=f"provenance.files: {name}: sha256", got=digest
            )


def _read_quantity(node: Plain, quantity: str) -> dict[Key, Curve]:
    """Return the curves of one quantity: per model, and per strategy below it.

    A duration in place of a mapping stands for all below.
    """
    depth = 2 if QUANTITIES[quantity].per_strategy else 1
    curves: dict[Key, Curve] = {}

    def walk(node: Plain, keys: tuple[str, ...]) -> None:
        where = ".".join((quantity, *keys))
        if len(keys) < depth and isinstance(node, Mapping):
            for key, below in node.items():
                name = str(key)
                if keys and name != ANY:
                    with within(where):
                        name = name_codec(name)
                walk(below, (*keys, name))
            return
        filled = (*keys, *[ANY] * (depth - len(keys)))
        model, strategy = (*filled, "")[:2]
        curves[quantity, model, strategy] = _read_curve(
            node, QUANTITIES[quantity].variable, where
        )

    walk(node, ())
    return curves


def _read_curve(node: Plain, variable: str, where: str) -> Curve:
    """Return a constant, a law or points, as the node says.

    Args:
        node: a duration, `{law: …}`, or `{size: duration, …}`.
        variable: the name of the size, `k` or `samples`.
        where: names it in errors.
    """
    if not isinstance(node, Mapping):
        return Constant(parse_duration(node, where=where))
    return (
        _read_law(node, variable, where)
        if "law" in node
        else _read_points(node, variable, where)
    )


def _read_points(node: Mapping[object, Plain], variable: str, where: str) -> Points:
    if not node:
        raise InputError(f"at least one row `{variable}: seconds`", where=where, got={})
    rows = []
    for x, text in node.items():
        size = read_number(x)
        if not size >= 1:
            allowed = f"rows `{variable}: seconds` with {variable} of at least 1"
            raise InputError(allowed, where=where, got=x)
        rows.append((size, parse_duration(text, where=f"{where}.{x}")))
    rows.sort()
    return Points(variable, tuple(x for x, _ in rows), tuple(s for _, s in rows))


def _read_law(node: Mapping[str, Plain], variable: str, where: str) -> Fitted:
    """Return a law with its parameters, the range it holds for and its errors."""
    _check_keys(node, _LAW_KEYS, where)
    name = node["law"]
    fitting = [n for n, law in LAWS.items() if (variable == "k") == ("k" in law.needs)]
    check_known(name, fitting, "a law for this work:", where=f"{where}.law")
    law = LAWS[name]
    written = _require_mapping(
        node.get("parameters"), f"{where}.parameters", "the law's parameters"
    )
    _check_all_keys(written, law.parameters, f"{where}.parameters")
    parameters = {
        p: _read_number(written[p], f"{where}.parameters.{p}") for p in law.parameters
    }
    if not any(parameters.values()):
        raise InputError(
            "a law with a parameter above 0", where=f"{where}.parameters", got=written
        )
    spread = None
    if "uncertainty" in node:
        spread = _read_number(node["uncertainty"], f"{where}.uncertainty")
    return Fitted(
        law,
        parameters,
        _read_each(node, "valid", law.needs, "a range per size", _read_range, where),
        _read_each(
            node,
            "error",
            _ERROR_KEYS,
            "the fit's errors",
            lambda x, place: None if x is None else _read_number(x, place),
            where,
        ),
        spread,
    )


def _read_range(pair: object, where: str) -> tuple[float, float]:
    """Return [low, high] as a pair."""
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        low, high = (_read_number(x, where) for x in pair)
        if low <= high:
            return low, high
    raise InputError("[low, high]", where=where, got=pair)


def _read_number(value: Plain, where: str) -> float:
    """Return a finite number of at least 0; one in quotes is one, too."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError("a number of at least 0", where=where, got=value)
    return number


def _require_mapping(value: object, where: str, allowed: str) -> Mapping[str, Plain]:
    if not isinstance(value, Mapping):
        raise InputError(allowed, where=where or None, got=value)
    return value


def _read_each(
    node: Mapping[str, Plain],
    key: str,
    keys: Iterable[str],
    allowed: str,
    read: Callable[[Plain, str], _Read],
    where: str = "",
) -> dict[str, _Read]:
    """Return the values of the mapping under `key`, which may be missing.

    Args:
        node: where it stands.
        key: its key.
        keys: those that alone may stand in it.
        allowed: what it should be, for errors.
        read: gives a value of (what is written, its place).
        where: the place of `node`; empty: the top.
    """
    where = f"{where}.{key}" if where else key
    section = _require_mapping(node.get(key, {}), where, allowed)
    _check_keys(section, keys, where)
    return {
        str(name): read(value, f"{where}.{name}") for name, value in section.items()
    }


def _check_all_keys(node: Mapping[str, Plain], keys: Sequence[str], where: str) -> None:
    if set(node) != set(keys):
        raise InputError(
            f"the keys {', '.join(keys)}", where=where, got=sorted(map(str, node))
        )


def _check_keys(node: Mapping[str, Plain], keys: Iterable[str], where: str) -> None:
    for key in node:
        check_known(key, keys, "one of the keys", where=where or None)
