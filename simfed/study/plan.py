"""Plans of studies: axes, their combinations, a validated scenario for each.

Pure: nothing is written and nothing is run. A study file has axes (`grid`, `zip`,
`list`); a *point* is one label of each axis, a *setting* a point with its scenario, a
*run* a setting under a seed.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simfed.ground.errors import (
    InputError,
    InputErrors,
    check_known,
    did_you_mean,
    listed,
    within,
)
from simfed.ground.plain import Plain
from simfed.scenario.load import (
    apply_overrides,
    import_plugins,
    read_yaml,
    split_key_path,
)
from simfed.scenario.study import Compare, Study, load_study_file
from simfed.study.kinds import AnyKind, Studied, find_kind


@dataclass(frozen=True, slots=True)
class AxisPoint:
    """One value of an axis, with what it sets in the base scenario."""

    label: str
    assignments: tuple[tuple[str, Plain], ...]
    """(key path, value), one for each key of the axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a study: a key of the grid, all of `zip`, or all of `list`."""

    name: str
    """The key path of a grid axis; `zip`; `list`."""
    keys: tuple[str, ...]
    points: tuple[AxisPoint, ...]


@dataclass(frozen=True, slots=True)
class StudySetting:
    """A point of all axes: what runs have in common, under whatever seed."""

    point: Mapping[str, str]
    """Axis name → label."""
    values: Mapping[str, Plain]
    """Key path → value as written in the study file."""
    scenario: Studied
    """The scenario with the base's seed."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a study: a setting under a seed."""

    setting: StudySetting
    seed: int

    @property
    def point(self) -> Mapping[str, str]:
        """Axis name → the label of its value in this run."""
        return self.setting.point

    @property
    def scenario(self) -> Studied:
        """The setting's, under the run's seed; made when it is asked for."""
        return self.setting.scenario.model_copy(update={"seed": self.seed})

    def is_at(self, place: Mapping[str, str]) -> bool:
        """Return whether the run is at a place of the axes.

        Args:
            place: axis → label, and `seed`; axes that it leaves out may have any.
        """
        return place.items() <= {**self.point, "seed": str(self.seed)}.items()

    @property
    def named(self) -> str:
        """The run in words: `up 5 Mbps, policy top-k, seed 0`."""
        return describe_point(self.point, self.point, self.seed)


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study with its axes, settings and runs written out.

    `plan_study` makes it; `drive` runs it, and `store` writes it to `study.json`.
    """

    study: Study
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    settings: tuple[StudySetting, ...]
    runs: tuple[PlannedRun, ...]
    """The runs: every setting with every seed, all settings of a seed first, so that a
    study that is stopped early has whole comparisons."""
    kind: AnyKind

    @property
    def arms_axis(self) -> Axis | None:
        """The axis whose values are compared."""
        return find_axis(self.axes, self.study.compare.arms)


def plan_study(
    path: str | Path,
    *,
    allow_plugins: bool = False,
    overrides: Sequence[tuple[str, object]] = (),
) -> StudyPlan:
    """Expand the study file at `path`.

    Args:
        path: the study file.
        allow_plugins: as in `simfed.load_scenario`, of the study and its base; an app
            is code as plug-ins are.
        overrides: key path → value, of the study's own keys (`seeds`,
            `compare.thresholds`), or of every run's scenario, above what the file says
            under `set`.

    Raises:
        InputError, InputErrors: what is wrong in the study file, in the base scenario,
            or in one of the scenarios that an axis makes of it; one sentence each.
    """
    of_study = [pair for pair in overrides if split_key_path(pair[0])[0] in _STUDY_KEYS]
    of_runs = [pair for pair in overrides if pair not in of_study]
    study = load_study_file(path, of_study, allow_plugins=allow_plugins)
    source = str(path)
    axes = tuple(_make_axes(study))
    _check_keys(axes, source)
    _check_overrides(of_runs, axes)
    _check_compare(study.compare, axes, source)
    _check_count(axes, len(study.seeds or (0,)), source)
    with within(f"{source}: base"):
        base = read_yaml(study.base)
    folder = Path(study.base).parent
    import_plugins(base, source=study.base, folder=folder, allow=allow_plugins)
    if study.plugins:  # each run says all that it needs
        own_plugins = [plugin.model_dump(mode="json") for plugin in study.plugins]
        named = base.get("plugins") or []
        named = named if isinstance(named, (list, tuple)) else [named]
        base["plugins"] = [*named, *own_plugins]
    kind = find_kind(base)
    points = list(itertools.product(*(axis.points for axis in axes)))
    scenarios = _make_scenarios(study, kind, axes, points, base, source, of_runs)
    apps = dict.fromkeys(
        app for scenario in scenarios for app in kind.list_code(scenario)
    )
    if apps and not allow_plugins:
        allowed = "consent to run an app, which is code"
        hint = "--allow-plugins; in Python allow_plugins=True"
        raise InputError(allowed, where=source, got=next(iter(apps)), hint=hint)
    for at, threshold in enumerate(study.compare.thresholds):
        if threshold > 1:  # what any measure can have needs no look at the data
            where = f"{source}: compare.thresholds[{at}]"
            kind.find_measure(scenarios[0]).check(threshold, where=where)
    seeds = study.seeds if study.seeds is not None else (scenarios[0].seed,)
    settings = [
        StudySetting(
            point={axis.name: p.label for axis, p in zip(axes, point, strict=True)},
            values={key: value for p in point for key, value in p.assignments},
            scenario=scenario,
        )
        for point, scenario in zip(points, scenarios, strict=True)
    ]
    runs = tuple(PlannedRun(setting, seed) for seed in seeds for setting in settings)
    return StudyPlan(study, axes, tuple(seeds), tuple(settings), runs, kind)


_STUDY_KEYS = ("seeds", "grid", "zip", "list", "compare")
"""Keys of a study that no scenario has."""


def _check_overrides(pairs: Sequence[tuple[str, Plain]], axes: Sequence[Axis]) -> None:
    """Refuse overrides of keys that an axis sets, or of the seed.

    Raises:
        InputError: it names the axis's own key, which can be overridden.
    """
    for key, _ in pairs:
        steps = split_key_path(key)
        if steps == ["seed"]:
            raise InputError("seeds, of a study", where=f"override {key}")
        for axis in axes:
            if any(_can_be_same(steps, split_key_path(other)) for other in axis.keys):
                allowed = f"a key that is on no axis; values of this one: {axis.name}"
                hint = f'--set "{_name_place(axis, key)}=[…]" changes the axis'
                raise InputError(allowed, where=f"override {key}", hint=hint)


def find_axis(axes: Sequence[Axis], name: str | None) -> Axis | None:
    """Return the axis of this name, or the one that sets this key path; else None."""
    return next((axis for axis in axes if name in (axis.name, *axis.keys)), None)


def parse_place(plan: StudyPlan, only: str) -> dict[str, str]:
    """Return the place on a plan's axes that a text names.

    Args:
        plan: whose axes and seeds count.
        only: `link=DSL, strategy=dgc@1%, seed=3`: axes by their names or the ends of
            these. Labels may have commas and equal signs.

    Returns:
        Axis → label, and `seed`.

    Raises:
        InputError: what is no axis, or no label of one.
    """
    labels = {axis.name: [point.label for point in axis.points] for axis in plan.axes}
    names = {short: name for name, short in shorten_names(labels).items()} | {
        "seed": "seed"
    }
    names |= {name: name for name in labels}
    labels["seed"] = [str(seed) for seed in plan.seeds]
    # a label may have commas in it, and equal signs
    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    before, *pairs = re.split(rf"(?:^|,)\s*({known})\s*=", only)
    if before.strip() or not pairs:
        allowed = f"AXIS=VALUE,… of the axes {listed(names)}"
        raise InputError(allowed, where="--only", got=only)
    place = {names[a]: v.strip() for a, v in zip(pairs[::2], pairs[1::2], strict=True)}
    for name, label in place.items():
        check_known(label, labels[name], f"a value of {name}:", where="--only")
    return place


# --- axes -----------------------------------------------------------------------------


def _make_axes(study: Study) -> Iterable[Axis]:
    """Yield a study's axes: one per key of `grid`, then `zip`, then `list`."""
    for key, values in (study.grid or {}).items():
        labels, plain = _label_values(values)
        points = (AxisPoint(a, ((key, v),)) for a, v in zip(labels, plain, strict=True))
        yield Axis(key, (key,), tuple(points))
    if study.zip:
        keys = tuple(study.zip)
        columns = [_label_values(values)[1] for values in study.zip.values()]
        rows = [
            tuple(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)
        ]
        yield _make_row_axis("zip", keys, rows, study.zip[keys[0]])
    if study.list:
        entries = study.list.values() if isinstance(study.list, dict) else study.list
        rows = [tuple(entry.items()) for entry in entries]
        keys = tuple(dict.fromkeys(key for row in rows for key, _ in row))
        yield _make_row_axis("list", keys, rows, study.list)


