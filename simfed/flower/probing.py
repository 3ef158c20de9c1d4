"""Probing: plays that tell how an app's messages grow, chosen by what plays show.

Names do not matter. Every number of the run's configuration and of the nodes' is varied
alone. What changes no seconds drops out, what changes only how many messages there are
is a count of them, all else is a size: it gets a third value on the other side. The
number of nodes has three values as well, and two plays move all sizes at once. A play
is made twice, the second time after all others, and again while its two least times
differ by more than `APART`: what else runs on the machine makes a whole process slower,
and which one is chance, so that a message's least time counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simfed.flower.forge import Forge
from simfed.flower.laws import MessageRow, differ, group_kinds
from simfed.flower.workfile import (
    COUNT,
    NOTHING,
    SIZE,
    KindLaw,
    round_number,
)
from simfed.ground.errors import RunFailed
from simfed.ground.plain import Plain

MOST_REPEATS, APART = 5, 0.15
MOST_ROUNDS = 3
"""Settings called rounds are lowered to it, so that plays are short; a hint, no
more."""
_LEAST_SHARE = 0.05
"""The share of a play's work below which a kind does not say whether a number is a
size."""

Tell = Callable[[str], None]
Setting = tuple[str, bool]
"""The name of a number, and whether it is one of the nodes' configuration."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike."""

    share: float
    node_config: Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class Spot:
    """The sizes of one play."""

    nodes: int
    settings: Mapping[str, Plain]
    """The settings in place of the app's own."""
    groups: tuple[NodeGroup, ...]
    changes: str
    """The setting that is special about it."""

    def read(self, setting: Setting, config: Mapping[str, Plain]) -> Plain:
        """Return a setting's value; of unlike nodes that of the first that has it.

        Args:
            setting: its name, and whether it is the nodes'.
            config: the app's own, where the play has nothing in its place.
        """
        name, of_nodes = setting
        if of_nodes:
            return next(
                g.node_config[name] for g in self.groups if name in g.node_config
            )
        return self.settings.get(name, config[name])

    def move(self, setting: Setting, value: float) -> Spot:
        """Return these sizes with one that is another.

        Of unlike nodes each moves in proportion.

        Args:
            setting: its name, and whether it is the nodes'.
            value: of the first node that has it.
        """
        name, of_nodes = setting
        changes = f"{name} {value:,}"
        if not of_nodes:
            return replace(
                self, settings={**self.settings, name: value}, changes=changes
            )
        factor = value / float(self.read(setting, {}))
        groups = tuple(
            replace(group, node_config={**group.node_config, name: _scale(old, factor)})
            if _is_number(old := group.node_config.get(name))
            else group
            for group in self.groups
        )
        return replace(self, groups=groups, changes=changes)

    def deal(self) -> list[dict[str, Plain]]:
        """Return the nodes as groups of a fleet file, each with at least one."""
        ends = np.cumsum([group.share for group in self.groups])
        ends = np.maximum(
            np.round(self.nodes * ends / ends[-1]).astype(int),
            np.arange(1, len(ends) + 1),
        )
        counts = np.diff(ends, prepend=0).tolist()
        return [
            {"count": count, "node_config": dict(group.node_config)}
            for count, group in zip(counts, self.groups, strict=True)
            if count
        ]


def _scale(value: Plain, factor: float) -> float:
    scaled = float(value) * factor
    return max(1, round(scaled)) if isinstance(value, int) else scaled


