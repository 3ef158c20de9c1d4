r"""How far off a Flower app's charges are: laws of `simfed flower measure`, and metered
computing.

    python analysis/flower_laws.py measure \
        analysis/flower_apps/* scenarios/flower/digits
    python analysis/flower_laws.py table

`measure` finds the laws of each app, then plays it with sizes that no play had, inside
of those that plays had: half as many nodes again with smaller sizes, three times the
nodes, and larger sizes. Each play is held against its laws and against metered
computing: seconds per kind of message, and rounds (the longest of an exchange's
messages; the law's with scatter drawn per message). Seconds are those of the processor,
the least of two to five plays, so that other work on the machine shows little. Rows go
to `flower_laws.csv`, an app's earlier ones give way. `table` renews what
docs/flower-seconds.md shows.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pages import markdown, write_page

from simfed.device import DeviceSpec, Processor, build_processor, load_profile
from simfed.flower.computing import HostSpent
from simfed.flower.forge import Forge
from simfed.flower.laws import MessageRow
from simfed.flower.measuring import measure
from simfed.flower.metering import WorkCount
from simfed.flower.price import Price
from simfed.flower.probing import NodeGroup, PlayLog, Spot
from simfed.flower.workfile import SIZE, WorkFile
from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.scenario.fleet_file import Computing

ROWS = Path(__file__).parent / "flower_laws.csv"
PAGE = Path(__file__).parents[1] / "docs" / "flower-seconds.md"
PROFILE = "x86-2core-vm"
LEAST_SHARE, LEAST_ROUND_S = 0.05, 0.05
"""Kinds with less of the work, and rounds that are shorter, are not judged."""


class Row(NamedTuple):
    """One kind of message, or one round (`kind` round), of one play that no law had
    seen.
    """

    app: str
    play: str
    kind: str
    share: float
    messages: int
    measured_s: float
    law_s: float
    metered_s: float | None
    """None: metered computing refuses, or does not tell rounds apart."""
    refused: str = ""
    """Why metered computing refuses."""


def list_held_out(work: WorkFile, config: Mapping[str, Plain]) -> list[Spot]:
    """Return three plays with sizes that were not measured, inside those that were."""
    nodes, below, above = min(work.nodes), {}, {}
    common = {
        key: values[0]
        for key, values in work.run_config.items()
        if values[0] != config[key]  # lowered in all plays
    }
    for key, found in work.settings.items():
        if found == SIZE and key in work.run_config:
            values = work.run_config[key]
            below[key] = between(min(values), values[0])
            above[key] = between(values[0], max(values))
    groups = (NodeGroup(1, {}),)
    return [
        Spot(nodes + nodes // 2, {**common, **below}, groups, "smaller sizes"),
        Spot(3 * nodes, common, groups, "three times the nodes"),
        Spot(nodes + 1, {**common, **above}, groups, "larger sizes"),
    ]


def between(low: float, high: float) -> float:
    """Return a value between two, on their side of the middle where it is whole."""
    middle = float((low * high) ** 0.5)
    return middle if isinstance(low, float) else round(middle)


class Metered(NamedTuple):
    """What metered computing says of one kind of message."""

    message_type: str
    texts: dict[str, str]
    seconds: float | None
    """By the profile's laws; None: it refuses."""
    refused: str


