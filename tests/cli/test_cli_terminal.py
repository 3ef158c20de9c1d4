"""Names of strangers do not steer the terminal."""

import os
import pty
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from simfed.cli import escaping_output
from simfed.ground.names import escape_steering

STEERS = "a\x1b[2J\x07\x9b31m\u202eb"
SPELT = r"a\x1b[2J\x07\x9b31m\u202eb"


def test_what_steers_is_spelt_out():
    assert escape_steering(STEERS) == SPELT
    assert escape_steering("é\t×\n–日本") == "é\t×\n–日本"


def test_both_streams_escape_while_a_command_runs(capsys):
    with escaping_output():
        print(STEERS)
        print(STEERS, file=sys.stderr)
    print(STEERS)
    said = capsys.readouterr()
    assert said.out.splitlines() == [SPELT, STEERS]
    assert said.err == f"{SPELT}\n"


def test_tables_escape_names_and_keep_their_colours(capsys):
    table = Table()
    table.add_column(STEERS)
    table.add_row(f"[bold]{STEERS}")
    with escaping_output():
        Console(force_terminal=True, width=100).print(table)
    said = capsys.readouterr().out
    assert said.count(SPELT) == 2
    assert "\x1b[1m" in said
    assert "\x1b[2J" not in said


def test_on_a_terminal_as_well(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "simfed", "verify", str(tmp_path / STEERS)]
    subprocess.run(command, stdout=theirs, stderr=theirs, check=False)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert r"\x1b[2J" in said
    assert "\x1b[2J" not in said
