"""What arms spend to reach an accuracy: the frame, the picture, the page's chart.

Runs are made up.
"""

import math

import pytest
import study_fakes as fakes

from simfed import InputError
from simfed.cli import main
from simfed.study import draw_study_figure, render_study_page
from simfed.study.tables import list_arms_tables
from simfed.study.target_figure import describe_target_figure, target_figure
from simfed.study.targets import build_places, choose_swept_axis

UP = "clients[*].link.up"


def of(rows, arm, target):
    return rows[(rows["arm"] == arm) & (rows["target"] == target)]


def test_bytes_do_not_depend_on_the_link_and_are_censored_at_the_end(studied):
    rows = studied.targets("sent")
    # 1 − exp(−t/20) passes 0.5 in round 13.9; evaluated every 5 rounds
    assert list(of(rows, "top-k", 0.5)["median"]) == [15 * fakes.UPLINK_BYTES] * 2
    never = of(rows, "periodic-k", 0.9).iloc[0]
    assert (never[UP], never["reached"], never["seeds"]) == ("5 Mbps", 0, 3)
    assert math.isnan(never["median"])
    assert never["at_least"] == 60 * fakes.UPLINK_BYTES
    assert never["high"] == math.inf


@pytest.mark.parametrize(
    ("merged_after", "joules"), [(0, [30, 120]), (1, [28, 118]), (20, [0, 80])]
)
def test_energy_of_clients_counts_in_the_round_whose_merge_it_came_to(
    write_arms, make_up, monkeypatch, merged_after, joules
):
    monkeypatch.setattr(fakes, "JOULES", 2.0)
    monkeypatch.setattr(fakes, "MERGED_AFTER", merged_after)
    # passed in round 15, and not in 60
    rows = make_up(write_arms("tp", 0.5, seeds=[0, 1])).targets("energy")
    assert (list(rows["at_least"]), list(rows["reached"])) == (joules, [2, 0])


def test_quantities_that_are_not_known_are_refused(studied):
    for quantity, said in (
        ("energy", "devices without power"),
        ("money", "time, sent, moved or energy"),
    ):
        with pytest.raises(InputError, match=said):
            studied.targets(quantity)


def test_the_axis_with_numbers_is_drawn_against_unless_another_is_asked_for(
    write_arms, make_up
):
    grid = {"downlink.payload": ["fp32", "fp16"], UP: ["2 Mbps", "20 Mbps", "2 Gbps"]}
    path = write_arms("tr", 0.5, seeds=[0], grid=grid)
    study = make_up(path)
    assert choose_swept_axis(study) == UP
    assert choose_swept_axis(study, "payload") == "downlink.payload"
    for axis in ("k", "strategy"):  # which holds the arms
        with pytest.raises(InputError, match="payload or up"):
            choose_swept_axis(study, axis)
    # of their logarithms
    assert build_places(study, UP).at == pytest.approx((0, 1 / 3, 1))
    axes = target_figure(study).axes
    assert [ax.get_title() for ax in axes] == ["payload fp32", "payload fp16"]
    # a name may have dollar signs
    assert not any(ax.title.get_parse_math() for ax in axes)
    assert words(axes[0].get_xticklabels()) == ["2 Mbps", "20 Mbps", "2 Gbps"]


def words(texts):
    return [text.get_text() for text in texts]


def test_the_picture_marks_what_is_censored(studied):
    figure = target_figure(studied, width_in=5, height_in=3)
    assert list(figure.get_size_inches()) == [5, 3]
    assert [ax.get_title() for ax in figure.axes] == ["to 50 %", "to 90 %"]
    for ax, (_, rows) in zip(
        figure.axes, studied.targets().groupby("target"), strict=True
    ):
        marks = [line for line in ax.lines if line.get_marker() not in ("None", "")]
        assert len(marks) == len(rows)
        hollow = sum(mark.get_markerfacecolor() == "white" for mark in marks)
        assert hollow == rows["median"].isna().sum()
    assert hollow > 0
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "strategy"
    said = words(legend.get_texts())
    assert said[:3] == ["top-k", "random-k", "periodic-k"]
    assert "later than this, or never" in said
    assert "Hollow marks are bounds" in describe_target_figure(studied)
    assert "Hollow" not in describe_target_figure(studied, targets=[0.3])