def meter(folder: Path, play: Spot) -> list[Metered]:
    """A play priced by metered computing, in a process of its own.

    None where it failed.
    """
    job = json.dumps([str(folder), play.nodes, dict(play.settings)])
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        command = [sys.executable, __file__, "metered", job, out.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = out.read()
    return (
        [Metered(*kind) for kind in json.loads(text)]
        if done.returncode == 0 and text
        else []
    )


def print_metered(job: str, out: str) -> None:
    """The other end of `meter`."""
    from simfed.flower import run_folder
    from simfed.flower.messages import Mail
    from simfed.flower.work import Answer
    from simfed.scenario.fleet_file import FleetFile

    folder, nodes, overrides = json.loads(job)
    processor = build_processor(DeviceSpec(profile="p"), load_profile(PROFILE))
    sums: dict[str, float] = {}
    price = Price(Computing())

    def watch(mail: Mail, answer: Answer) -> None:
        visible = answer.visible
        key = json.dumps([visible.message_type, visible.texts], sort_keys=True)
        if key not in sums:  # the first of a process is not among the law's either
            sums[key] = 0.0
        else:
            sums[key] += price.price_code([], {}, answer.spent, processor).work_s

    fleet = FleetFile.model_validate(
        {
            "name": "metered",
            "clients": [{"count": nodes, "device": PROFILE}],
            "computing": "metered",
        }
    )
    # which refuses what it does not see enough of
    with contextlib.suppress(SimfedError):
        run_folder(folder, fleet, run_config=overrides, progress=False, watch=watch)
    kinds = []
    for key, seconds in sums.items():
        message_type, texts = json.loads(key)
        why = "" if seconds else "no operators of PyTorch"
        kinds.append(Metered(message_type, texts, None if why else seconds, why))
    Path(out).write_text(json.dumps(kinds), encoding="utf-8")


def compare(
    app: str,
    play: Spot,
    rows: Sequence[MessageRow],
    work: WorkFile,
    metered: Sequence[Metered],
) -> list[Row]:
    """What was measured of one play beside what is charged."""
    rows = [row for row in rows if not row.first]
    if not rows:
        return []
    computing = Computing.model_construct(kind="work", start="never")
    price = Price(computing, rows[0].run_config, play.nodes, work)
    nothing = HostSpent(WorkCount(), 0.0)
    total_s = sum(row.work_s for row in rows)
    factor = work.kernel.factor(host_of())
    kinds: dict[str, list[tuple[MessageRow, float]]] = defaultdict(list)
    rounds: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for number, row in enumerate(rows):
        charged, _ = price.price_message(row.visible, 0, nothing, None)
        noise, rng = charged.noise, Streams(0)("flower-laws", number)
        scattered_s = charged.work_s * (1.0 if noise is None else noise.factor(rng))
        kinds[work.find(row.visible.message_type, row.visible.texts).title].append(
            (row, charged.work_s)
        )
        rounds[row.round].append((row.work_s, scattered_s))
    result = []
    for title, pairs in kinds.items():
        alike = [kind for kind in metered if work.find(*kind[:2]).title == title]
        why = next((kind.refused for kind in alike if kind.refused), "")
        priced_s = None if why else sum(kind.seconds or 0.0 for kind in alike) or None
        measured_s = sum(row.work_s for row, _ in pairs)
        result.append(
            Row(
                app,
                play.changes,
                title,
                measured_s / total_s,
                len(pairs),
                measured_s,
                sum(law_s for _, law_s in pairs),
                priced_s and priced_s / factor,
                why,
            )
        )
    for messages in rounds.values():
        longest = max(measured_s for measured_s, _ in messages)
        if longest >= LEAST_ROUND_S:
            law_s = max(law_s for _, law_s in messages)
            result.append(
                Row(
                    app, play.changes, "round", 1.0, len(messages), longest, law_s, None
                )
            )
    return result


def measure_apps(folders: Sequence[Path]) -> None:
    """Measure apps and keep their rows, one app after another."""
    from simfed.flower.loading import describe

    for folder in folders:
        config = describe(folder, {})[1]
        print(f"== {folder.name}", file=sys.stderr, flush=True)
        tell = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        measured = measure(folder, tell=tell)
        for law in measured.work.kinds:
            print(
                f"{law.title}: {law.seconds} {law.error}", file=sys.stderr, flush=True
            )
        new = []
        with Forge(folder) as forge:
            plays = PlayLog(forge, folder, config, tell)
            for spot in list_held_out(measured.work, config):
                number = plays.add(spot)
                if number is None:
                    print(plays.failed, file=sys.stderr)
                    continue
                plays.settle([number])
                rows, metered = plays.rows(number), meter(folder, spot)
                new += compare(folder.name, spot, rows, measured.work, metered)
        write_rows([*(row for row in read_rows() if row.app != folder.name), *new])


def host_of() -> Processor:
    """The profile by which metered computing is priced."""
    return build_processor(DeviceSpec(profile="p"), load_profile(PROFILE))


def write_rows(rows: Sequence[Row]) -> None:
    with open(ROWS, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        for row in rows:
            numbers = (None if x is None else f"{x:.5g}" for x in row[5:8])
            writer.writerow(
                [*row[:3], f"{row.share:.4f}", row.messages, *numbers, row.refused]
            )


def read_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    with open(ROWS, encoding="utf-8", newline="") as file:
        return [
            Row(
                row["app"],
                row["play"],
                row["kind"],
                float(row["share"]),
                int(row["messages"]),
                float(row["measured_s"]),
                float(row["law_s"]),
                float(row["metered_s"]) if row["metered_s"] else None,
                row.get("refused") or "",
            )
            for row in csv.DictReader(file)
        ]


def page_parts() -> dict[str, str]:
    """A line per app, and the median and the worst over all."""
    judged = [row for row in read_rows() if row.share >= LEAST_SHARE]
    kinds = [row for row in judged if row.kind != "round"]
    rounds = [row for row in judged if row.kind == "round"]
    table = [["app", "kinds: median, worst", "rounds: median, worst", "metered ×"]]
    for app in (*dict.fromkeys(row.app for row in judged), ""):
        cells = [app or "**all**"]
        for group in (kinds, rounds):
            errors = [
                abs(r.law_s / r.measured_s - 1) for r in group if app in ("", r.app)
            ]
            cells.append(
                f"{statistics.median(errors):.0%}, {max(errors):.0%}" if errors else "–"
            )
        ratios = [
            r.metered_s / r.measured_s
            for r in kinds
            if app in ("", r.app) and r.metered_s
        ]
        span = f"{min(ratios):.2g} to {max(ratios):.2g}" if ratios else ""
        why = [r.refused for r in kinds if r.app == app and r.refused]
        span += (
            f"{span and '; '}refused: {', '.join(dict.fromkeys(why))}" if why else ""
        )
        table.append([*cells, span])
    return {"flower-laws": markdown(table)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure").add_argument("apps", nargs="+", type=Path)
    commands.add_parser("table")
    metered = commands.add_parser("metered", help="of measure's own")
    metered.add_argument("job")
    metered.add_argument("out")
    asked = parser.parse_args()
    if asked.command == "measure":
        measure_apps(asked.apps)
    elif asked.command == "metered":
        print_metered(asked.job, asked.out)
    else:
        write_page("flower_laws")


if __name__ == "__main__":
    main()
