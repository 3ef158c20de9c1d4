"""Set-ups of other people's files, each in one scenario of `scenarios/files`."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import simfed
from simfed.experiment import make_parts
from simfed.verify import verify

FILES = Path(__file__).parents[2] / "scenarios" / "files"
SCENARIOS = sorted(FILES.glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_set_up_is_short_and_its_run_holds(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 30
    simfed.run(path, tmp_path / "run", time_only=True, progress=False)
    assert verify(tmp_path / "run") == []


def read_rows(name):
    with (FILES / name).open() as file:
        return [*csv.DictReader(line for line in file if line[0] != "#")]


def test_each_phone_drives_its_own_drive():
    path = FILES / "drives.yaml"
    topology = make_parts(simfed.load_scenario(path), path).topology
    for client in range(5):
        rows = read_rows(f"drives/{client}.csv")
        for k, column in enumerate(("UL_bitrate", "DL_bitrate")):
            trace = topology.traces[2 * client + k].trace
            assert trace.peak_bytes_per_s == max(int(row[column]) for row in rows) * 125


def test_the_slowest_line_of_the_graph_is_waited_for(tmp_path):
    run = simfed.run(FILES / "zoo.yaml", time_only=True, progress=False)
    assert {*run.rounds["critical_link"]} == {"Fjordnes>Nordlys"}


def test_a_round_takes_as_long_as_the_slowest_chip_trains():
    run = simfed.run(FILES / "phones.yaml", time_only=True, progress=False)
    slowest_ms = max(
        float(row["MobileNet-V2, FP16, ms"])
        for row in read_rows("phones.csv")
        if row["Year"] >= "2019"
    )
    longest_s = max(run.participations["training_s"])
    assert longest_s == pytest.approx(5 * 32 * 3 * slowest_ms / 1e3)