def _make_row_axis(
    name: str,
    keys: tuple[str, ...],
    rows: Sequence[tuple[tuple[str, Plain], ...]],
    named: object,
) -> Axis:
    """Return an axis that sets several keys at once.

    Args:
        name: `zip` or `list`.
        keys: all keys that it sets.
        rows: (key path, value) pairs of each point.
        named: a mapping has the labels; anything else: they are made of the values.
    """
    if isinstance(named, dict):
        labels = [*named]
    else:
        labels = make_distinct(
            [", ".join(label_of(value) for _, value in row) for row in rows]
        )
    return Axis(name, keys, tuple(map(AxisPoint, labels, rows)))


def _label_values(
    values: Sequence[Plain] | Mapping[str, Plain],
) -> tuple[list[str], list[Plain]]:
    """Return labels and values of an axis; a mapping has them as keys and values."""
    if isinstance(values, Mapping):
        return [*values], [*values.values()]
    return make_distinct([label_of(value) for value in values]), [*values]


def label_of(value: object) -> str:
    """Return a short name for a value of an axis.

    >>> [label_of(value) for value in ("5 Mbps", 0.5, 1000, None)]
    ['5 Mbps', '0.5', '1000', 'none']
    >>> label_of({"kind": "uniform", "strategy": "top-k"})
    'top-k'
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
        settings = dict(_flatten_mapping(value))
        words = [str(settings.pop("kind"))] if "kind" in settings else []
        if words == ["uniform"] and "strategy" in settings:
            words = [str(settings.pop("strategy"))]
        return " ".join(
            [*words, *(f"{key}={label_of(v)}" for key, v in settings.items())]
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(label_of(inner) for inner in value) + "]"
    return str(value)


def _flatten_mapping(
    value: Mapping[str, Plain], prefix: str = ""
) -> Iterable[tuple[str, Plain]]:
    """Yield (key path, value) of everything inside a mapping that is no mapping."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flatten_mapping(inner, f"{prefix}{key}.")
        else:
            yield prefix + str(key), inner


