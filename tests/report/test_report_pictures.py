import math
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import matplotlib.image
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex

from simfed import InputError
from simfed.report import (
    PHASES,
    accuracy_figure,
    build_timeline,
    frames,
    gantt,
    gantt_figure,
    save_picture,
)
from simfed.report.pictures import (
    build_figure,
    choose_bytes_unit,
    parse_points,
    time_unit,
)
from simfed.report.run_pictures import draw_run
from simfed.report.timeline import Timeline

UPLOAD = PHASES["upload"].colour.lower()


@pytest.mark.parametrize(
    ("unit_of", "most", "unit"),
    [
        (choose_bytes_unit, 999.0, (1.0, "B")),
        (choose_bytes_unit, 1000.0, (1e3, "kB")),
        (choose_bytes_unit, 0.0, (1.0, "B")),
        (time_unit, 9e-4, (1e-6, "µs")),
        (time_unit, 1e-3, (1e-3, "ms")),
        (time_unit, 0.8, (1, "s")),
        (time_unit, 300, (60, "min")),
        (time_unit, 3 * 3600, (3600, "h")),
    ],
)
def test_amounts_are_drawn_in_the_largest_unit_that_fits(unit_of, most, unit):
    assert unit_of(most) == unit


@pytest.mark.parametrize(("clients", "rows"), [(120, 120), (121, gantt.SLOWEST)])
def test_of_more_than_120_clients_the_slowest_have_rows(report_run, clients, rows):
    (ax, *_) = gantt_figure(report_run(clients, 2), rounds=(1, 1)).axes
    drawn = {(*map(to_hex, c.get_facecolor()),): c for c in ax.collections}
    assert len(drawn[UPLOAD,].get_paths()) == rows


@pytest.mark.parametrize("width", [3.0, 3.5, 7.0, 20.0])
def test_a_picture_is_as_wide_as_asked_with_why_a_round_took_long_and_nothing_cut_off(
    report_run, width
):
    run = report_run()
    figure = gantt_figure(run, rounds=(1, 2), width_in=width)
    figure.canvas.draw()
    assert figure.get_figwidth() == width
    texts = [*figure.axes[0].texts, *figure.texts]
    said = " ".join(text.get_text() for text in texts)
    for number in (1, 2):
        client = run.rounds["critical_client"][number - 1]
        assert f"round {number}: client {client}" in said
    for ax in figure.axes:
        texts += [*ax.texts, *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label]
    for legend in figure.legends:
        texts += legend.get_texts()
    for text in texts:
        if text.get_visible() and text.get_text():
            box = text.get_window_extent(figure.canvas.get_renderer())
            assert -1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1, text
            assert -1 <= box.y0 <= box.y1 <= figure.bbox.y1 + 1, text


def test_a_narrow_picture_says_no_more_than_it_has_room_for(report_run):
    texts = gantt_figure(report_run(), rounds=(1, 20), width_in=3).texts
    assert len(texts) > gantt.MOST_WORDS


def test_height_and_letters_are_as_asked(report_run):
    run = report_run()
    figure = gantt_figure(run, rounds=(1, 1), height_in=6.0, points=10)
    assert list(figure.get_size_inches()) == [7, 6]
    assert figure.axes[-1].xaxis.label.get_size() == 10
    figure.canvas.draw()
    texts = figure.axes[-1].get_xticklabels()[0], figure.legends[0].get_texts()[0]
    assert [text.get_size() for text in texts] == pytest.approx([65 / 7] * 2)
    with pytest.raises(InputError, match="room for every row"):
        gantt_figure(run, rounds=(1, 1), height_in=1.0)
    assert parse_points("9 pt") == 9


def test_the_latency_of_a_transfer_is_paler_than_the_rest(report_run):
    timeline = build_timeline(report_run(), (1, 1))
    waits_s = timeline.latency_s()
    moves = timeline.bars["kind"].isin(["download", "upload"])
    assert waits_s[moves].to_numpy() == pytest.approx(0.01)
    assert (waits_s[~moves] == 0).all()


