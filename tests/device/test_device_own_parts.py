"""Calibration of parts of one's own, and what its pictures say."""

import csv
import sys

import pytest

from simfed.cli import main
from simfed.device.load import load_profile
from simfed.device.profile import QUANTITIES
from simfed.ground.registry import IMPORTS, registry
from simfed.report.calibration import profile_figure

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
    words = [
        "calibrate",
        "measure",
        "--out",
        str(table),
        "--models",
        "logistic-regression@mnist-mini",
        "--k",
        "10",
        "--only",
        "compression",
        "--strategies",
        "mine",
        "--repeat",
        "1",
        "--paced",
        "0",
    ]
    assert main(words) == 2
    assert "--strategies: no codec 'mine', expected top-k" in capsys.readouterr().err
    assert main([*words, "--import", str(parts)]) == 0
    rows = csv.DictReader(table.read_text().splitlines())
    measured = {(row["quantity"], row["strategy"], row["k"]) for row in rows}
    assert measured == {("compression", "mine", "10")}


@pytest.mark.parametrize("profile", ["x86-2core-vm", "rtx3090-ryzen4800h"])
def test_pictures_name_what_their_axes_count(profile):
    counted = {
        "batch": "samples of a batch",
        "samples": "samples",
        "k": ("entries kept, K"),
    }
    figure = profile_figure(load_profile(profile))
    panels = [
        (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel())
        for ax in figure.axes
    ]
    drawn = [panel for panel in panels if panel[0]]
    assert drawn
    for title, x, y in drawn:
        [quantity] = [name for name in QUANTITIES if title.startswith(name)]
        assert (x, y) == (counted[QUANTITIES[quantity].size], "time")
