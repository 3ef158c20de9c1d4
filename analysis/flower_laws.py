r"""How far off a Flower app's charges are, held against Flower's own engine.

    python analysis/flower_laws.py play --out laws \
        analysis/flower_apps/* scenarios/flower/digits
    python analysis/flower_laws.py play --out laws --stand-ins flower/examples/opacus
    python analysis/flower_laws.py table --out laws

`play` measures each app twice, by itself and beside a busy loop, and then plays it with
sizes that no play had, inside of those that plays had: half as many nodes again with
smaller sizes, three times the nodes, and larger sizes. Each is played three times by
Flower's own engine, one message at a time in one process, and once more to be metered.
What is done lies in OUT; the same command goes on from there, also with further apps.
`--stand-ins`: made-up tables in place of the data that Flower's examples download. It
wants a machine with nothing else to do, and takes some five minutes for an app.

`table` holds the laws against the median of the three, puts the rows of OUT's apps into
`flower_laws.csv` (earlier ones of an app give way), renews what docs/flower-seconds.md
shows, and prints what is off by more than is asked and why. Rounds are the longest
message of an exchange, the law's with scatter drawn. Seconds are the processor's, of
messages that are not the first of their kind in their process.
"""

from __future__ import annotations

import argparse
import csv
import json
import pickle
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from pages import markdown, write_page

from simfed.device import DeviceSpec, Processor, build_processor, load_profile
from simfed.flower.computing import HostSpent
from simfed.flower.forge import run_python
from simfed.flower.measuring import measure
from simfed.flower.metering import WorkCount
from simfed.flower.price import Price
from simfed.flower.probing import NodeGroup, Spot
from simfed.flower.workfile import SIZE, Visible, WorkFile, load_work, write_work
from simfed.ground.errors import RunFailed, SimfedError
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.scenario.fleet_file import Computing

HERE = Path(__file__).parent
ROWS = HERE / "flower_laws.csv"
PAGE = HERE.parent / "docs" / "flower-seconds.md"
PROFILE = "x86-2core-vm"
LEAST_SHARE, LEAST_S = 0.05, 0.05
"""Kinds with less of the work, and messages and rounds that are shorter, are not
judged."""
REPEATS = ("1", "2", "3")
KIND, KIND_NO_POWER, ROUND, BUSY_KIND = 0.15, 0.25, 0.30, 0.15
"""The most that kinds may be off (or such with a size that is no power, of which the
law's card says that it is far off), rounds, and kinds of a law that was found beside a
busy loop."""
BUSY = 0.05
"""Two least times of a play that differ by more say that the machine was busy."""


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
    """The median of the plays by Flower's engine."""
    law_s: float
    metered_s: float | None
    """None: metered computing refuses, or does not tell rounds apart."""
    refused: str
    """Why metered computing refuses."""
    busy_law_s: float | None
    """By the law that was found beside a busy loop; None: there is none."""
    differ: float
    """By how much the plays of Flower's engine differ: most over least, less 1."""
    machine: float
    """By how much the two least times of a play differed as the law was found."""
    unseen: float | None = None
    """By how much the law was off, at worst, on plays that it had not seen."""


Message = tuple[Visible, HostSpent, int, bool]
"""Visible values, what was spent, the exchange, and whether it is the first of its kind
in its process."""


class Played(NamedTuple):
    """One play by Flower's engine, as it is kept."""

    changes: str
    nodes: int
    run_config: dict[str, Plain]
    messages: list[Message]


# ---- plays ---------------------------------------------------------------------------


