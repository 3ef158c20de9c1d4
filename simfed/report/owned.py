"""Data per owner, in a terminal, on a page and as a picture.

What is shown is a mapping, `owned` in runs' manifests; `simfed data show` makes the
same: `clients` (how many), `samples` (least, median, most), `names` (of classes),
`rows` (client, owner, samples, samples per class; at most some), `public` and `unowned`
(samples of the server and of nobody).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simfed.ground.plain import Plain
from simfed.report.panels import PanelTable
from simfed.report.pictures import build_figure, picture_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BARS = "▁▂▃▄▅▆▇█"
_OWNER_WIDTH = 20
_MOST_NAMED = 25
"""Clients below which a picture names each."""
_MOST_LABELS = 20
"""Classes of which all are told how often they are there; of more, the largest and the
smallest."""


def draw_bars(counts: Sequence[int]) -> str:
    """Return one character per class, as high as its samples.

    The client's largest class is the highest; `·` stands for none.

    Args:
        counts: samples of each class.

    >>> draw_bars([0, 1, 7])
    '·▂█'
    """
    most = max(counts, default=0)
    return "".join(
        _BARS[-(-8 * count // most) - 1] if count else "·" for count in counts
    )


def _format_classes(owned: Mapping[str, Plain]) -> str:
    """Return the heading of the classes' bars; empty where there are no classes."""
    names = owned["names"]
    return f"classes {names[0]} … {names[-1]}" if names else ""


def _describe_sizes(owned: Mapping[str, Plain]) -> list[str]:
    """Return one to three clauses: who owns how much, and what nobody owns."""
    least, median, most = owned["samples"]
    clauses = [
        f"{owned['clients']:,} clients own {least:,} to {most:,} samples, median "
        f"{median:,}"
    ]
    if left := owned.get("unowned", 0):
        clauses.append(f"{left:,} training samples are nobody's")
    beside = []
    if owned["public"]:
        beside.append(f"{owned['public']:,} public samples at the server")
    if len(owned["rows"]) < owned["clients"]:
        beside.append(f"shown are {len(owned['rows'])} clients, by size")
    return [*clauses, "; ".join(beside)] if beside else clauses


def format_label_lines(labels: Sequence[tuple[str, int, int]]) -> list[str]:
    """Return lines of at most 80 characters: how often each class is there.

    Args:
        labels: the classes, each with its training and its test samples.

    >>> format_label_lines([("no", 3, 1), ("yes", 1, 1)])
    ['labels: no: 3 (75 %), yes: 1 (25 %)',
    'always no: right for 50 % of the test samples']
    """
    if len({n for _, n, _ in labels}) == 1:
        return [f"labels: {len(labels)}, each of {labels[0][1]:,} training samples"]
    rows = sum(count for _, count, _ in labels)
    most = max(labels, key=lambda label: label[1])
    shown = labels
    if len(labels) > _MOST_LABELS:
        shown = sorted(labels, key=lambda label: -label[1])
    told = [
        f"{_shorten_name(name)}: {n:,} ({_format_share(n / rows)})"
        for name, n, _ in shown
    ]
    if len(told) > _MOST_LABELS:
        half = _MOST_LABELS // 2
        told = [*told[:half], "…", *told[-half:]]
    right = _format_share(most[2] / sum(count for *_, count in labels))
    return wrap_lines(
        [
            f"labels: {', '.join(told)}",
            f"always {_shorten_name(most[0])}: right for {right} of the test samples",
        ]
    )


def _format_share(share: float) -> str:
    """Return a share in percent, with three digits."""
    return f"{100 * share:.3g} %"


