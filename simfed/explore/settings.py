"""Settings that can be turned: key paths with values, as `--set` takes them.

`list_knobs` says what a page offers; a page answers with a `Setting`, which
`complete_setting` turns into what `--set` takes. Two things are a page's own: `2×` as
the value of a drawn quantity multiplies all amounts of its law, and a deadline is left
out where no mode waits for one.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simfed.ground.plain import Plain
from simfed.net.spec import PerMessage
from simfed.scenario import Scenario
from simfed.scenario.load import apply_overrides, validate_scenario
from simfed.schema.distribution import Distribution

Setting = Mapping[str, Plain]
"""Key path → value, of what differs from the base."""

SCALED = "×"
"""Unit of a drawn quantity's slider: a factor on all amounts of its law."""
_NO_AMOUNTS = ("cv", "weights")
_AMOUNT = re.compile(r"\s*([0-9.eE+-]+)(.*)")
_MODES = ("synchronous", "deadline")
K, POLICY = "compression.k", "policy"
LEARNED = (K, POLICY)
"""Paths that change what is learned even where everybody decides the same."""
UPLOADS = "uploads"


@dataclass(frozen=True)
class Knob:
    """A quantity on a slider between `low` and `high`, or one of some choices.

    Made by `list_knobs`; `explore.js` draws it from its fields' names.
    """

    path: str
    """Key path in the scenario."""
    label: str
    group: str
    """The heading below which it stands: a group of clients, the server, uploads."""
    unit: str
    """What is written behind the value; `SCALED` for a factor; empty: none."""
    value: Plain
    """The scenario's own. None: the length of the median round."""
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """Whether only whole numbers can be chosen."""
    choices: tuple[str, ...] = ()
    known: tuple[int, ...] = ()
    """Values that runs were recorded with."""