def make_distinct(labels: list[str]) -> list[str]:
    """Return labels, long ones cut, numbered where two would be the same.

    >>> make_distinct(["dense", "top-k", "dense"])
    ['dense #1', 'top-k', 'dense #2']
    """
    short = [label if len(label) <= 60 else label[:57] + "..." for label in labels]
    return [
        f"{label} #{short[:i].count(label) + 1}" if short.count(label) > 1 else label
        for i, label in enumerate(short)
    ]


def shorten_names(keys: Iterable[str]) -> dict[str, str]:
    """Return for each key path its shortest end that no other key shares.

    >>> shorten_names(["clients[*].link.up", "network.server.up", "compression.k"])
    {'clients[*].link.up': 'link.up', 'network.server.up': 'server.up',
    'compression.k': 'k'}
    """
    ends = {}
    for key in keys:
        words = key.split(".")
        ends[key] = [".".join(words[-n:]) for n in range(1, len(words) + 1)]
    return {
        key: next(
            (
                e
                for e in ways
                if not any(e in others for k, others in ends.items() if k != key)
            ),
            key,
        )
        for key, ways in ends.items()
    }


def describe_point(
    point: Mapping[str, str], axes: Iterable[str], seed: int | None = None
) -> str:
    """Return a point in words; labels of `zip` and `list` speak for themselves.

    Args:
        point: axis → label.
        axes: the names of all axes, which are shortened together.
        seed: named at the end; None: not.

    >>> point = {"clients[*].link.up": "5 Mbps", "list": "old phones"}
    >>> describe_point(point, ["clients[*].link.up", "list"], 3)
    'up 5 Mbps, old phones, seed 3'
    """
    names = shorten_names(axes)
    words = [
        label if axis in ("zip", "list") else f"{names[axis]} {label}"
        for axis, label in point.items()
    ]
    return ", ".join(words if seed is None else [*words, f"seed {seed}"])


