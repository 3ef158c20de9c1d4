"""What the command says of itself."""

from __future__ import annotations

import pytest

from simfed.cli import main
from simfed.ground import VERSION


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"simfed {VERSION}\n"


@pytest.mark.parametrize(
    "group", ["", "show", "study", "cache", "data", "calibrate", "flower"]
)
def test_summaries_of_commands_fit_a_terminal_of_80_columns(capsys, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*group.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert "...\n" not in said.partition("Commands:")[2]
    assert group or "--debug" in said
