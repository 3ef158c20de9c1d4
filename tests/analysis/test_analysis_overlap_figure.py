"""The study of overlap: its rows are those of the closed forms."""

import overlap_figure as study
import pytest


def test_kept_rows_are_what_the_closed_forms_say():
    rows = study.read_rows()
    whole = rows[rows["overlap"] == "1"].set_index(["codec", "speed", "link"])
    latency_s = 0.01
    for row in rows.itertuples():
        alone = whole.loc[(row.codec, row.speed, row.link)]
        work_s, sent_s = alone["compression_s"], alone["exposed_upload_s"] - latency_s
        c = int(row.overlap)
        form_s = latency_s + work_s / c + (c - 1) / c * max(work_s, sent_s) + sent_s / c
        # rows have six digits
        assert row.sent_s == pytest.approx(form_s, abs=3e-6)


def test_a_row_is_what_a_run_gives():
    rows = study.read_rows().to_dict("records")
    assert study.play("top-k", "a tenth", "10 Mbps", "8") in rows
