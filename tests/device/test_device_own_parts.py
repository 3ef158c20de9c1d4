"""Calibration of parts of one's own."""

import csv
import sys

import pytest

from simfed.cli import main
from simfed.ground import IMPORTS
from simfed.ground.registry import registry

PARTS = """
import simfed
from simfed.compress import TopK


class Mine(TopK):
    name = "mine"


simfed.register("codec", "mine", Mine)
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv(IMPORTS, "")
    (tmp_path / "parts.py").write_text(PARTS)
    yield tmp_path / "parts.py"
    for name in [name for name in sys.modules if name.startswith("simfed_import_")]:
        del sys.modules[name]
    if "mine" in registry("codec"):
        registry("codec").remove("mine")


def test_codecs_of_ones_own_are_measured(parts, tmp_path, capsys):
    table = tmp_path / "mine.csv"
    words = f"calibrate measure --out {table} --models logistic-regression@mnist-mini"
    words += " --k 10 --only compression --strategies mine --repeat 1 --paced 0"
    words = words.split()
    assert main(words) == 2
    assert "--strategies: no codec 'mine', expected top-k" in capsys.readouterr().err
    assert main([*words, "--import", str(parts)]) == 0
    rows = csv.DictReader(table.read_text().splitlines())
    measured = {(row["quantity"], row["strategy"], row["k"]) for row in rows}
    assert measured == {("compression", "mine", "10")}