class PlayLog:
    """Plays of one app, each as often as its times ask for.

    A play is known by its number, the order in which its sizes came.
    """

    def __init__(
        self, forge: Forge, folder: Path, config: Mapping[str, Plain], tell: Tell
    ) -> None:
        """Begin without a play.

        Args:
            forge: makes the plays.
            folder: the app's.
            config: the app's own run configuration.
            tell: gets a line before every play.
        """
        self._forge = forge
        self._folder = folder
        self.config = config
        self._tell = tell
        self.spots: list[Spot] = []
        self._times: dict[int, list[list[MessageRow]]] = defaultdict(list)
        self.failed: dict[int, str] = {}
        """Number of a play that never got to its end → why."""

    @property
    def repeats(self) -> dict[int, int]:
        """The number of times that each play was made."""
        return {number: len(times) for number, times in sorted(self._times.items())}

    def add(self, spot: Spot) -> int | None:
        """Play sizes for the first time, unless they were played before.

        Returns:
            The play's number; None: it failed.
        """
        for number, other in enumerate(self.spots):
            if replace(other, changes="") == replace(spot, changes=""):
                return None if number in self.failed else number
        self.spots.append(spot)
        number = len(self.spots) - 1
        return number if self._play(number) else None

    def settle(self, numbers: Sequence[int]) -> None:
        """Play again what was played once, then what differs.

        Args:
            numbers: the plays that are to be known well; each at most `MOST_REPEATS`
            times.
        """
        for _ in range(MOST_REPEATS - 1):
            for number in numbers:
                if (
                    len(self._times[number]) < MOST_REPEATS
                    and self._apart(number) > APART
                ):
                    self._play(number)

    def rows(self, number: int) -> list[MessageRow]:
        """Return a play's messages with the least of their times."""
        times = self._times[number]
        course = [row.visible.message_type for row in times[0]]
        alike = [t for t in times if [row.visible.message_type for row in t] == course]
        return [
            replace(
                min(twins, key=lambda row: row.work_s),  # with what it says of its work
                waited_s=min(row.waited_s for row in twins),
                repeats=tuple(row.work_s for row in twins),
            )
            for twins in zip(*alike, strict=True)
        ]

    def all_rows(self) -> list[MessageRow]:
        """Return the messages of all plays."""
        return [row for number in sorted(self._times) for row in self.rows(number)]

    def count(self, laws: Sequence[KindLaw]) -> Iterator[KindLaw]:
        """Yield laws with what metered computing counts, in one more first play.

        Args:
            laws: in the order in which they are yielded.
        """
        self._tell("the first play's work is counted")
        said = self._forge.play({**self._job(self.spots[0]), "counts": True})
        for law in laws:
            counts = [
                (*one.training, *one.inference, one.parameters)
                for visible, spent, _ in said.messages
                if law.covers(visible.message_type, visible.texts)
                if (one := spent.counted).flops
            ]
            means = np.mean(counts, axis=0).tolist() if counts else []
            yield law.model_copy(update={"counted": [*map(round_number, means)]})

    def _job(self, spot: Spot) -> dict[str, Plain]:
        """Return what a process is told to play, see `simfed.flower.forge.play`."""
        return {
            "folder": str(self._folder.resolve()),
            "overrides": dict(spot.settings),
            "groups": spot.deal(),
        }

    def _play(self, number: int) -> bool:
        """Make a play and keep its messages, and return whether it got to its end.

        The first message of each type and texts began its process.
        """
        spot = self.spots[number]
        again = ", again" if number in self._times else ""
        self._tell(f"play {number + 1}: {spot.changes}{again}")
        said = self._forge.play(self._job(spot))
        if said.error and not again:
            self.failed[number] = said.error
        if said.error:
            return False
        config, rows = {**self.config, **spot.settings}, []
        begun: set[tuple[object, ...]] = set()
        for visible, spent, exchange in said.messages:
            kind = visible.message_type, *sorted(visible.texts.items())
            rows.append(
                MessageRow(
                    play=number,
                    visible=visible,
                    run_config=config,
                    nodes=spot.nodes,
                    work_s=max(spent.work_s, 1e-9),
                    waited_s=spent.waited_s,
                    first=kind not in begun,
                    round=exchange,
                )
            )
            begun.add(kind)
        self._times[number].append(rows)
        return True

    def _apart(self, number: int) -> float:
        """Return the difference of a play's two least times, in its worst kind.

        It is infinite for one that was made once.
        """
        worst = 0.0
        for rows in _list_heavy_kinds(self.rows(number)):
            times = np.sort(np.sum([row.repeats for row in rows], axis=0))
            worst = max(worst, times[1] / times[0] - 1 if len(times) > 1 else math.inf)
        return worst


def _list_heavy_kinds(rows: Sequence[MessageRow]) -> list[list[MessageRow]]:
    """Return the messages of each kind with much of the work.

    First ones are left out where there are others.
    """
    total_s = sum(row.work_s for row in rows)
    kinds = group_kinds(rows).values()
    heavy = [
        kind for kind in kinds if sum(r.work_s for r in kind) >= _LEAST_SHARE * total_s
    ]
    return [[row for row in kind if not row.first] or kind for kind in heavy]