def play_apps(folders: Sequence[Path], out: Path, nodes: int | None) -> None:
    """Measure and play apps as far as that is not done; a failure is said and kept."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        try:
            work = find_law(folder, out, nodes, busy=False)
            find_law(folder, out, nodes, busy=True)
            for number, spot in enumerate(list_held_out(folder, work)):
                for repeat in (*REPEATS, "metered"):
                    kept = out / f"{folder.name}-{number}-{repeat}.pickle"
                    if not kept.exists():
                        say(f"{folder.name}: {spot.changes}, {repeat}")
                        play_aside(folder, spot, repeat, kept)
        except SimfedError as error:
            say(f"{folder.name}: {error}")
            (out / f"{folder.name}.failed").write_text(str(error), encoding="utf-8")
        else:
            (out / f"{folder.name}.failed").unlink(missing_ok=True)


def find_law(folder: Path, out: Path, nodes: int | None, *, busy: bool) -> WorkFile:
    """Return the work file of an app, which is measured if it is not there."""
    path = out / f"{folder.name}{'-busy' if busy else ''}.work.yaml"
    if not path.exists():
        say(f"{folder.name}: measured{' beside a busy loop' if busy else ''}")
        with busy_loop() if busy else nullcontext():
            write_work(measure(folder, nodes=nodes).work, path)
    return load_work(path)


@contextmanager
def busy_loop() -> Iterator[None]:
    """Have another process use a processor meanwhile."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def list_held_out(folder: Path, work: WorkFile) -> list[Spot]:
    """Return three plays with sizes that were not measured, inside those that were."""
    from simfed.flower.loading import describe

    config = describe(folder, {})[1]
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


def play_aside(folder: Path, spot: Spot, repeat: str, kept: Path) -> None:
    """Have a process of its own play an app in Flower's engine.

    Raises: `RunFailed`.
    """
    job = [str(folder), spot.changes, spot.nodes, dict(spot.settings), str(kept)]
    sys.path.insert(0, str(HERE))
    code = "import json; from flower_laws import play; play(*json.loads(sys.argv[1]))"
    done = run_python(code, json.dumps([*job, repeat == "metered"]))
    sys.path.remove(str(HERE))
    if done.returncode or not kept.exists():
        last = (done.stderr.strip().splitlines() or ["it gave no answer"])[-1]
        raise RunFailed(f"Flower's engine, {spot.changes}: {last}")


def play(
    folder: str,
    changes: str,
    nodes: int,
    overrides: dict[str, Plain],
    kept: str,
    metered: bool,
) -> None:
    """Play an app in Flower's engine, in this process, and keep its messages."""
    from flower_originals import run_in_flower

    from simfed.flower.children import UsageMeter
    from simfed.flower.computing import WorkWatch
    from simfed.flower.loading import describe
    from simfed.flower.messages import (
        count_message_bytes,
        read_message_config,
        read_metrics,
    )

    messages: list[Message] = []
    begun: set[tuple[object, ...]] = set()

    def tell(node: int, message: Any, reply: Any, spent: HostSpent, round: int) -> None:
        if reply is None or reply.has_error():
            return
        seen = Visible(
            message_type=message.metadata.message_type,
            config=read_message_config(message),
            reply=read_metrics(reply),
            downlink_bytes=count_message_bytes(message),
            uplink_bytes=count_message_bytes(reply),
        )
        kind = seen.message_type, *sorted(seen.texts.items())
        messages.append((seen, spent, round, kind not in begun))
        begun.add(kind)

    if not metered:
        WorkWatch.meter = UsageMeter()
    run_in_flower(folder, overrides, nodes, tell, Computing() if metered else None)
    config = describe(Path(folder), overrides)[1]
    Path(kept).write_bytes(pickle.dumps(Played(changes, nodes, config, messages)))


def use_stand_ins(out: Path) -> None:
    """Have all processes that this one starts read made-up tables."""
    site = out / "site"
    site.mkdir(parents=True, exist_ok=True)
    lines = f"import sys\nsys.path.append({str(HERE)!r})\n"
    lines += "import flower_stand_ins\nflower_stand_ins.install()\n"
    (site / "sitecustomize.py").write_text(lines, encoding="utf-8")
    sys.path.insert(0, str(site.resolve()))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- rows ----------------------------------------------------------------------------


