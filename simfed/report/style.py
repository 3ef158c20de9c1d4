"""The colours, marks and names of simfed's pictures, the same in every medium.

`phase` and `looks` give kinds of intervals their look, `choose_arm_colours` and
`choose_arm_shapes` strategies theirs. Everything is by name: what is drawn beside it
moves only those that have no colour of their own.

One phase has one colour in the Gantt chart, the trace, the HTML report and any later
figure. The hues are Okabe and Ito's palette (M. Okabe, K. Ito, "Color Universal
Design", 2008), which stays distinct under the common colour-vision deficiencies; what
carries no work (waiting, offline, lost) is told apart by grey and hatching as well, so
that a print without colour still reads.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from simfed.compress.choice import Choice


def make_label(name: str) -> str:
    """Return a name as a legend's label.

    Matplotlib leaves out those that begin with `_`.
    """
    return f" {name}" if name.startswith("_") else name


@dataclass(frozen=True, slots=True)
class Phase:
    """The look of one kind of interval, and its name in a legend."""

    name: str
    """The kind, as spans have it."""
    label: str
    """The kind for people."""
    colour: str
    """`#RRGGBB`, in print."""
    hatch: str = ""
    """Matplotlib's hatch: a sign of Plotly's patterns, repeated."""
    on_screen: str = ""
    """The colour on a page that may be light or dark."""

    @property
    def pattern(self) -> str:
        """Plotly's pattern shape; empty: none."""
        return self.hatch[:1]

    @property
    def web(self) -> str:
        """The colour on a page."""
        return self.on_screen or self.colour


PHASES: dict[str, Phase] = {
    p.name: p
    for p in (
        Phase("download", "download", "#56B4E9"),
        Phase("training", "training", "#009E73"),
        Phase("compression", "compression", "#E69F00"),
        Phase("upload", "upload", "#0072B2"),
        Phase("waiting", "waiting", "#D9DBDE", on_screen="rgba(128,136,150,0.32)"),
        Phase("offline", "offline", "#8C8C8C", hatch="////"),
        Phase("dropped", "dropped", "#D55E00", hatch="xxxx"),
        Phase("server", "server work", "#CC79A7"),
        Phase("absent", "nobody was there", "#8C8C8C", hatch="\\\\\\\\"),
    )
}

WORK = {
    p.name: p
    for p in (
        Phase("inference", "inference", "#F0E442"),
        Phase("distillation", "distillation", "#3F007D"),
        Phase("auxiliary", "auxiliary work", "#7F3B08"),
        Phase("logits", "logits", "#4D4D4D"),
        Phase("frozen", "frozen", "#A8C7DC", hatch="////"),
        Phase("timeout", "waits to send again", "#B9A9C9", hatch="...."),
        Phase("start", "start of a process", "#5E5E47", hatch="\\\\\\\\"),
        Phase("handling", "handling messages", "#5E5E47", hatch="----"),
        Phase("evaluation", "evaluation", "#B15928"),
        Phase("losses", "losses measured by clients", "#A6761D", hatch="...."),
        Phase("host", "host time", "#5E5E47", hatch="----"),
    )
}
"""Further kinds of a client's local work, what holds it up, and what real hosts take
beside it."""

_OWN_COLOURS = ("#882255", "#004529", "#CC6677", "#6B6B00", "#DDCC77", "#7A0177")
_OWN_HATCHES = ("", "\\\\\\\\", "....", "----")
"""Looks of kinds that a method names itself."""

SERIES_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C6BB1",
    "#7F7F7F",
)
"""Colours of series without a meaning of their own (runs, prototypes, arms), in this
order."""

SERIES_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""A second sign beside the colour, in Plotly's names."""

ARM_COLOURS = (
    "#2F2FB5",
    "#C2188F",
    "#4F6A0A",
    "#6B3A2A",
    "#B5B34F",
    "#A45AD8",
    "#D9968D",
    "#7D1B55",
)
"""Colours of strategies and policies: none of them near a phase's, and apart from one
another, also for eyes that see fewer colours."""

_ARM_COLOURS = dict(
    zip(
        ("top-k", "random-k", "periodic-k", "exp3", "ascend"), ARM_COLOURS, strict=False
    )
)
"""Colours by name, so that a strategy or policy has one colour whatever is drawn beside
it."""

ARM_MARKS = {"top-k": "T", "random-k": "R", "periodic-k": "P"}
"""A letter for each built-in strategy, where there is no room for its name."""