def _is_number(value: Plain) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def list_numbers(
    config: Mapping[str, Plain], groups: Sequence[NodeGroup]
) -> list[Setting]:
    """Return what may be a size: positive numbers of the run's and the nodes' settings.

    Args:
        config: of the run.
        groups: the nodes' configurations.
    """
    own = [(name, False) for name, value in config.items() if _is_number(value)]
    of_nodes = {
        n: None
        for g in groups
        for n, value in g.node_config.items()
        if _is_number(value)
    }
    return [*own, *((name, True) for name in of_nodes)]


def probe(
    plays: PlayLog,
    nodes: int,
    overrides: Mapping[str, Plain],
    groups: Sequence[NodeGroup],
    numbers: Sequence[Setting],
) -> dict[str, str]:
    """Play an app with sizes that tell how its messages grow.

    Args:
        plays: makes and keeps plays.
        nodes: of the smallest play.
        overrides: what the user has set, which stays as it is where it is no size.
        groups: the nodes' configurations.
        numbers: what to vary, of `list_numbers`.

    Returns:
        What each number turned out to be: `SIZE`, `COUNT`, `NOTHING`, or why that is
            unknown.

    Raises:
        RunFailed: the first play failed.
    """
    config = plays.config
    lowered = {
        key: MOST_ROUNDS
        for key, value in config.items()
        if "round" in key.lower() and _is_number(value) and value > MOST_ROUNDS
        if key not in overrides
    }
    base = Spot(nodes, {**overrides, **lowered}, tuple(groups), f"{nodes:,} nodes")
    if plays.add(base) is None:
        why = plays.failed[0]
        raise RunFailed(
            "the app cannot be measured, as its first play, of "
            f"{nodes:,} nodes (--nodes), failed: {why}"
        )
    found: dict[str, str] = {}
    tried: dict[Setting, int] = {}
    for setting in numbers:
        now = base.read(setting, config)
        for value in [2] if setting[0] in lowered else _list_first_tries(now):
            number = plays.add(base.move(setting, value))
            if number is not None:
                tried[setting] = number
                break
        else:
            found[setting[0]] = f"unknown: {plays.failed[len(plays.spots) - 1]}"
    plays.settle([0, *tried.values()])
    near = far = replace(base, nodes=2 * nodes)
    more = [
        replace(base, nodes=m * nodes, changes=f"{m * nodes:,} nodes") for m in (2, 4)
    ]
    sizes = 0
    for setting, number in tried.items():
        now, second = (
            spot.read(setting, config) for spot in (base, plays.spots[number])
        )
        third = (
            config[setting[0]] if setting[0] in lowered else _choose_third(now, second)
        )
        spot = base.move(setting, third)
        verdict = _judge(plays, number)
        if verdict == NOTHING and isinstance(now, int) and now >= 4:
            # twice a batch may be as fast, and a quarter slow
            another = plays.add(spot)
            if another is not None:
                plays.settle([another])
                verdict = _judge(plays, another)
        found[setting[0]] = verdict
        if verdict == SIZE:
            sizes += 1
            more.append(spot)
            near, far = near.move(setting, third), far.move(setting, second)
    if sizes:
        more.append(replace(near, changes="all sizes at once"))
    if sizes > 1:  # sizes that multiply show on both sides
        more.append(replace(far, changes="all sizes at once, on the other side"))
    plays.settle([number for spot in more if (number := plays.add(spot)) is not None])
    return found


def _list_first_tries(value: float) -> list[float]:
    """Return other values of a number, the one to try first."""
    if isinstance(value, float):
        return [value / 2, value * 2]
    return [2 * value, value // 2] if value > 1 else [2 * value]


def _choose_third(now: float, second: float) -> float:
    """Return a value on the other side, a quarter as much.

    Four times where there is none.
    """
    if isinstance(now, float):
        return now * 2 if second < now else now / 2
    if second < now:
        return now * 2
    return max(1, now // 4) if now > 1 else 4 * now


def _judge(plays: PlayLog, number: int) -> str:
    """Return the role of a number that was varied alone.

    Args:
        plays: with the first one, 0.
        number: of the play that varies it.
    """
    base, other = plays.rows(0), plays.rows(number)
    for rows in _list_heavy_kinds([*base, *other]):
        pair = [[row for row in rows if row.play == play] for play in (0, number)]
        if all(pair) and differ(*pair):
            return SIZE
    return NOTHING if len(base) == len(other) else COUNT
