import xml.etree.ElementTree as ET
from types import SimpleNamespace

import matplotlib.image
import numpy as np
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
    parse_width,
    time_unit,
)
from simfed.report.run_pictures import draw_run
from simfed.report.timeline import Timeline

pytest_plugins = ["report_runs"]

UPLOAD = PHASES["upload"].colour.lower()


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (999.0, (1.0, "B")),
        (1000.0, (1e3, "kB")),
        (1e12, (1e12, "TB")),
        (0.0, (1.0, "B")),
    ],
)
def test_sizes_are_drawn_in_the_largest_unit_that_fits(most, expected):
    assert choose_bytes_unit(most) == expected


@pytest.mark.parametrize(
    ("longest_s", "unit"),
    [(9e-4, "µs"), (1e-3, "ms"), (0.8, "s"), (300, "min"), (3 * 3600, "h")],
)
def test_times_are_drawn_in_the_unit_of_the_longest(longest_s, unit):
    assert time_unit(longest_s)[1] == unit


@pytest.mark.parametrize(("clients", "rows"), [(120, 120), (121, gantt.SLOWEST)])
def test_of_more_than_120_clients_the_slowest_have_rows(report_run, clients, rows):
    (ax, *_) = gantt_figure(report_run(clients, 2), rounds=(1, 1)).axes
    drawn = {(*map(to_hex, c.get_facecolor()),): c for c in ax.collections}
    assert len(drawn[UPLOAD,].get_paths()) == rows


@pytest.mark.parametrize("width", [3.5, 7.0])
def test_the_picture_is_as_wide_as_asked_and_nothing_is_cut_off(report_run, width):
    figure = gantt_figure(report_run(), rounds=(1, 1), width_in=width)
    figure.canvas.draw()
    assert figure.get_figwidth() == width
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    seen = [
        t
        for ax in figure.axes
        for t in (*ax.texts, *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label)
    ]
    seen += [text for legend in figure.legends for text in legend.get_texts()]
    for text in seen:
        if text.get_visible() and text.get_text():
            box = text.get_window_extent(renderer)
            assert box.x0 >= page.x0 - 1, text
            assert box.x1 <= page.x1 + 1, text
            assert box.y1 <= page.y1 + 1, text
            assert box.y0 >= page.y0 - 1, text


@pytest.mark.parametrize("width", [3.0, 20.0])
def test_why_a_round_took_long_is_said_at_every_width(report_run, width):
    run = report_run()
    figure = gantt_figure(run, rounds=(1, 2), width_in=width)
    texts = [*figure.axes[0].texts, *figure.texts]
    said = " ".join(text.get_text() for text in texts)
    for number, client in zip((1, 2), run.rounds["critical_client"], strict=False):
        assert f"round {number}: client {client}" in said
    figure.canvas.draw()
    for text in figure.texts:
        box = text.get_window_extent(figure.canvas.get_renderer())
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
    if width == 3.0:
        texts = gantt_figure(run, rounds=(1, 20), width_in=3).texts
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
    with pytest.raises(InputError, match="--font-size"):
        parse_points("80")


def test_the_latency_of_a_transfer_is_paler_than_the_rest(report_run):
    run = report_run()
    timeline = build_timeline(run, (1, 1))
    waits = timeline.latency_s()
    moves = timeline.bars["kind"].isin(["download", "upload"])
    assert (waits[~moves] == 0).all()
    use = run.links[run.links["bytes"] > 0]
    for i in timeline.bars[moves].index:
        bar = timeline.bars.loc[i]
        way = {"download": "down", "upload": "up"}[bar["kind"]]
        first = use[use["link"] == f"client-{bar['client']}/{way}"]["from_s"]
        first = first[(first >= bar["started_at_s"]) & (first < bar["finished_at_s"])]
        expected = first.min() - bar["started_at_s"] if len(first) else 0.0
        assert waits[i] == pytest.approx(expected)


def test_links_of_clients_that_are_not_shown_are_left_out():
    names = ["client-3/up", "client-4/up", "edge"]
    round_ = {"round": 1, "started_at_s": 0.0, "finished_at_s": 9.0}
    rounds = pd.DataFrame([{**round_, "critical_link": names[1]}])
    use = {"link": names, "from_s": 1.0, "to_s": 2.0, "bytes": [5.0, 6.0, 7.0]}
    use = pd.DataFrame({**use, "capacity_bytes_per_s": 9.0, "flows": [1, 1, 2]})
    clients = pd.DataFrame({"client": [3, 4], "prototype": "p"})
    tables = {"participations": pa.Table.from_pandas(clients)}
    run = SimpleNamespace(
        table=lambda name: tables.get(name) or pa.Table.from_pandas(use)
    )
    assert Timeline(run, rounds, clients, use).links() == ["client-4/up", "edge"]
    assert Timeline(run, rounds, clients[:1], use).links() == ["edge"]
    use["flows"] = 1  # nothing is shared: the shown client's own link stands for it
    assert Timeline(run, rounds, clients[:1], use).links() == ["client-3/up"]


def test_a_capacity_is_drawn_as_it_steps_also_while_idle():
    rows = [(1.0, 2.0, 9.0), (4.0, 5.0, 9.0), (5.0, 6.0, 4.0)]
    use = pd.DataFrame(rows, columns=["from_s", "to_s", "capacity_bytes_per_s"])
    x, y = frames.compute_capacity_steps(use, 0.0, 8.0)
    # through the idle time: it was the same around it
    assert x.tolist() == [1, 4, 4, 5, 5, 6]
    assert y.tolist() == [9, 9, 9, 9, 4, 4]
    x, y = frames.compute_capacity_steps(use.iloc[[0, 2]], 0.0, 8.0)
    assert np.isnan(x).sum() == 1  # nobody recorded when it stepped
    x, y = frames.compute_capacity_steps(use[:2], 0.0, 8.0)
    assert (x.tolist(), y.tolist()) == ([0, 8], [9, 9])
    x, y = frames.compute_capacity_steps(
        use, 0.5, 8.0, ([0.0, 3.0, 5.0, 9.0], [9.0, 7.0, 4.0, 1.0])
    )
    assert x.tolist() == [0.5, 3, 3, 5, 5, 8]
    assert y.tolist() == [9, 9, 7, 7, 4, 4]


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
    with pytest.raises(InputError, match=r"\*\.png"):
        save_picture(figure, tmp_path / "a.gif")
    with pytest.raises(
        InputError, match="cannot be written: No such file or directory"
    ):
        save_picture(figure, tmp_path / "nowhere" / "a.png")


@pytest.mark.parametrize("text", ["", "1in", "wide", "3 feet", "100in", "nan"])
def test_a_width_that_makes_no_sense_is_an_input_error(text):
    with pytest.raises(InputError, match="--width"):
        parse_width(text)


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