def make_rows(out: Path) -> list[Row]:
    """Return the rows of all apps whose plays lie in a folder."""
    rows = []
    processor = build_processor(DeviceSpec(profile="p"), load_profile(PROFILE))
    for path in sorted(out.glob("*.work.yaml")):
        app = path.name.removesuffix(".work.yaml")
        if app.endswith("-busy"):
            continue
        busy = out / f"{app}-busy.work.yaml"
        laws = {"law": load_work(path)}
        if busy.exists():
            laws["busy"] = load_work(busy)
        for number in range(3):
            plays: dict[str, Played] = {
                repeat: pickle.loads(kept.read_bytes())
                for repeat in (*REPEATS, "metered")
                if (kept := out / f"{app}-{number}-{repeat}.pickle").exists()
            }
            if plays.keys() >= {*REPEATS}:
                rows += compare(app, plays, laws, processor)
    return rows


def compare(
    app: str,
    plays: Mapping[str, Played],
    laws: Mapping[str, WorkFile],
    processor: Processor,
) -> list[Row]:
    """Return what was measured of one play beside what is charged."""
    work = laws["law"]
    computing = Computing.model_construct(kind="work", start="never")
    changes, nodes, config, _ = plays[REPEATS[0]]
    prices = [
        (name, Price(computing, config, nodes, law)) for name, law in laws.items()
    ]
    nothing = HostSpent(WorkCount(), 0.0)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    rounds: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[str, int] = defaultdict(int)
    for repeat, played in plays.items():
        for place, (visible, spent, round, first) in enumerate(played.messages):
            if first:
                continue
            title = work.find(visible.message_type, visible.texts).title
            if repeat == "metered":
                counted = Price(Computing()).price_code([], {}, spent, processor)
                sums[title]["metered"] += counted.work_s / work.kernel.factor(processor)
                continue
            sums[title][repeat] += spent.work_s
            rounds[round][repeat].append(spent.work_s)
            if repeat != REPEATS[0]:
                continue
            counts[title] += 1
            rng = Streams(0)("flower-laws", place)
            for name, price in prices:
                charged, _ = price.price_message(visible, 0, nothing, None)
                sums[title][name] += charged.work_s
                if name == "law":
                    noise = charged.noise
                    factor = 1.0 if noise is None else noise.factor(rng)
                    rounds[round][name].append(charged.work_s * factor)
    total_s = sum(sums[title][REPEATS[0]] for title in counts)
    result = []
    for title, count in counts.items():
        times = [sums[title][repeat] for repeat in REPEATS]
        metered_s = sums[title]["metered"] or None
        law = next(law for law in work.kinds if law.title == title)
        result.append(
            Row(
                app=app,
                play=changes,
                kind=title,
                share=times[0] / total_s,
                messages=count,
                measured_s=statistics.median(times),
                law_s=sums[title]["law"],
                metered_s=metered_s,
                refused="" if metered_s else "no operators of PyTorch",
                busy_law_s=sums[title]["busy"] if "busy" in laws else None,
                differ=max(times) / min(times) - 1,
                machine=work.busy,
                unseen=law.error.held_out_worst,
            )
        )
    for longest in rounds.values():
        times = [max(longest[repeat], default=0.0) for repeat in REPEATS]
        if min(times) > 0 and statistics.median(times) >= LEAST_S:
            result.append(
                Row(
                    app=app,
                    play=changes,
                    kind="round",
                    share=1.0,
                    messages=len(longest["law"]),
                    measured_s=statistics.median(times),
                    law_s=max(longest["law"]),
                    metered_s=None,
                    refused="",
                    busy_law_s=None,
                    differ=max(times) / min(times) - 1,
                    machine=work.busy,
                )
            )
    return result