ARM_SHAPES = (
    ("^", "triangle-up"),
    ("o", "circle"),
    ("s", "square"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
    ("*", "star"),
    ("<", "triangle-left"),
    (">", "triangle-right"),
    ("h", "hexagon"),
    ("d", "diamond-tall"),
)
"""Marks of strategies: (Matplotlib's name, Plotly's name); the built-in ones have the
first."""

FONT_FAMILY = "DejaVu Sans"
"""Comes with Matplotlib, so that a picture looks the same on every machine."""


def phase(name: str) -> Phase:
    """Return the look of a phase.

    A kind that a method names itself always gets the same one by its name.

    >>> phase("upload").colour, phase("digest") == phase("digest")
    ('#0072B2', True)
    """
    return looks([name])[name]


def looks(kinds: Iterable[str]) -> dict[str, Phase]:
    """Return a look for each kind of interval of one picture.

    Of two own kinds whose names ask for the same one, the first in the alphabet has it.

    >>> found = looks(["digest", "revisit", "tune"]).values()
    >>> len({(look.colour, look.hatch) for look in found})
    3
    """
    named = list(dict.fromkeys(kinds))
    built_in = {**PHASES, **WORK}
    every = [(colour, hatch) for hatch in _OWN_HATCHES for colour in _OWN_COLOURS]
    further: dict[str, Phase] = {}
    for name in sorted(set(named) - set(built_in)):
        used = {(look.colour, look.hatch) for look in further.values()}
        first = zlib.crc32(name.encode()) % len(every)
        order = [*every[first:], *every[:first]]
        look = next((look for look in order if look not in used), order[0])
        further[name] = Phase(name, name, *look)
    return {name: built_in.get(name) or further[name] for name in named}


def choose_arm_colours(arms: Iterable[str]) -> dict[str, str]:
    """Return a colour for each arm.

    The built-in ones always keep theirs, others take what is left: all, where none of
    the built-in ones is there. Levels are shades of a strategy's colour, the same for
    each strategy; the lightest keeps least.

    >>> choose_arm_colours(["random-k", "qsgd"])
    {'random-k': '#C2188F', 'qsgd': '#A45AD8'}
    >>> choose_arm_colours(["slow", "fast"])
    {'slow': '#2F2FB5', 'fast': '#C2188F'}
    >>> choose_arm_colours(["top-k@500", "top-k@1000", "top-k@5000"])
    {'top-k@500': '#9797da', 'top-k@1000': '#2F2FB5', 'top-k@5000': '#18185b'}
    """
    named = list(dict.fromkeys(arms))
    colours = _choose_hues(Choice.of(arm).strategy for arm in named)
    depths = {
        arm: 0.5 if rank is None else rank for arm, rank in rank_levels(named).items()
    }
    return {
        arm: _shade_colour(colours[Choice.of(arm).strategy], depths.get(arm, 0.5))
        for arm in named
    }


def rank_levels(arms: Iterable[str]) -> dict[str, float | None]:
    """Return the rank of each arm's level among all: 0 keeps least, 1 keeps most.

    Arms without a level are left out; None: there is only one level.

    >>> rank_levels(["top-k@5%", "top-k@1%", "random-k@5%", "dense"])
    {'top-k@5%': 1.0, 'top-k@1%': 0.0, 'random-k@5%': 1.0}
    """
    levels = {arm: level for arm in arms if (level := Choice.of(arm).level) is not None}
    ordered = sorted(set(levels.values()), key=lambda level: level.order)
    last = len(ordered) - 1
    return {
        arm: ordered.index(level) / last if last else None
        for arm, level in levels.items()
    }


def _shade_colour(colour: str, depth: float) -> str:
    """Return a colour made lighter or darker.

    Args:
        colour: `#RRGGBB`.
        depth: 0 is halfway to white, 1 halfway to black, 0.5 leaves it as it is.
    """
    if depth == 0.5:
        return colour
    towards, share = (255, 0.5 - depth) if depth < 0.5 else (0, depth - 0.5)
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(
        f"{round(part + (towards - part) * share + 0.01):02x}" for part in parts
    )


def _choose_hues(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each strategy, the built-in ones' own where one is there."""
    named = dict.fromkeys(names)
    if not named.keys() & _ARM_COLOURS.keys():  # nobody claims one: the most unlike
        return dict(zip(named, itertools.cycle(ARM_COLOURS), strict=False))
    free = ARM_COLOURS[len(_ARM_COLOURS) :]
    absent = (colour for arm, colour in _ARM_COLOURS.items() if arm not in named)
    others = itertools.cycle((*free, *absent))
    return {arm: _ARM_COLOURS.get(arm) or next(others) for arm in named}


def choose_arm_shapes(arms: Iterable[str]) -> dict[str, tuple[str, str, float]]:
    """Return (Matplotlib's marker, Plotly's symbol, share of white) of each arm.

    The shape is the strategy, of which the built-in ones always keep theirs; the
    filling is the level, white for the one that keeps least. Strategies come in one
    order.

    >>> choose_arm_shapes(["random-k", "qsgd", "top-k@5000", "top-k@500"])["top-k@5000"]
    ('^', 'triangle-up', 0.0)
    """
    played = list(dict.fromkeys(map(str, arms)))
    order, ranks = {codec: i for i, codec in enumerate(ARM_MARKS)}, rank_levels(played)

    def place(arm: str) -> tuple[int, str, float]:
        codec = Choice.of(arm).strategy
        return order.get(codec, len(order)), codec, ranks.get(arm) or 0.0

    played.sort(key=place)
    codecs = dict.fromkeys(Choice.of(arm).strategy for arm in played)
    others = itertools.cycle(ARM_SHAPES[len(order) :])
    shapes = {c: ARM_SHAPES[order[c]] if c in order else next(others) for c in codecs}
    return {
        arm: (*shapes[Choice.of(arm).strategy], 1 - (ranks.get(arm) or 0.0))
        for arm in played
    }
