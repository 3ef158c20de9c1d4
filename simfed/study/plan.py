"""From a study file to its runs: axes, their combinations, and one validated scenario for each.

Pure: nothing is written and nothing is run. A run is a point (one label per axis) and a seed.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from simfed.errors import InputError, InputErrors, did_you_mean, listed
from simfed.scenario.load import (
    apply_overrides,
    import_plugins,
    read_yaml,
    split_key_path,
)
from simfed.scenario.study import Compare, Study, load_study_file
from simfed.study.kinds import Kind, Studied, kind_of

__all__ = [
    "Axis",
    "Plan",
    "PlannedRun",
    "Point",
    "SeedBySeed",
    "Setting",
    "each_once",
    "in_words",
    "label_of",
    "plan_study",
    "short_names",
]


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of an axis."""

    label: str
    assignments: tuple[tuple[str, Any], ...]
    """(key path, value), one for each key of the axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a study: a key of the grid, or all of `zip`, or all of `list`."""

    name: str
    """The key path of a grid axis; `zip`; `list`."""
    keys: tuple[str, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of all axes together: what its runs have in common, under whatever seed."""

    point: Mapping[str, str]
    """Axis name → label."""
    values: Mapping[str, Any]
    """Key path → value as written in the study file."""
    scenario: Studied
    """With the base's seed."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a study."""

    setting: Setting
    seed: int

    @property
    def point(self) -> Mapping[str, str]:
        """Axis name → label."""
        return self.setting.point

    @property
    def values(self) -> Mapping[str, Any]:
        """Key path → value as written in the study file."""
        return self.setting.values

    @property
    def scenario(self) -> Studied:
        """The setting's, under the run's seed; made when it is asked for."""
        return self.setting.scenario.model_copy(update={"seed": self.seed})

    @property
    def named(self) -> str:
        """The run in words: `up 5 Mbps, policy top-k, seed 0`."""
        return in_words(self.point, self.point, self.seed)


class SeedBySeed(Sequence[_T]):
    """Something for every setting under every seed, each made when it is asked for.

    Seed by seed, so that a study that is stopped early has whole comparisons.
    """

    def __init__(self, settings: int, seeds: int, make: Callable[[int, int], _T]) -> None:
        """`settings`, `seeds`: how many; `make(setting, seed)` takes their places."""
        self._settings = settings
        self._seeds = seeds
        self._make = make

    def __len__(self) -> int:
        return self._settings * self._seeds

    @overload
    def __getitem__(self, at: int) -> _T: ...
    @overload
    def __getitem__(self, at: slice) -> list[_T]: ...

    def __getitem__(self, at: int | slice) -> _T | list[_T]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        seed, setting = divmod(range(len(self))[at], self._settings)
        return self._make(setting, seed)


@dataclass(frozen=True, slots=True)
class Plan:
    """A study, expanded."""

    study: Study
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    kind: Kind

    @property
    def runs(self) -> SeedBySeed[PlannedRun]:
        """All runs."""
        return SeedBySeed(
            len(self.settings),
            len(self.seeds),
            lambda setting, seed: PlannedRun(self.settings[setting], self.seeds[seed]),
        )

    @property
    def arms_axis(self) -> Axis | None:
        """The axis whose values are compared."""
        return find_axis(self.axes, self.study.compare.arms)


def plan_study(
    path: str | Path,
    *,
    allow_outside: bool = False,
    allow_plugins: bool = False,
    overrides: Sequence[tuple[str, Any]] = (),
) -> Plan:
    """Expand the study file at `path`.

    Args:
        allow_outside, allow_plugins: as in `simfed.load_scenario`, of the study and its base; an
            app is code as plug-ins are.
        overrides: key path → value, of the study's own keys (`seeds`, `compare.thresholds`), or of
            every run's scenario, above what the file says under `set`.

    Raises:
        InputError, InputErrors: what is wrong in the study file, in the base scenario, or in one
            of the scenarios that an axis makes of it; one sentence each.
    """
    own = [pair for pair in overrides if split_key_path(pair[0])[0] in _OF_STUDIES]
    study = load_study_file(path, own, allow_outside=allow_outside, allow_plugins=allow_plugins)
    of_runs = [pair for pair in overrides if pair not in own]
    source = str(path)
    axes = tuple(_axes(study))
    _check_keys(axes, source)
    _check_overrides(of_runs, axes)
    _check_compare(study.compare, axes, source)
    _check_count(axes, len(study.seeds or (0,)), source)
    try:
        base = read_yaml(study.base, allow_outside=allow_outside)
    except InputError as error:
        raise error.within(f"{source}: base") from None
    import_plugins(
        base, source=study.base, folder=Path(study.base).parent, allow=allow_plugins,
        allow_outside=allow_outside,
    )  # fmt: skip
    if study.plugins:  # each run says all that it needs
        base["plugins"] = [*_as_list(base.get("plugins")), *study.plugins]
    kind = kind_of(base)
    points = list(itertools.product(*(axis.points for axis in axes)))
    scenarios = _scenarios(study, kind, axes, points, base, source, of_runs)
    for app in dict.fromkeys(found for made in scenarios for found in kind.code(made)):
        if not allow_plugins:
            raise InputError(
                "consent to run an app, which is code", where=source, got=app,
                hint="--allow-plugins; in Python allow_plugins=True",
            )  # fmt: skip
    seeds = study.seeds if study.seeds is not None else (scenarios[0].seed,)
    settings = [
        Setting(
            point={axis.name: p.label for axis, p in zip(axes, point, strict=True)},
            values={key: value for p in point for key, value in p.assignments},
            scenario=scenario,
        )
        for point, scenario in zip(points, scenarios, strict=True)
    ]
    return Plan(study, axes, tuple(seeds), tuple(settings), kind)


_OF_STUDIES = ("seeds", "grid", "zip", "list", "compare")
"""Keys of a study that no scenario has."""


def _check_overrides(pairs: Sequence[tuple[str, Any]], axes: Sequence[Axis]) -> None:
    """What is the same in every run is on no axis."""
    for key, _ in pairs:
        steps = split_key_path(key)
        if steps == ["seed"]:
            raise InputError("seeds, of a study", where=f"override {key}")
        for axis in axes:
            if any(_same(steps, split_key_path(other)) for other in axis.keys):
                allowed = f"a key that is on no axis; values of this one: {axis.name}"
                hint = f'--set "{_place(axis, key)}=[…]" changes the axis'
                raise InputError(allowed, where=f"override {key}", hint=hint)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def find_axis(axes: Sequence[Axis], name: str | None) -> Axis | None:
    """The axis of this name, or the one that holds this key path."""
    return next((axis for axis in axes if name in (axis.name, *axis.keys)), None)


# --- axes --------------------------------------------------------------------------------------


def _axes(study: Study) -> Iterable[Axis]:
    for key, values in (study.grid or {}).items():
        labels, plain = _labelled(values)
        yield Axis(
            key,
            (key,),
            tuple(Point(a, ((key, v),)) for a, v in zip(labels, plain, strict=True)),
        )
    if study.zip:
        keys = tuple(study.zip)
        labels, _ = _labelled(study.zip[keys[0]])
        columns = [_labelled(values)[1] for values in study.zip.values()]
        rows = [tuple(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
        if not isinstance(study.zip[keys[0]], dict):
            labels = _distinct([", ".join(label_of(value) for _, value in row) for row in rows])
        yield Axis("zip", keys, tuple(map(Point, labels, rows)))
    if study.list:
        entries = study.list
        rows = [
            tuple(row.items())
            for row in (entries.values() if isinstance(entries, dict) else entries)
        ]
        keys = tuple(dict.fromkeys(key for row in rows for key, _ in row))
        labels = (
            [*entries]
            if isinstance(entries, dict)
            else _distinct([", ".join(label_of(value) for _, value in row) for row in rows])
        )
        yield Axis("list", keys, tuple(map(Point, labels, rows)))


def _labelled(values: Sequence[Any] | Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    if isinstance(values, Mapping):
        return [*values], [*values.values()]
    return _distinct([label_of(value) for value in values]), [*values]


def label_of(value: Any) -> str:
    """A short name for a value of an axis.

    >>> [label_of(v) for v in ("5 Mbps", 0.5, 1000, None, {"kind": "uniform", "strategy": "top-k"})]
    ['5 Mbps', '0.5', '1000', 'none', 'top-k']
    >>> label_of({"kind": "ascend", "c": 5, "reward": {"rho": 1}})
    'ascend c=5 reward.rho=1'
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        rest = dict(_flattened(value))
        words = [str(rest.pop("kind"))] if "kind" in rest else []
        if words == ["uniform"] and "strategy" in rest:
            words = [str(rest.pop("strategy"))]
        return " ".join([*words, *(f"{key}={label_of(v)}" for key, v in rest.items())])
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(label_of(inner) for inner in value) + "]"
    return str(value)


def _flattened(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flattened(inner, f"{prefix}{key}.")
        else:
            yield prefix + str(key), inner


def _distinct(labels: list[str]) -> list[str]:
    """The labels, long ones cut, and numbered where two would read the same."""
    short = [label if len(label) <= 60 else label[:57] + "..." for label in labels]
    return [
        f"{label} #{short[:i].count(label) + 1}" if short.count(label) > 1 else label
        for i, label in enumerate(short)
    ]


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Key path → the shortest end of it that no other key shares.

    >>> short_names(["clients[*].link.up", "network.server.up", "compression.k"])
    {'clients[*].link.up': 'link.up', 'network.server.up': 'server.up', 'compression.k': 'k'}
    """
    ends = {}
    for key in keys:
        words = key.split(".")
        ends[key] = [".".join(words[-n:]) for n in range(1, len(words) + 1)]
    return {
        key: next(
            (e for e in ways if not any(e in others for k, others in ends.items() if k != key)), key
        )
        for key, ways in ends.items()
    }


def in_words(point: Mapping[str, str], axes: Iterable[str], seed: int | None = None) -> str:
    """Labels by axis as a phrase; points of `zip` and `list` speak for themselves.

    >>> point = {"clients[*].link.up": "5 Mbps", "list": "old phones"}
    >>> in_words(point, ["clients[*].link.up", "list"], 3)
    'up 5 Mbps, old phones, seed 3'
    """
    names = short_names(axes)
    own = ("zip", "list")
    words = [label if axis in own else f"{names[axis]} {label}" for axis, label in point.items()]
    return ", ".join(words if seed is None else [*words, f"seed {seed}"])


# --- checks ------------------------------------------------------------------------------------


def _place(axis: Axis, key: str) -> str:
    return f"{axis.name}.{key}" if axis.name in ("zip", "list") else f"grid.{key}"


def _check_keys(axes: Sequence[Axis], source: str) -> None:
    """No two axes on one key, none on the seed, no value twice."""
    errors = []
    used = [(axis, key, _steps(key, axis, source)) for axis in axes for key in axis.keys]
    for i, (axis, key, steps) in enumerate(used):
        where = f"{source}: {_place(axis, key)}"
        if steps == ["seed"]:
            errors.append(InputError("seeds under the study's own key: seeds", where=where))
        for other_axis, other, other_steps in used[:i]:
            # points of a list are written out: what stands later in one of them counts there
            if _same(steps, other_steps) and not axis.name == other_axis.name == "list":
                beside = (
                    f"one axis for each key (this one stands in {_place(other_axis, other)} too)"
                )
                errors.append(InputError(beside, where=where, got=key))
        for other_axis, other, other_steps in used:
            inside = len(other_steps) < len(steps) and other_axis is not axis
            if inside and _same(steps[: len(other_steps)], other_steps):
                rest = steps[len(other_steps) :]
                if any(
                    _sets(v, rest)
                    for p in other_axis.points
                    for k, v in p.assignments
                    if k == other
                ):
                    beside = (
                        f"one axis for each key (a value of {_place(other_axis, other)} sets this "
                        "one too)"
                    )
                    errors.append(InputError(beside, where=where, got=key))
    for axis in axes:
        seen = [json.dumps(p.assignments, sort_keys=True, default=str) for p in axis.points]
        twice = [p for p, text in zip(axis.points, seen, strict=True) if seen.count(text) > 1]
        if twice:
            where = (
                f"{source}: {axis.name if axis.name in ('zip', 'list') else 'grid.' + axis.name}"
            )
            values = [value for _, value in twice[0].assignments]
            got = values[0] if len(values) == 1 else values
            errors.append(InputError("each value once", where=where, got=got))
    if errors:
        raise InputErrors(errors)


MOST_RUNS = 1_000_000
"""Of a study: each is a folder of files."""
MOST_SETTINGS = 100_000
"""Points of all axes together: their scenarios are all checked before the first run."""


def _check_count(axes: Sequence[Axis], seeds: int, source: str) -> None:
    """Before any combination is made."""
    settings = math.prod(len(axis.points) for axis in axes)
    sizes = [f"{len(axis.points):,} of {axis.name}" for axis in axes]
    if settings * seeds > MOST_RUNS:
        allowed = f"at most {MOST_RUNS:,} runs, every combination under every seed counted"
        got = f"{settings * seeds:,}: {' × '.join([*sizes, f'{seeds:,} seeds'])}"
        raise InputError(allowed, where=source, got=got)
    if settings > MOST_SETTINGS:
        allowed = f"at most {MOST_SETTINGS:,} combinations of its axes"
        raise InputError(allowed, where=source, got=f"{settings:,}: {' × '.join(sizes)}")


def _steps(key: str, axis: Axis, source: str) -> list[str | int]:
    try:
        return split_key_path(key)
    except InputError as error:
        where = f"{source}: {_place(axis, key)}"
        raise InputError(error.allowed, where=where, got=key) from None


def _same(a: Sequence[str | int], b: Sequence[str | int]) -> bool:
    """Whether two key paths can name one place; `*` is any step."""
    return len(a) == len(b) and all("*" in (x, y) or x == y for x, y in zip(a, b, strict=True))


def _sets(value: Any, steps: Sequence[str | int]) -> bool:
    """Whether `value` says something at this path inside it."""
    for step in steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, (list, tuple)) and value and isinstance(step, int):
            value = value[min(step, len(value) - 1)]
        elif isinstance(value, (list, tuple)) and value and step == "*":
            value = value[0]
        else:
            return False
    return True


def _check_compare(compare: Compare, axes: Sequence[Axis], source: str) -> None:
    names = [name for axis in axes for name in dict.fromkeys((axis.name, *axis.keys))]
    if compare.arms is None:
        if compare.baseline is not None:
            raise InputError("the key arms beside baseline", where=f"{source}: compare")
        return
    axis = find_axis(axes, compare.arms)
    if axis is None:
        raise InputError(
            f"an axis of this study: {listed(names)}" if names else "no arms: there is no axis",
            where=f"{source}: compare.arms",
            got=compare.arms,
            hint=did_you_mean(compare.arms, names),
        )
    labels = [point.label for point in axis.points]
    if compare.baseline is not None and compare.baseline not in labels:
        raise InputError(
            f"a value of {axis.name}: {listed(labels)}",
            where=f"{source}: compare.baseline",
            got=compare.baseline,
            hint=did_you_mean(compare.baseline, labels),
        )


# --- scenarios ---------------------------------------------------------------------------------


def _scenarios(
    study: Study,
    kind: Kind,
    axes: Sequence[Axis],
    points: Sequence[tuple[Point, ...]],
    base: dict[str, Any],
    source: str,
    overrides: Sequence[tuple[str, Any]],
) -> list[Studied]:
    """What runs at each point; every distinct error of all of them at once."""
    places = {f"override {key}": f"{source}: {_place(a, key)}" for a in axes for key in a.keys}
    places |= {f"override {key}": f"{source}: set.{key}" for key in study.set}
    folder = Path(study.base).resolve().parent
    found: list[Studied] = []
    errors: list[tuple[Mapping[str, str], InputError]] = []
    for point in points:
        pairs = [pair for p in point for pair in p.assignments]
        # a key inside another's value is set after it: policy.c after policy
        pairs.sort(key=lambda pair: len(split_key_path(pair[0])))
        try:
            data = apply_overrides(base, [*study.set.items(), *overrides, *pairs], kind.keys)
            found.append(kind.made(data, source=study.base, folder=folder))
            continue
        except InputErrors as several:
            those = several.errors
        except InputError as one:
            where = places.get(one.where or "", one.where)
            those = [InputError(one.allowed, where=where, got=one.got, hint=one.hint)]
        at = {axis.name: p.label for axis, p in zip(axes, point, strict=True)}
        errors += [(at, error) for error in those]
    if errors:
        raise InputErrors(each_once(errors, len(points), source))
    return found


def each_once(
    errors: Iterable[tuple[Mapping[str, str], InputError]], points: int, source: str
) -> list[InputError]:
    """What is wrong at some of the points of a study file, each error with the first of its
    points."""
    found: dict[str, tuple[Mapping[str, str], InputError]] = {}
    counts: dict[str, int] = {}
    for at, error in errors:
        found.setdefault(str(error), (at, error))
        counts[str(error)] = counts.get(str(error), 0) + 1
    return [
        # true of every point, or already at the axis: no need to say for which
        error
        if counts[text] == points or (error.where or "").startswith(source)
        else error.within(f"{source}: with {in_words(at, at)}")
        for text, (at, error) in found.items()
    ]
