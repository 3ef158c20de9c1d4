"""Training that diverged leaves infinities and NaN in the record.

They must break no picture.
"""

import gzip
import json

from simfed.report import (
    accuracy_figure,
    build_page,
    gantt_figure,
    save_picture,
    write_trace,
)


def test_what_diverged_is_drawn_as_far_as_it_goes_and_its_trace_is_json(
    report_run, tmp_path
):
    run = report_run(4, 20, diverges=True)
    for measure in ("accuracy", "loss", "kd_loss"):
        figure = accuracy_figure(run, y=measure)
        assert save_picture(figure, tmp_path / "a.png", dpi=50).stat().st_size
    figure = gantt_figure(run, rounds=(19, 20))
    assert save_picture(figure, tmp_path / "b.png", dpi=50).is_file()
    assert "<!doctype html>" in build_page([run, run])

    def refused(name):
        raise AssertionError(name)

    text = gzip.decompress(write_trace(run, tmp_path / "a.json.gz").read_bytes())
    assert json.loads(text, parse_constant=refused)["traceEvents"]