def wrap_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines, those of more than 80 characters broken and indented."""
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, 80, subsequent_indent="  ")
    ]


def format_owned_lines(
    owned: Mapping[str, Plain], notes: Sequence[str] = ()
) -> list[str]:
    """Return lines of at most 80 characters: sizes, notes, then a client in each.

    Args:
        owned: see the module.
        notes: lines that stand between.
    """
    named = any(owner for _, owner, *_ in owned["rows"])
    owner_head = f"  {'owner':<{_OWNER_WIDTH}}" if named else ""
    lines = [
        *_describe_sizes(owned),
        *notes,
        f"{'client':>8}{owner_head}  {'samples':>8}  {_format_classes(owned)[:38]}",
    ]
    for client, owner, samples, counts in owned["rows"]:
        who = f"  {_shorten_name(owner):<{_OWNER_WIDTH}}" if named else ""
        lines.append(f"{client:>8}{who}  {samples:>8,}  {draw_bars(counts)}".rstrip())
    return lines


def _shorten_name(name: str) -> str:
    """Return a name of at most `_OWNER_WIDTH` characters."""
    return name if len(name) <= _OWNER_WIDTH else name[: _OWNER_WIDTH - 1] + "…"


def build_owned_table(label: str, owned: Mapping[str, Plain]) -> PanelTable:
    """Return the clients' data as a table of a page.

    It has no bars where there are no classes.

    Args:
        label: the run's name.
        owned: see the module.
    """
    header = ["client", "owner", "samples"]
    note = f"{'; '.join(_describe_sizes(owned))}."
    if classes := _format_classes(owned):
        header.append(classes)
        note = f"{note} Bars are classes beside the client's largest one."
    rows = [
        (str(client), str(owner), f"{samples:,}", draw_bars(counts))[: len(header)]
        for client, owner, samples, counts in owned["rows"]
    ]
    return PanelTable(f"Who owns what, {label}", tuple(header), rows, (2,), note)


@picture_style()
def draw_owned_figure(
    samples: Any,
    classes: Any,
    names: Sequence[str],
    width_in: float = 7.0,
    owners: Sequence[str] = (),
) -> Figure:
    """Return clients from the smallest to the largest: samples, and classes' shares.

    Args:
        samples: (clients,) how many samples each owns.
        classes: (clients, classes), without columns where there are no classes.
        names: of the classes.
        width_in: width in inches.
        owners: the name of the owner that each client is; empty: their numbers stand
            for them.
    """
    order = np.argsort(samples, kind="stable")
    shown = [
        _shorten_name(owners[i] if owners else str(i)) for i in order[:_MOST_NAMED]
    ]
    named = len(order) == len(shown)
    slanted = named and max(map(len, shown)) * len(shown) > 10 * width_in
    has_classes = classes.shape[1] > 0
    figure, axes = build_figure(
        width_in,
        [1.3, 1.9] if has_classes else [1.6],
        gap_in=0.12,
        left_in=0.75,
        bottom_in=0.42 + 0.04 * slanted * max(map(len, shown)),
    )
    places = np.arange(len(order) + 1)
    axes[0].stairs(samples[order], places, fill=True, color="#4477aa")
    axes[0].set_ylabel("samples")
    # then the corner is not free
    beside = has_classes and float(np.quantile(samples, 0.3)) > 0.6 * samples.max()
    axes[0].set_ylim(0, (1.6 if beside else 1.05) * samples.max())
    axes[-1].set_xlim(0, len(order))
    ticks = axes[0].get_yticks()
    axes[0].set_yticks([tick for tick in ticks if 0 <= tick <= samples.max()])
    axes[-1].set_xlabel(f"{'owners' if owners else 'clients'}, by size")
    if named:
        slant: Any = {}
        if slanted:
            slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        axes[-1].set_xticks(places[:-1] + 0.5, shown, **slant)
        for axis in axes:
            axis.tick_params(axis="x", length=0)
    if has_classes:
        shares = classes[order] / np.maximum(1, samples[order])[:, None]
        most = float(shares.max())
        image = axes[1].imshow(
            shares.T,
            aspect="auto",
            cmap="Blues",
            vmin=0,
            vmax=most,
            interpolation="nearest",
            extent=(0, len(order), classes.shape[1] - 0.5, -0.5),
        )
        axes[1].set_ylabel("class")
        if len(names) == classes.shape[1]:
            step = -(-len(names) // 12)
            short = [name[:12] for name in names[::step]]
            axes[1].set_yticks(range(0, len(names), step), short)
        # free: sizes rise to the right
        corner = axes[0].inset_axes((0.02, 0.78, 0.22, 0.06))
        bar = figure.colorbar(
            image, cax=corner, orientation="horizontal", ticks=[0, most]
        )
        bar.ax.set_xticklabels(["0 %", f"{100 * most:.0f} %"], fontsize=6)
        bar.ax.set_title(
            "class's share of the client's samples", fontsize=6, loc="left", pad=2
        )
        bar.ax.tick_params(length=0, pad=1)
    return figure