# --- checks ---------------------------------------------------------------------------


def _name_place(axis: Axis, key: str) -> str:
    """Return where a key of an axis stands in the study file."""
    return f"{axis.name}.{key}" if axis.name in ("zip", "list") else f"grid.{key}"


def _check_keys(axes: Sequence[Axis], source: str) -> None:
    """Refuse two axes on one key, one on the seed, and a value twice.

    Raises:
        InputErrors: one sentence for each.
    """
    errors = []
    used = [
        (axis, key, _split_key(key, axis, source)) for axis in axes for key in axis.keys
    ]
    for i, (axis, key, steps) in enumerate(used):
        where = f"{source}: {_name_place(axis, key)}"
        if steps == ["seed"]:
            errors.append(
                InputError(
                    where=where, problem="seeds stand under the study's own key seeds"
                )
            )
        for other_axis, other, other_steps in used[:i]:
            # points of a list are written out: what stands later in one of them counts
            # there
            if (
                _can_be_same(steps, other_steps)
                and not axis.name == other_axis.name == "list"
            ):
                other_place = _name_place(other_axis, other)
                beside = f"one axis for each key (this one stands in {other_place} too)"
                errors.append(InputError(beside, where=where, got=key))
        for other_axis, other, other_steps in used:
            inside = len(other_steps) < len(steps) and other_axis is not axis
            if not inside or not _can_be_same(steps[: len(other_steps)], other_steps):
                continue
            values = [
                v for p in other_axis.points for k, v in p.assignments if k == other
            ]
            if any(_has_path(value, steps[len(other_steps) :]) for value in values):
                other_place = _name_place(other_axis, other)
                beside = (
                    f"one axis for each key (a value of {other_place} sets this "
                    f"one too)"
                )
                errors.append(InputError(beside, where=where, got=key))
    for axis in axes:
        seen = [
            json.dumps(p.assignments, sort_keys=True, default=str) for p in axis.points
        ]
        twice = [
            p for p, text in zip(axis.points, seen, strict=True) if seen.count(text) > 1
        ]
        if twice:
            place = axis.name if axis.name in ("zip", "list") else f"grid.{axis.name}"
            values = [value for _, value in twice[0].assignments]
            got = values[0] if len(values) == 1 else values
            errors.append(
                InputError("each value once", where=f"{source}: {place}", got=got)
            )
    if errors:
        raise InputErrors(errors)


MOST_RUNS = 100_000
"""The most runs of a study: each is a folder of files."""


def _check_count(axes: Sequence[Axis], seeds: int, source: str) -> None:
    """Refuse more than `MOST_RUNS` runs, before any combination is made."""
    count = math.prod(len(axis.points) for axis in axes) * seeds
    if count > MOST_RUNS:
        sizes = [f"{len(axis.points):,} of {axis.name}" for axis in axes]
        allowed = (
            f"at most {MOST_RUNS:,} runs, every combination under every seed counted"
        )
        got = f"{count:,}: {' × '.join([*sizes, f'{seeds:,} seeds'])}"
        raise InputError(allowed, where=source, got=got)


def _split_key(key: str, axis: Axis, source: str) -> list[str | int]:
    """Return the steps of a key path; errors name its place in the study file."""
    try:
        return split_key_path(key)
    except InputError as error:
        where = f"{source}: {_name_place(axis, key)}"
        raise error.changed(where=where, got=key) from None


