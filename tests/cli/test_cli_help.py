"""What the command says of itself."""

from __future__ import annotations

import typer.core

from simfed.cli import main
from simfed.ground.version import VERSION


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"simfed {VERSION}\n"


def test_help_names_the_switch_for_tracebacks(capsys):
    assert main(["--help"]) == 0
    assert "--debug" in capsys.readouterr().out


def test_help_has_no_escaped_brackets(capsys):
    assert main(["timeline", "--help"]) == 0
    said = capsys.readouterr().out
    assert "[default: 7pt]" in said
    assert "\\[" not in said
    # what makes the typer that Flower asks for write them
    assert not typer.core.HAS_RICH


def test_data_sets_are_told_apart(capsys):
    assert main(["list", "datasets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line.split(maxsplit=1)[1] for line in lines]
    assert "60,000 training and 10,000 test images of 1×28×28, 10 classes" in said
    assert "comes with simfed" in lines[0]
    assert "50,000" in next(line for line in lines if line.startswith("cifar10"))


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
