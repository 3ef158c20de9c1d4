"""What a time-only participation costs on the clock, in processor instructions.

    python analysis/benchmarks/instructions.py [--only chain steps bare] [--keep]
                                               [--of CHECKOUT --label WORDS]

Seconds depend on what else a machine does; instructions repeat to a thousandth. Each
line plays one run under valgrind's callgrind, which counts between the borders of two
rounds (four lines of C, compiled for it, tell it when; string hashes are fixed). `--of`
counts another checkout's package by the worlds of this one. `--keep` keeps the lines in
instructions_rows.csv and makes of them the tables of docs/speed.md.

- chain: download, training, compression, upload; 1,000 clients of a drawn fleet per
  round;
- steps: the plan of a method with ever more steps, half of them units of work, half
  messages;
- bare: an event of SimPy with nothing but a process that waits for it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from drawn_fleet import drawn_fleet
from pages import markdown, write_page

ROWS = Path(__file__).with_name("instructions_rows.csv")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "speed.md"
HERE = Path(__file__).resolve().parents[2]
NOW = "now"
COUNTER = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(void) { CALLGRIND_STOP_INSTRUMENTATION; CALLGRIND_DUMP_STATS; }
"""
WORLDS: dict[str, list[tuple[str, int, int]]] = {
    "chain": [("chain", 4, 100_000)],
    "steps": [("in a row", n, 100) for n in (4, 16)],
    "bare": [("bare event", 1, 1_000)],
}
"""(what, steps, clients)"""


# ---- within valgrind -----------------------------------------------------------------


def play(what: str, steps: int, clients: int, counter: str) -> None:
    """Play a world, and have its last rounds counted."""
    count = ctypes.CDLL(counter)
    if what == "bare event":
        play_bare(clients, count)
        return
    first, last = 4, 8

    def border(round: int, simulated_s: float, accuracy: float | None) -> None:
        if round == first:
            count.begin()
        elif round == last:
            count.end()

    import pyarrow

    import simfed
    from simfed.scenario import Scenario

    pyarrow.array([0.0])  # imports pandas, once: else the first rounds' columns would
    plain = drawn_fleet(
        clients, last, participation={"clients_per_round": min(clients, 1_000)}
    )
    if what != "chain":
        plain["method"] = method_of(steps)
    simfed.run(Scenario.model_validate(plain), time_only=True, progress=border)


def play_bare(clients: int, count: Any) -> None:
    import simpy

    env = simpy.Environment()

    def story(client: int) -> Generator[simpy.Event, None, None]:
        while True:
            yield env.timeout(1 + client % 7)

    for client in range(clients):
        env.process(story(client))
    env.run(until=70)
    count.begin()
    env.run(until=70 + 420)  # 420 is a multiple of all waits
    count.end()


BARE_EVENTS = sum(420 // (1 + client % 7) for client in range(1_000))


def method_of(steps: int) -> str:
    """The name of a method whose story has so many steps."""
    from dataclasses import dataclass

    from simfed.ground.method import (
        Client,
        Field,
        Method,
        Plan,
        Setting,
        Story,
        Who,
        Work,
    )
    from simfed.ground.registry import register

    @dataclass(frozen=True)
    class Long(Method):
        """Units of work, each followed by a message; the last message is the upload."""

        def plan(self, setting: Setting, who: Who, round: int) -> Plan:
            return made

        def participate(self, setting: Setting, client: Client) -> Story:
            yield from client.receive()
            for _ in range(steps // 2 - 1):
                yield from client.work(unit)
                yield from client.send(500.0)
            yield from client.work(unit)
            yield from client.send()

    unit = Work("training", "lenet5-half", 32)
    made = Plan({}, (), {"counts": Field("counts", 250)})
    register("method", "long", Long, replace=True)
    return "long"


# ---- around it -----------------------------------------------------------------------


def count(what: str, steps: int, clients: int, checkout: Path) -> int:
    """Instructions per participation, or per bare event."""
    with tempfile.TemporaryDirectory() as folder:
        source, library, out = (
            Path(folder, name) for name in ("count.c", "count.so", "out")
        )
        source.write_text(COUNTER)
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True
        )
        watched = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        world = [what, str(steps), str(clients), str(library)]
        played = subprocess.run(
            [
                *watched,
                f"--callgrind-out-file={out}",
                sys.executable,
                __file__,
                "--play",
                *world,
            ],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
        )
        if played.returncode:
            raise SystemExit(played.stderr)
        totals = re.search(
            r"^totals: "
            r"(\d+)",
            Path(f"{out}.1").read_text(),
            re.MULTILINE,
        )
    assert totals is not None
    times = BARE_EVENTS if what == "bare event" else 4 * min(clients, 1_000)
    return round(int(totals[1]) / times)


def table_of_chains(rows: pd.DataFrame) -> str:
    bare = int(rows[rows.what == "bare event"].instructions.iloc[-1])
    lines = [["clients of the fleet", "", "instructions", "bare SimPy events"]]
    for row in rows[rows.what == "chain"].itertuples():
        events = row.instructions / bare
        lines.append(
            [f"{row.clients:,}", row.label, f"{row.instructions:,}", f"{events:.0f}"]
        )
    text: str = markdown(lines)
    return text


def table_of_steps(rows: pd.DataFrame) -> str:
    lines, before = [["steps", "instructions", "for each more"]], (0, 0)
    for row in rows[rows.what == "in a row"].sort_values("steps").itertuples():
        steps, number = int(row.steps), int(row.instructions)
        more = (
            f"{(number - before[1]) / (steps - before[0]):,.0f}" if before[0] else "–"
        )
        lines.append([f"{steps}", f"{number:,}", more])
        before = steps, number
    text: str = markdown(lines)
    return text


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    rows = pd.read_csv(ROWS)
    return {"participations": table_of_chains(rows), "steps": table_of_steps(rows)}


def keep(new: pd.DataFrame) -> None:
    """Put these rows in place of those that are alike, and renew the page."""
    alike = ["what", "steps", "clients", "label"]
    rows = pd.concat([pd.read_csv(ROWS), new]) if ROWS.exists() else new
    rows.drop_duplicates(alike, keep="last").sort_values(alike).to_csv(
        ROWS, index=False
    )
    write_page("instructions")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--of", type=Path, default=HERE, metavar="CHECKOUT")
    parser.add_argument("--label", default=NOW)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--play", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        what, steps, clients, counter = options.play
        play(what, int(steps), int(clients), counter)
        return
    for name in options.only:
        for what, steps, clients in WORLDS[name]:
            instructions = count(what, steps, clients, options.of.resolve())
            print(
                f"{what:10} {steps:3} steps, {clients:9,} clients: {instructions:,}",
                flush=True,
            )
            row = (what, steps, clients, options.label, instructions)
            names = ["what", "steps", "clients", "label", "instructions"]
            if options.keep:
                keep(pd.DataFrame([row], columns=names))


if __name__ == "__main__":
    main()
