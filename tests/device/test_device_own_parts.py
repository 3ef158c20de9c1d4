"""Calibration of parts of one's own."""

import csv

import pytest

from simfed.cli import main
from simfed.ground import IMPORTS

PARTS = """
import simfed
from simfed.compress import TopK


class Mine(TopK):
    name = "mine"


simfed.register("codec", "mine", Mine)
"""


@pytest.fixture
def parts(tmp_path, monkeypatch, add_part):
    monkeypatch.setenv(IMPORTS, "")
    (tmp_path / "parts.py").write_text(PARTS)
    return tmp_path / "parts.py"


def test_codecs_of_ones_own_are_measured_beside_labels_with_commas(parts, tmp_path):
    table = tmp_path / "mine.csv"
    words = f"calibrate measure --out {table} --models logistic-regression@mnist-mini"
    words += " --k 10 --only compression --repeat 1 --paced 0"
    words += " --strategies mine,qsgd(4,bucket=64) --import"
    assert main([*words.split(), str(parts)]) == 0
    rows = csv.DictReader(table.read_text().splitlines())
    assert {row["strategy"] for row in rows} == {"mine", "qsgd(4,bucket=64)"}
