"""docs/validation.md, written from the rows of all sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ledger import FITTED, HELD_OUT, PAGE, STATED, Row, median_error, read_rows

from simfed.study.orders import Orders, compare_orders

_SHOWN_ROWS = 24


class Source(NamedTuple):
    """What the page says of a source beside its rows."""

    title: str
    script: str
    citation: str
    inputs: str
    fails: str


SOURCES = {
    "grid5000": Source(
        "Jetson boards at Grid'5000",
        "grid5000_runs",
        "[tuananhngh/FL-G5K-EnergyConsumption]"
        "(https://github.com/tuananhngh/FL-G5K-EnergyConsumption): ten Jetson AGX Xavier, "
        "Flower, ResNet-18 on CIFAR-10; makespans of 63 runs, rounds and joules of "
        "60, and Flower's logs of six more",
        "Makespans: fitted on one run of 1 and one of 5 local epochs for each of four strategies; "
        "the other 55 runs, among them all of 3 epochs, are held out. Joules: watts are fitted on "
        "two runs of fedavg, seconds on two runs of each strategy. Twins: from the first tenth of "
        "each run's rounds (three at least) `simfed twin` predicts the rest; intervals are 90 %. "
        "Six older runs have Flower's logs of six clients; of the others whole rounds are known.",
        "An easy case, bound by computing: boards are alike, links hardly matter, and seconds are "
        "linear in the epochs. Joules miss by 3 to 14 % with `fedconstraints`, whose step draws "
        "other watts than fedavg's, on which watts were fitted. Twins come out long, by 0.6 % on "
        "average: rounds grow shorter for longer than the part of the log that is left out as "
        "settling. That half of the log is left out, and not its first round alone, was chosen "
        "here: with the first alone 44 of 60 intervals held. One of the six (run 2) is 23 % off: "
        "its second round, one of the two that were fitted, took 40 s, the later ones 29 s.",
    ),
    "openfl": Source(
        "OpenFL over a throttled line",
        "openfl_bandwidth",
        "[OpenFL](https://github.com/securefederatedai/openfl)'s documentation, a page "
        "on bandwidth of February 2023 (commit 4010f5aa, `docs/perf_profile_bw.rst` and its "
        "table): two to eight envoys on one machine, all transfers behind one `tc htb` of 32 to "
        "1,024 kB/s",
        "Three numbers are fitted on six cells (two and eight envoys): seconds per execution, "
        "seconds per envoy, bytes per envoy and round (1.66 MB; the model with Adam's moments is "
        "0.51 MB). The network decides: from the fastest line to the slowest an execution "
        "takes three to twenty times as long, and sharing one line is what predicts it.",
        "At 32 kB/s with three or more envoys reality takes 1.9 to 2.6 times as long as "
        "predicted: between two and three envoys it jumps by a factor of 2.5, which no sharing "
        "explains (the table does not say whether connections broke and began anew). One "
        "repetition of each cell, so the scatter of reality is not known.",
    ),
    "safa": Source(
        "SAFA's rounds",
        "safa_rounds",
        "W. Wu et al., IEEE Transactions on Computers 70(5), 2021, and its code, "
        "[wingter562/SAFA](https://github.com/wingter562/SAFA): the average FedAvg round of two "
        "tasks",
        "Nothing is fitted: speeds as its authors drew them, links, limits and crashes as its "
        "settings say. Its clock adds, in every round, the time to distribute the models of all "
        "rounds so far; the numbers beside the published ones do the same, and the corrected "
        "round stands in the last column.",
        "Three cells of the CNN (few clients, few crashes) depend on which clients were drawn, "
        "which is not published: there the cells differ. Where clients nearly always reach the "
        "limit, all digits agree, which checks the accounting and no model of reality: the "
        "published numbers are a simulation's too.",
    ),
    "mcmahan": Source(
        "McMahan's rounds",
        "mcmahan_rounds",
        "B. McMahan et al., AISTATS 2017, table 2: rounds until a CNN is right on 99 % of MNIST's "
        "test images, ten of 100 clients asked, data evenly dealt",
        "Nothing is fitted. The source takes the best learning rate of a grid; the note of each "
        "row says which rates and how many seeds were played here.",
        "The source's table has more rows; those are here whose plays came to their end "
        "(`analysis/others/mcmahan/curves.csv`). Where no interval stands, rates and seeds were "
        "too few for one. 99 % lies where the curve is flat: one more right image of ten thousand "
        "moves the crossing by a round or so. B = 50 takes half as many rounds again as published; "
        "whether another rate would do better was not tried.",
    ),
    "fedcs": Source(
        "FedCS's clients per round",
        "fedcs_rounds",
        "T. Nishio and R. Yonetani, ICC 2019: rounds of three minutes in one LTE cell of a "
        "thousand clients, a hundred of which say what they can do; a model of 18.3 MB; in a "
        "greedy order (FedCS) 7.7 clients take part, in a random one (FedLim) 3.3. Typed in from "
        "memory",
        "Nothing is fitted. The text gives the channel, the model, what clients own and how fast "
        "they are; that distances are uniform along the radius, and that FedLim adds random "
        "clients as long as the deadline holds, is a reading: with clients uniform over the cell's "
        "area the mean rate would be 0.3 Mbps, with its hundred clients in parallel FedLim would "
        "fit fifteen.",
        "Both numbers are a simulation's too. Who takes part is decided by the selection's "
        "arithmetic, which is the source's; simfed then plays the uploads, which share the cell's "
        "airtime, and every round ended in time. It has no multicast, so the time to distribute "
        "stands in that arithmetic alone.",
    ),
    "production": Source(
        "Sessions in production",
        "production_sessions",
        "K. Bonawitz et al., MLSys 2019, table 1: how 1.47 million sessions ended where 130 % of "
        "the clients needed are asked",
        "The share of interrupted sessions is the scenario's probability of failing; the other "
        "two shares follow from mode `first`.",
        "1/1.3 = 76.9 % is arithmetic: what it shows is that the mode's accounting is the "
        "production system's.",
    ),
    "staleness": Source(
        "Staleness of asynchronous SGD",
        "staleness_theory",
        "the product form of closed queueing networks, as in "
        "[arXiv 2502.08206](https://arxiv.org/abs/2502.08206) and "
        "[arXiv 2405.00017](https://arxiv.org/abs/2405.00017) for asynchronous SGD: eight clients "
        "with exponential service",
        "Nothing is fitted: a theorem. Intervals are 95 %, from batch means of 19,000 merges.",
        "Of 24 intervals one or two may miss by chance.",
    ),
}

_HEAD = """\
# Validation against other people's numbers

