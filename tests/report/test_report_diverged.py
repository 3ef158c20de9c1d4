"""Training that diverged leaves infinities and NaN in the record.

They must break no picture.
"""

import gzip
import json

import pytest

from simfed.report import (
    accuracy_figure,
    build_page,
    gantt_figure,
    save_picture,
    write_trace,
)

pytest_plugins = ["report_runs"]


@pytest.fixture(scope="module")
def run(report_run):
    return report_run(4, 20, diverges=True)


@pytest.mark.parametrize("measure", ["accuracy", "loss", "kd_loss"])
def test_curves_are_drawn_as_far_as_they_go(run, tmp_path, measure):
    assert (
        save_picture(accuracy_figure(run, y=measure), tmp_path / "a.png", dpi=50)
        .stat()
        .st_size
    )
    assert save_picture(
        gantt_figure(run, rounds=(19, 20)), tmp_path / "b.png", dpi=50
    ).is_file()


def test_the_trace_is_json_as_the_standard_has_it(run, tmp_path):
    text = gzip.decompress(
        write_trace(run, tmp_path / "a.json.gz").read_bytes()
    ).decode()

    def refused(name):
        raise AssertionError(name)

    assert json.loads(text, parse_constant=refused)["traceEvents"]


def test_the_page_is_made(run):
    assert "<!doctype html>" in build_page([run, run])