def _can_be_same(a: Sequence[str | int], b: Sequence[str | int]) -> bool:
    """Return whether two key paths can name one place; `*` is any step."""
    return len(a) == len(b) and all(
        "*" in (x, y) or x == y for x, y in zip(a, b, strict=True)
    )


def _has_path(value: Plain, steps: Sequence[str | int]) -> bool:
    """Return whether a value says something at a path inside it.

    Args:
        value: of a key of the study file.
        steps: keys, positions, or `*` for any position.
    """
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
    """Refuse a comparison of what is no axis, or to what is no value of it."""
    names = [name for axis in axes for name in dict.fromkeys((axis.name, *axis.keys))]
    if compare.arms is None:
        if compare.baseline is not None:
            raise InputError(
                where=f"{source}: compare",
                problem="the key arms is missing beside baseline",
            )
        return
    axis = find_axis(axes, compare.arms)
    if axis is None:
        raise InputError(
            f"an axis of this study: {listed(names)}"
            if names
            else "no arms: there is no axis",
            where=f"{source}: compare.arms",
            got=compare.arms,
            hint=did_you_mean(compare.arms, names),
        )
    labels = [point.label for point in axis.points]
    if compare.baseline is not None:
        what, where = f"a value of {axis.name}:", f"{source}: compare.baseline"
        check_known(compare.baseline, labels, what, where=where)


# --- scenarios ------------------------------------------------------------------------


def _make_scenarios(
    study: Study,
    kind: AnyKind,
    axes: Sequence[Axis],
    points: Sequence[tuple[AxisPoint, ...]],
    base: dict[str, Plain],
    source: str,
    overrides: Sequence[tuple[str, Plain]],
) -> list[Studied]:
    """Return the scenario, or fleet, of each point.

    Args:
        study: with `set`, which every point has.
        kind: of its runs.
        axes: in their order.
        points: one value of each axis.
        base: the base scenario's keys.
        source: the study file, for errors.
        overrides: (key path, value) of every run, above `set`.

    Raises:
        InputErrors: those of all points, equal ones once.
    """
    places = {
        f"override {key}": f"{source}: {_name_place(axis, key)}"
        for axis in axes
        for key in axis.keys
    }
    places |= {f"override {key}": f"{source}: set.{key}" for key in study.set}
    folder = Path(study.base).resolve().parent
    scenarios: list[Studied] = []
    errors: list[tuple[Mapping[str, str], InputError]] = []
    more = 0
    for point in points:
        pairs = [pair for p in point for pair in p.assignments]
        # a key inside another's value is set after it: policy.c after policy
        pairs.sort(key=lambda pair: len(split_key_path(pair[0])))
        try:
            data = apply_overrides(
                base, [*study.set.items(), *overrides, *pairs], kind.keys
            )
            scenarios.append(kind.validate(data, source=study.base, folder=folder))
            continue
        except InputErrors as several:
            at_point = several.errors
            more += several.more
        except InputError as error:
            where = places.get(error.where or "", error.where)
            at_point = [error.changed(where=where)]
        at = {axis.name: p.label for axis, p in zip(axes, point, strict=True)}
        errors += [(at, error) for error in at_point]
    if errors:
        raise InputErrors(merge_errors(errors, len(points), source), more)
    return scenarios


def merge_errors(
    errors: Iterable[tuple[Mapping[str, str], InputError]], points: int, source: str
) -> list[InputError]:
    """Return the errors of a study's points, equal ones once.

    The first point that has it stands with it, unless all points have it or the error
    names the axis.

    Args:
        errors: (axis → label, error) pairs.
        points: how many points there are.
        source: the study file.
    """
    errors = list(errors)
    counts = Counter(str(error) for _, error in errors)
    firsts = {str(error): (at, error) for at, error in reversed(errors)}
    return [
        # true of every point, or already at the axis: no need to say for which
        error
        if counts[text] == points or (error.where or "").startswith(source)
        else error.within(f"{source}: with {describe_point(at, at)}")
        for text, (at, error) in ((text, firsts[text]) for text in counts)
    ]