{answer}

Made by `python analysis/others/others.py page` from the rows in
[`analysis/others/`](../analysis/others/README.md): one folder per source, with its scenario and the
script that plays it. Nobody's files are copied: published figures are typed in, or read from a
checkout that you name. simfed against deployments of its own is
[another page](../analysis/REAL.md).

- **fitted**: simfed's inputs were taken from this very number, so its error says nothing;
- **held out**: inputs were taken from other numbers of the same source;
- **stated**: inputs are what the source says of itself; nothing was fitted.

"""

_TAIL = """
## Not played

- **McMahan et al. 2017**, the rows of table 2 that are not above: E = 20 takes four times as long
  as E = 5, whose round takes half a minute of one core.
- **FedScale, Oort, REFL, FLASH, Papaya**: their traces or fleets are not public, or not at hand.
"""


def page_text() -> str:
    """The whole page, from the kept rows of those sources that have some."""
    kept = {name: read_rows(name) for name in SOURCES if _rows_file(name).is_file()}
    summary = _table(
        ("source", "numbers", "use", "median error", "largest", "in their interval"),
        [line for name, rows in kept.items() for line in _summary(name, rows)],
    )
    sections = [_section(name, rows) for name, rows in kept.items()]
    return _HEAD.format(answer=_answer(kept)) + summary + "\n" + "\n".join(sections) + _TAIL


def write_page() -> Path:
    """Writes the page; returns its path."""
    PAGE.write_text(page_text(), encoding="utf-8")
    return PAGE


def _answer(kept: dict[str, list[Row]]) -> str:
    """The first sentence of the page."""
    judged = [row for rows in kept.values() for row in rows if row.use != FITTED]
    held_out = [row for row in judged if row.use == HELD_OUT]
    near = sum(abs(row.error) <= 0.05 for row in held_out)
    return (
        f"{len(judged)} numbers of {len(kept)} sources (measured, simulated by others, or proved) "
        f"were predicted without having been fitted. Of the {len(held_out)} that others measured "
        f"and that were held out, {near} are met within 5 % (median "
        f"{100 * median_error(held_out):.1f} %, largest error "
        f"{100 * max(abs(row.error) for row in held_out):.0f} %). Where simfed fails stands under "
        "each source."
    )


def _rows_file(name: str) -> Path:
    return PAGE.parents[1] / "analysis" / "others" / name / "rows.csv"


def _summary(name: str, rows: Sequence[Row]) -> Iterable[tuple[str, ...]]:
    """A line per unit and use."""
    anchor = SOURCES[name].title.lower().replace("'", "").replace(" ", "-")
    for use in (HELD_OUT, STATED, FITTED):
        for unit in dict.fromkeys(row.unit for row in rows):
            chosen = [row for row in rows if row.use == use and row.unit == unit]
            if not chosen:
                continue
            covered = [row.covered for row in chosen if row.covered is not None]
            yield (
                f"[{SOURCES[name].title}](#{anchor})",
                f"{len(chosen)} ({unit})",
                use,
                f"{100 * median_error(chosen):.2g} %",
                f"{100 * max((row.error for row in chosen), key=abs):+.2g} %",
                f"{sum(covered)} of {len(covered)}" if covered else "–",
            )


def _section(name: str, rows: Sequence[Row]) -> str:
    source = SOURCES[name]
    lines = [
        f"## {source.title}",
        f"**Source.** {source.citation}.",
        f"**Inputs.** {source.inputs}",
        f"**Where it fails.** {source.fails}",
    ]
    shown = rows if len(rows) <= _SHOWN_ROWS else _spread(rows, _SHOWN_ROWS)
    if name == "grid5000":
        lines += _orders(rows)
    header = ("quantity", "published", "simfed", "error", "use", "interval")
    notes = any(row.note for row in rows)
    cells = [
        (
            row.quantity,
            _number(row.published, row.unit),
            _number(row.simfed, row.unit),
            f"{100 * row.error:+.2f} %",
            row.use,
            "–" if row.low is None or row.high is None else f"{row.low:.4g} … {row.high:.4g}",
            *((row.note,) if notes else ()),
        )
        for row in shown
    ]
    if len(shown) < len(rows):
        lines.append(
            f"{len(shown)} of the {len(rows)} rows, evenly picked; all are in "
            f"[rows.csv](../analysis/others/{name}/rows.csv)."
        )
    return "\n\n".join(lines) + "\n\n" + _table((*header, *(("note",) if notes else ())), cells)


def _orders(rows: Sequence[Row]) -> Iterable[str]:
    """Orders of configurations by their held-out makespans: all, and those of equal epochs."""
    simulated: dict[str, list[float]] = {}
    real: dict[str, list[float]] = {}
    for row in rows:
        what, _, configuration = row.quantity.rpartition(", ")[0].partition(", ")
        if what == "makespan" and row.use == HELD_OUT:
            simulated[configuration] = [row.simfed]
            real.setdefault(configuration, []).append(row.published)
    orders = compare_orders(simulated, real)
    yield (
        f"**Orders** of mean makespans, strategies by epochs. {_told(orders)} Epochs make most of "
        "that order; strategies of equal epochs are within 2 % of one another, and reality "
        "separates few of them."
    )
    for epochs in (1, 3, 5):
        chosen = {name: values for name, values in real.items() if name.endswith(f"E = {epochs}")}
        yield f"- E = {epochs} alone: {_told(compare_orders(simulated, chosen))}"


def _told(orders: Orders) -> str:
    return "; ".join(orders.sentences()) + "."


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


def _number(value: float, unit: str) -> str:
    unit = unit.partition(",")[0]
    if unit == "J":
        return f"{value / 1e3:,.1f} kJ"
    digits = f"{value:,.2f}" if unit in ("s", "%") else f"{value:,.4g}"
    return f"{digits} {unit}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