def write_rows(rows: Sequence[Row]) -> None:
    with open(ROWS, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        for row in rows:
            writer.writerow(
                f"{cell:.5g}" if isinstance(cell, float) else cell for cell in row
            )


def read_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    texts = {"app", "play", "kind", "refused"}
    with open(ROWS, encoding="utf-8", newline="") as file:
        read: list[dict[str, Any]] = [
            {
                name: cell if name in texts else float(cell) if cell else None
                for name, cell in row.items()
            }
            for row in csv.DictReader(file)
        ]
    return [Row(**row) for row in read]


def is_judged(row: Row) -> bool:
    """Return whether a row says something of its law.

    Flower's own plays do not differ by more than what is asked, the machine was not
    busy as the law was found, and messages are long enough.
    """
    if row.share < LEAST_SHARE or row.measured_s < LEAST_S * row.messages:
        return row.kind == "round" and is_calm(row)
    return is_calm(row)


def is_calm(row: Row) -> bool:
    return row.differ < bound(row) and row.machine < BUSY


def bound(row: Row) -> float:
    """Return the most that a row may be off."""
    if row.kind == "round":
        return ROUND
    return KIND_NO_POWER if (row.unseen or 0.0) > KIND else KIND


def error_of(row: Row, law_s: float | None = None) -> float:
    return abs((row.law_s if law_s is None else law_s) / row.measured_s - 1)


def list_misses(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each row that is further off than is asked."""
    misses = []
    for row in rows:
        where = f"{row.app}, {row.play}, {row.kind}"
        why = f"Flower's three plays differ by {row.differ:.0%}"
        if error_of(row) > bound(row):
            misses.append(f"{where}: off by {error_of(row):.0%}; {why}")
        if row.busy_law_s and error_of(row, row.busy_law_s) > BUSY_KIND:
            off = error_of(row, row.busy_law_s)
            misses.append(f"{where}: off by {off:.0%} beside a busy loop; {why}")
    return misses


def page_parts() -> dict[str, str]:
    """A line per app, and the median and the worst over all."""
    whole = [row for row in read_rows() if row.share >= LEAST_SHARE]
    rows = [row for row in whole if is_judged(row)]
    head = ["app", "kinds: median, worst", "rounds: median, worst", "metered ×"]
    more = ["beside a busy loop", "Flower's own plays differ", "not judged"]
    table = [[*head, *more]]
    for app in (*dict.fromkeys(row.app for row in whole), ""):
        own = [row for row in rows if app in ("", row.app)]
        kinds = [row for row in own if row.kind != "round"]
        rounds = [row for row in own if row.kind == "round"]
        every = [row for row in whole if app in ("", row.app)]
        cells = [app or "**all**", *map(in_short, (kinds, rounds)), meter_span(every)]
        if app == "":
            cells[-1] = cells[-1].partition(";")[0]
        busy = [error_of(r, r.busy_law_s) for r in kinds if r.busy_law_s]
        left = f"{len(every) - len(own):,} of {len(every):,}"
        table.append([*cells, spell(busy), spell([r.differ for r in every]), left])
    return {"flower-laws": markdown(table)}


def in_short(rows: Sequence[Row]) -> str:
    return spell([error_of(row) for row in rows])


def spell(errors: Sequence[float]) -> str:
    if not errors:
        return "–"
    return f"{statistics.median(errors):.0%}, {max(errors):.0%}"


def meter_span(rows: Sequence[Row]) -> str:
    """Return what metered computing says, as multiples of what was measured."""
    kinds = [row for row in rows if row.kind != "round"]
    ratios = [row.metered_s / row.measured_s for row in kinds if row.metered_s]
    why = dict.fromkeys(row.refused for row in kinds if row.refused)
    parts = [f"{min(ratios):.2g} to {max(ratios):.2g}"] if ratios else []
    return "; ".join([*parts, *([f"refused: {', '.join(why)}"] if why else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    player = commands.add_parser("play")
    player.add_argument("apps", nargs="+", type=Path)
    player.add_argument("--nodes", type=int, help="of the smallest play")
    player.add_argument("--stand-ins", action="store_true", help="made-up tables")
    table = commands.add_parser("table")
    for command in (player, table):
        command.add_argument("--out", type=Path, required=True, help="kept plays")
    asked = parser.parse_args()
    if asked.command == "play":
        if asked.stand_ins:
            use_stand_ins(asked.out)
        play_apps(asked.apps, asked.out, asked.nodes)
        return
    rows = make_rows(asked.out)
    apps = {row.app for row in rows}
    write_rows([*(row for row in read_rows() if row.app not in apps), *rows])
    write_page("flower_laws")
    for failed in sorted(asked.out.glob("*.failed")):
        print(f"{failed.stem}: {failed.read_text(encoding='utf-8')}")
    print(*list_misses([row for row in rows if is_judged(row)]), sep="\n")


if __name__ == "__main__":
    main()
