"""The study of overlap: its table stands in the docs, its rows are those of the closed form."""

import overlap_figure as study
import pandas as pd
import pytest

PAGE = study.ROOT / "docs" / "models-clock.md"


def test_the_page_quotes_the_table_of_the_kept_rows():
    quoted = PAGE.read_text().split("<!-- overlap table -->\n")[1]
    assert quoted.split("\n<!-- end")[0] == study.table(pd.read_csv(study.ROWS))


def test_kept_rows_are_what_the_closed_form_says():
    rows = pd.read_csv(study.ROWS)
    whole = rows[rows["chunks"] == 1].set_index(["codec", "speed", "link"])
    latency_s = 0.01
    for row in rows.itertuples():
        alone = whole.loc[(row.codec, row.speed, row.link)]
        work_s, sent_s = alone["compression_s"], alone["exposed_upload_s"] - latency_s
        c = row.chunks
        form_s = latency_s + work_s / c + (c - 1) / c * max(work_s, sent_s) + sent_s / c
        # K is no multiple of c, so slices differ by an entry; rows have six digits
        assert row.sent_s == pytest.approx(form_s, abs=3e-6)


def test_a_row_is_what_a_run_gives():
    rows = pd.read_csv(study.ROWS).to_dict("records")
    assert study.play("top-k", "a tenth", "10 Mbps", 8) in rows
