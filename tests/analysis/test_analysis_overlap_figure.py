"""The study of overlap: its rows are those of the closed forms."""

import overlap_figure as study
import pytest

from simfed.learn.catalogue import facts


def test_kept_rows_are_what_the_closed_forms_say():
    rows = study.read_rows()
    whole = rows[rows["overlap"] == "1"].set_index(["codec", "speed", "link"])
    layers = facts(study.MODEL, "mnist-mini").layers[::-1]
    entries, flops = (sum(column) for column in zip(*layers, strict=True))
    latency_s = 0.01
    for row in rows.itertuples():
        alone = whole.loc[(row.codec, row.speed, row.link)]
        work_s, sent_s = alone["compression_s"], alone["exposed_upload_s"] - latency_s
        if row.overlap == study.LAYERS:
            there_s, ends_s = alone["training_s"] / 3, 0.0
            for of_layer, its_flops in layers:
                there_s += alone["training_s"] * 2 / 3 * its_flops / flops
                there_s += work_s * of_layer / entries
                ends_s = max(ends_s, there_s) + sent_s * of_layer / entries
            # shares of K are whole entries, so that slices are not quite those of the coordinates
            assert row.whole_s == pytest.approx(latency_s + ends_s, rel=1e-3)
            continue
        c = int(row.overlap)
        form_s = latency_s + work_s / c + (c - 1) / c * max(work_s, sent_s) + sent_s / c
        # K is no multiple of c, so slices differ by an entry; rows have six digits
        assert row.sent_s == pytest.approx(form_s, abs=3e-6)


@pytest.mark.parametrize("overlap", ["8", study.LAYERS])
def test_a_row_is_what_a_run_gives(overlap):
    rows = study.read_rows().to_dict("records")
    assert study.play("top-k", "a tenth", "10 Mbps", overlap) in rows
