"""What the command says of itself."""

from __future__ import annotations

from simfed.cli import main
from simfed.ground import VERSION


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"simfed {VERSION}\n"


def test_help_names_the_switch_for_tracebacks(capsys):
    assert main(["--help"]) == 0
    assert "--debug" in capsys.readouterr().out


def test_summaries_of_commands_fit_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for group in (
        [],
        ["show"],
        ["study"],
        ["cache"],
        ["data"],
        ["calibrate"],
        ["flower"],
    ):
        assert main([*group, "--help"]) == 0
        commands = capsys.readouterr().out.partition("Commands:")[2]
        assert [line for line in commands.splitlines() if line.endswith("...")] == []