def test_without_a_swept_axis_there_is_a_row_per_arm(write_arms, make_up):
    study = make_up(write_arms("tr", 0.5))
    (ax,) = target_figure(study).axes
    assert words(ax.get_yticklabels()) == ["top-k", "random-k"]
    assert ax.get_xlabel() == "simulated time to 50 % (s)"


def test_the_page_has_a_table_of_every_quantity_and_target(studied):
    tables = list_arms_tables(studied)
    assert list(tables) == ["time", "sent", "moved"]
    for quantity, table in tables.items():
        assert table.header[4::2] == ("to 50 %", "to 90 %"), quantity
        (never,) = (row for row in table.rows if row[:2] == ("up 5 Mbps", "periodic-k"))
        assert (never[2], never[-1]) == ("3", "0 of 3")
        assert never[-2].startswith("> ")
    page = render_study_page(studied)
    # three quantities and the curves
    assert page.count("<svg") - page.count("<svg:") >= 4
    assert "Moved both ways: the median over 3 seeds" in page


def test_a_mark_has_its_interval(studied):
    # which seeds reach in two rounds
    (ax,) = target_figure(studied, targets=[0.78]).axes
    strokes = [line for line in ax.lines if line.get_zorder() == 3]
    assert len(strokes) == len(studied.targets(targets=[0.78]))
    # all that got there
    assert sum(len({*line.get_ydata()}) == 2 for line in strokes) == 4


def test_the_picture_as_typed(studied, tmp_path, capsys):
    out = tmp_path / "figure.svg"
    ask = ["study", "report", str(studied.path), "--out", str(out)]
    assert main([*ask, "--spent", "sent", "--target", "60%", "--width", "88mm"]) == 0
    assert "Sent by clients: the median over 3 seeds" in capsys.readouterr().out
    picture = out.read_text()
    assert "sent by clients" in picture
    assert 'width="249.4' in picture  # points
    assert main([*ask, "--figure", "curves", "--height", "5cm", "--ymin", "20%"]) == 0
    assert 'height="141.7' in out.read_text()
    said = capsys.readouterr().out
    assert "Accuracy on the test set over simulated time: the mean over 3 seeds" in said
    assert "Dashed: " in said
    assert "(95 %, Student's t)" in said


def test_curves_begin_where_they_are_asked_to(studied):
    for asked, least in (({}, 0.0), ({"y_min": 0.2}, 0.2)):
        figure = draw_study_figure(studied, **asked)
        assert {ax.get_ylim()[0] for ax in figure.axes} == {least}
    assert figure.legends[0].get_title().get_text() == "strategy"
    with pytest.raises(InputError, match=r"--ymin: got '99\.9 %', expected a value b"):
        draw_study_figure(studied, y_min=0.999)


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--figure", "map", "got 'map', expected targets or curves"),
        ("--spent", "tim", "got 'tim', expected time, sent, moved or energy (did you"),
        ("--target", "120%", "got '120%', expected an accuracy such as 85% or 0.85"),
        ("--height", "1 mm", "got '1 mm', expected a height of 1 to 40 in"),
        ("--over", "policy", "got 'policy', expected up"),
        ("--ymin", "20%", "got '--figure targets', expected --figure curves"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    studied, tmp_path, capsys, option, value, complaint
):
    ask = ["study", "report", str(studied.path), "--out", str(tmp_path / "f.png")]
    assert main([*ask, option, value]) == 2
    assert f"{option}: {complaint}" in capsys.readouterr().err


def test_accuracies_that_guessing_reaches_are_left_out(
    write_arms, make_up, monkeypatch
):
    monkeypatch.setattr(fakes, "CLASSES", 2)
    study = make_up(write_arms("tr", 0.3, 0.5, 0.6))
    assert study.thresholds == [0.6]
    assert study.caveat == "Not compared: 30 % and 50 %; guessing reaches 50 %."
    assert len(study.verdicts) == 1
