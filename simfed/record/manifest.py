"""The versions that a manifest names, found without importing what they belong to."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata

from simfed.ground.cores import identify_processor
from simfed.ground.plain import Plain
from simfed.ground.version import VERSION
from simfed.native import who_computes_layers

_PACKAGES = ("numpy", "torch", "simpy", "scipy", "pyarrow", "pandas", "networkx")

_EVERY = {
    *(
        "format",
        "id",
        "name",
        "mode",
        "device",
        "seed",
        "versions",
        "network",
        "warnings",
    ),
    *(
        "scenario_sha256",
        "files",
        "status",
        "fingerprint",
        "digest",
        "wall_s",
        "workers",
    ),
    "threads",
}
_OF_SCENARIO = _EVERY | {"models", "classes", "data", "profiles", "learning_wall_s"}
_KEYS = {
    "full": _OF_SCENARIO | {"journal"},
    "time-only": _OF_SCENARIO,
    "deployed": _OF_SCENARIO | {"journal", "clocks"},
    "flower": _EVERY | {"computing", "app", "repeatable", "start"},
}
"""Mode → what the manifest of a finished run says."""
NOT_ALWAYS = {"owned", "laws", "round_metrics", "measure", "privacy", "raised"}
"""Keys that stand in a manifest only where there is something to say."""


def versions() -> dict[str, str]:
    """Return the versions that a run rests on.

    They are those of simfed, Python and packages, the platform, the processor's model,
    and who computes layers.
    """
    installed = {"simfed": VERSION, "python": platform.python_version()}
    built = {
        "platform": f"{sys.platform} {platform.machine()}",
        "processor": identify_processor()[0],
        "layers": who_computes_layers(),
    }
    return {**installed, **_read_packages(), **built}


def count_threads() -> int:
    """Return the threads on which a process of this run computes; 1 without torch."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())


@lru_cache
def _read_packages() -> Mapping[str, str]:
    """Return the versions of packages.

    A process reads them once: it takes a sixth of the time of a small run.
    """
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except (
            metadata.PackageNotFoundError
        ):  # torch may be left out for time-only runs
            continue
    return installed


def list_differences(begun: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence for each version that has changed since the run began.

    >>> begun = {"numpy": "2.1.0", "torch": "2.4.0"}
    >>> list_differences(begun, {**begun, "torch": "2.5.1"})
    ['began with torch 2.4.0 and went on with 2.5.1: its last bits may be others']
    """
    return [
        f"began with {name} {begun[name]} and went on with {version}: its last bits "
        f"may be others"
        for name, version in now.items()
        if begun.get(name, version) != version
    ]


def list_oddities(manifest: Mapping[str, Plain]) -> list[str]:
    """Return a sentence for each key of a finished run's manifest that cannot be."""
    keys = _KEYS.get(mode) if isinstance(mode := manifest.get("mode"), str) else None
    if keys is None:
        return [f"mode is {mode!r}, none of {', '.join(_KEYS)}"]
    odd = [
        f"{key} is {manifest[key]!r}, which is not {what}"
        for key, (what, holds) in _FORMS.items()
        if key in manifest and not holds(manifest[key])
    ]
    odd += [f"{key} is missing" for key in sorted(keys - manifest.keys())]
    others = manifest.keys() - keys - NOT_ALWAYS
    odd += [f"{key} is no key of a {mode} run" for key in sorted(others)]
    if not odd and mode != "flower" and "learning" in manifest.get("wall_s", ()):
        total_s, *parts_s = (
            manifest["wall_s"][k] for k in ("total", "learning", *_PARTS)
        )
        if sum(parts_s) > total_s:
            odd.append(
                f"wall_s says {total_s} s in total, and {sum(parts_s)} s of parts"
            )
    if (
        not odd
        and (mode == "time-only") != (manifest.get("workers") == 0)
        and mode in _LEARNS
    ):
        odd.append(f"workers is {manifest['workers']} in a {mode} run")
    return odd


_PARTS = ("simulation", "recording")
_LEARNS = ("full", "time-only", "deployed")


def _is_hex(length: int) -> Callable[[Plain], bool]:
    return lambda value: (
        isinstance(value, str)
        and len(value) == length
        and set(value) <= set("0123456789abcdef")
    )


def _are_seconds(value: Plain) -> bool:
    return isinstance(value, dict) and all(
        isinstance(seconds, (int, float)) and seconds >= 0 for seconds in value.values()
    )


def _are_texts(value: Plain) -> bool:
    texts = value.values() if isinstance(value, dict) else value
    return isinstance(value, (dict, list)) and all(
        isinstance(text, str) for text in texts
    )


_FORMS: dict[str, tuple[str, Callable[[Plain], bool]]] = {
    "id": ("32 hexadecimal digits", _is_hex(32)),
    "journal": ("32 hexadecimal digits", _is_hex(32)),
    "device": ("cpu or cuda", lambda value: value in ("cpu", "cuda")),
    "versions": (
        "a mapping of packages to versions",
        lambda value: _are_texts(value) and {"simfed", "python"} <= set(value),
    ),
    "warnings": (
        "a list of sentences",
        lambda v: isinstance(v, list) and _are_texts(v),
    ),
    "files": (
        "a mapping of files to digests",
        lambda v: isinstance(v, dict) and _are_texts(v),
    ),
    "wall_s": (
        "a mapping of activities to seconds",
        lambda value: _are_seconds(value) and "total" in value,
    ),
    "learning_wall_s": ("a mapping of activities to seconds", _are_seconds),
    "workers": ("a number of processes", lambda v: isinstance(v, int) and v >= 0),
    "threads": ("a number of threads", lambda v: isinstance(v, int) and v >= 1),
}
"""Key → what it is, and whether a value is that."""