def list_knobs(
    scenario: Scenario, known_k: Sequence[int] = (), policies: Iterable[str] = ()
) -> Iterator[Knob]:
    """Yield what can be turned of a scenario.

    Quantities that are unlimited or come from a column have no slider.

    Args:
        scenario: the base.
        known_k: values of K that runs beside it were recorded with.
        policies: labels to choose from, the base's first; one is no choice.
    """
    for i, group in enumerate(scenario.clients):
        name, at = f"{group.count} × {group.prototype}", f"clients[{i}]"
        for key, label, each, unit in (
            ("link.up", "uplink", 8e-6, "Mbps"),
            ("link.down", "downlink", 8e-6, "Mbps"),
            ("link.latency", "latency", 1e3, "ms"),
            ("device.speed", "device speed", 1.0, ""),
        ):
            section, _, field = key.partition(".")
            value = getattr(getattr(group, section), field, None)
            if isinstance(value, PerMessage):
                key, value = f"{key}.per_message", value.per_message
            if isinstance(value, Distribution) and value.column is None:
                yield Knob(f"{at}.{key}", label, name, SCALED, 1.0, 1 / 30, 30.0)
            elif isinstance(value, float) and math.isfinite(value):
                yield _make_slider(f"{at}.{key}", label, name, each * value, 30, unit)
    for way in ("receive", "send"):
        rate = getattr(scenario.network.server, way)
        if isinstance(rate, float) and math.isfinite(rate):
            path = f"network.server.{way}"
            yield _make_slider(
                path, (f"{way}s at most"), "server", rate * 8e-6, 100, "Mbps"
            )
    mode = scenario.aggregation.mode
    if mode in _MODES and scenario.aggregation.edge_servers is None:
        path = "aggregation.mode"
        yield Knob(path, "merges", "server", "", mode, choices=_MODES)
        path, deadline_s = "aggregation.deadline", scenario.aggregation.deadline
        if deadline_s is None:
            yield Knob(path, "deadline", "server", "ms", None)
        else:
            yield _make_slider(path, "deadline", "server", 1e3 * deadline_s, 4, "ms")
    server = scenario.aggregation
    # mode first asks more than it waits for; others keep some in flight, round or not
    most = scenario.client_count - (server.mode == "first")
    cohort = scenario.participation.clients_per_round or most
    if most > 1 and (server.edge_servers or server).concurrency is None:
        path = "participation.clients_per_round"
        label = "clients per round"
        yield Knob(path, label, "server", "", cohort, low=1, high=most, whole=True)
    k = scenario.compression.k
    if isinstance(k, int) and any(group.k is None for group in scenario.clients):
        low, high = max(1, k // 30), 30 * k
        known = tuple(sorted({k, *known_k}))
        yield Knob(K, "K", UPLOADS, "", k, low, high, whole=True, known=known)
    if len(labels := tuple(policies)) > 1:
        yield Knob(POLICY, "strategy", UPLOADS, "", labels[0], choices=labels)


def name_policies(policies: Iterable[Mapping[str, Plain]]) -> dict[str, Plain]:
    """Return policies by short names: the strategy of a uniform one, else the kind.

    Equal policies have one name; further ones of a name are numbered.

    >>> uniform = {"kind": "uniform", "strategy": "top-k"}
    >>> own = [{"kind": "exp3", "gamma": gamma} for gamma in (0.1, 0.2)]
    >>> list(name_policies([uniform, uniform, *own]))
    ['top-k', 'exp3', 'exp3 #2']
    """
    named: dict[str, Plain] = {}
    for policy in policies:
        name = str(
            policy.get("strategy") if policy["kind"] == "uniform" else policy["kind"]
        )
        if policy not in named.values():
            again = sum(other.partition(" #")[0] == name for other in named)
            named[f"{name} #{again + 1}" if again else name] = policy
    return named


def _make_slider(
    path: str, label: str, group: str, value: float, times: float, unit: str
) -> Knob:
    """Return a slider from a share of a value up to so many times the value.

    Args:
        path: of the knob, as `label`, `group` and `unit`.
        label: what is turned.
        group: below which heading.
        value: the scenario's own, in the unit; 0 is taken for 1.
        times: how far the slider goes in both directions.
        unit: of the value.
    """
    middle = float(f"{value or 1.0:.4g}")
    low, high = middle / times, middle * times
    return Knob(path, label, group, unit, float(f"{value:.4g}"), low, high)


def apply_setting(
    base: Mapping[str, Plain], setting: Setting, source: Path
) -> Scenario:
    """Return the base scenario with a setting.

    Args:
        base: the scenario as its file has it.
        setting: of a page.
        source: the file, beside which others are looked for.

    Raises:
        InputErrors: a sentence for each mistake.
    """
    changed = apply_overrides(base, complete_setting(base, setting), Scenario)
    return validate_scenario(changed, source="setting", folder=source.parent)


def complete_setting(base: Mapping[str, Plain], setting: Setting) -> dict[str, Plain]:
    """Return a setting as `--set` takes it.

    Laws are scaled, and there is no deadline where the mode has none.

    >>> base = {"clients": [{"link": {"up": {"uniform": ["1 Mbps", "3 Mbps"]}}}]}
    >>> complete_setting(base, {"clients[0].link.up": "2×"})
    {'clients[0].link.up': {'uniform': ['2.0 Mbps', '6.0 Mbps']}}
    """
    made = dict(setting)
    mode = made.get("aggregation.mode", base.get("aggregation", {}).get("mode"))
    if mode != "deadline":
        made.pop("aggregation.deadline", None)
        if made.get("aggregation.mode") and "deadline" in base.get("aggregation", {}):
            made["aggregation.deadline"] = None
    for path, value in made.items():
        if isinstance(value, str) and value.endswith(SCALED):
            factor = float(value.removesuffix(SCALED))
            made[path] = _scale(_look_up(base, path), factor)
    return made


def _look_up(base: Plain, path: str) -> Plain:
    """Return what stands at a key path such as `clients[0].link.up`."""
    for step in re.findall(r"[^.\[\]]+", path):
        base = base[int(step)] if isinstance(base, list) else base[step]
    return base


def _scale(law: Plain, factor: float) -> Plain:
    """Return a law with all of its amounts multiplied."""
    if isinstance(law, Mapping):
        return {
            key: value if key in _NO_AMOUNTS else _scale(value, factor)
            for key, value in law.items()
        }
    if isinstance(law, list | tuple):
        return [_scale(value, factor) for value in law]
    if isinstance(law, str):
        match = _AMOUNT.fullmatch(law)
        assert match is not None
        return f"{float(match[1]) * factor!r}{match[2]}"
    return law * factor


def format_command(source: str, setting: Setting, *, time_only: bool) -> str:
    """Return the command line that plays a setting, quoted for a shell.

    >>> format_command("a.yaml", {"rounds": 3}, time_only=True)
    'simfed run a.yaml --time-only --set rounds=3'
    """
    sets = [f"--set {shlex.quote(f'{k}={_write(v)}')}" for k, v in setting.items()]
    mode = ["--time-only"] if time_only else []
    return " ".join(["simfed run", shlex.quote(source), *mode, *sets])


def _write(value: Plain) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_write(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_write, value)) + "]"
    return "null" if value is None else str(value)