def test_links_of_clients_that_are_not_shown_are_left_out():
    names = ["client-3/up", "client-4/up", "edge"]
    rounds = pd.DataFrame({"round": [1], "started_at_s": 0.0, "finished_at_s": 9.0})
    use = pd.DataFrame({"link": names, "from_s": 1.0, "to_s": 2.0, "bytes": 5.0})
    use = use.assign(capacity_bytes_per_s=9.0, flows=[1, 1, 2])
    clients = pd.DataFrame({"client": [3, 4], "prototype": "p"})

    def links(shown):
        tables = {"participations": clients, "links": use}
        run = SimpleNamespace(table=lambda name: pa.Table.from_pandas(tables[name]))
        rows = rounds.assign(critical_link=names[1])
        return Timeline(run, rows, clients[:shown], use).links()

    assert links(2) == ["client-4/up", "edge"]
    assert links(1) == ["edge"]
    use["flows"] = 1  # nothing is shared: the shown client's own link stands for it
    assert links(1) == ["client-3/up"]


def test_a_capacity_is_drawn_as_it_steps_also_while_idle():
    rows = [(1.0, 2.0, 9.0), (4.0, 5.0, 9.0), (5.0, 6.0, 4.0)]
    use = pd.DataFrame(rows, columns=["from_s", "to_s", "capacity_bytes_per_s"])

    def steps(rows, from_s=0.0, *said):
        steps = frames.compute_capacity_steps(use.iloc[rows], from_s, 8.0, *said)
        return [part.tolist() for part in steps]

    # through the idle time: it was the same around it
    assert steps([0, 1, 2]) == [[1, 4, 4, 5, 5, 6], [9, 9, 9, 9, 4, 4]]
    # nobody recorded when it stepped
    assert sum(map(math.isnan, steps([0, 2])[0])) == 1
    assert steps([0, 1]) == [[0, 8], [9, 9]]
    varies = [0.0, 3.0, 5.0, 9.0], [9.0, 7.0, 4.0, 1.0]
    drawn = [[0.5, 3, 3, 5, 5, 8], [9, 9, 7, 7, 4, 4]]
    assert steps([0, 1, 2], 0.5, varies) == drawn


def test_too_many_bars_are_an_input_error(report_run, monkeypatch):
    monkeypatch.setattr(gantt, "MOST_BARS", 100)
    with pytest.raises(InputError, match="at most 100 bars"):
        gantt_figure(report_run())


def test_svg_keeps_its_text_and_pdf_its_fonts(report_run, tmp_path):
    figure = gantt_figure(report_run(), rounds=(1, 1))
    svg = save_picture(figure, tmp_path / "a.svg")
    words = " ".join(
        "".join(e.itertext()) for e in ET.parse(svg).iter() if e.tag.endswith("text")
    )
    for word in ("download", "upload", "server", "edge-1", "round 1"):
        assert word in words
    pdf = save_picture(figure, tmp_path / "a.pdf").read_bytes()
    assert b"/Type3" not in pdf
    assert b"/CIDFontType2" in pdf


def test_a_file_of_another_kind_or_place_is_an_input_error(report_run, tmp_path):
    figure = accuracy_figure(report_run())
    for name, said in (
        ("a.gif", r"\*\.png"),
        ("no/a.png", "cannot be written: No such"),
    ):
        with pytest.raises(InputError, match=said):
            save_picture(figure, tmp_path / name)


def test_a_run_without_accuracy_has_no_accuracy_figure(report_run):
    with pytest.raises(InputError, match="test accuracy"):
        accuracy_figure(report_run(6, 4, learns=False))


def test_the_pictures_at_a_runs_end(report_run, tmp_path):
    drawn = draw_run(report_run(), tmp_path)
    assert [path.name for path in drawn] == ["accuracy.png", "timeline.png"]
    for path in drawn:
        assert matplotlib.image.imread(path).std() > 0.05
    learned_nothing = draw_run(report_run(6, 4, learns=False), tmp_path)
    assert [path.name for path in learned_nothing] == ["timeline.png"]


def test_a_name_that_the_font_lacks_is_drawn_without_a_word(tmp_path, recwarn):
    figure, _ = build_figure(2.0, [1.0])
    figure.text(0.1, 0.1, "小")
    save_picture(figure, tmp_path / "a.png")
    assert [str(warning.message) for warning in recwarn] == []
