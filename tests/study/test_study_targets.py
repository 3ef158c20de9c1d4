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


def of(rows, arm, target, setting=None):
    rows_of_arm = rows[(rows["arm"] == arm) & (rows["target"] == target)]
    return (
        rows_of_arm
        if setting is None
        else rows_of_arm[rows_of_arm[UP] == setting].iloc[0]
    )


def test_bytes_do_not_depend_on_the_link_and_are_censored_at_the_end(studied):
    rows = studied.targets("sent")
    # 1 − exp(−t/20) passes 0.5 in round 13.9; evaluated every 5 rounds
    assert list(of(rows, "top-k", 0.5)["median"]) == [15 * fakes.UPLINK_BYTES] * 2
    never = of(rows, "periodic-k", 0.9, "5 Mbps")
    assert (never["reached"], never["seeds"]) == (0, 3)
    assert math.isnan(never["median"])
    assert never["at_least"] == 60 * fakes.UPLINK_BYTES
    assert never["high"] == math.inf


def test_energy_is_summed_over_clients_and_rounds(
    write_arms, tmp_path, monkeypatch, studied
):
    with pytest.raises(InputError, match="devices without power"):
        studied.targets("energy")
    with pytest.raises(InputError, match="time, sent, moved or energy"):
        studied.targets("money")
    monkeypatch.setattr(fakes, "JOULES", 2.0)
    path = write_arms("tp", 0.5, seeds=[0, 1])
    rows = fakes.make_up(path, tmp_path / "out").targets("energy")
    assert list(rows["at_least"]) == [30.0, 120.0]
    assert list(rows["reached"]) == [2, 0]


@pytest.mark.parametrize(("rounds", "joules"), [(1, 28.0), (20, 0.0)])
def test_energy_counts_in_the_round_whose_merge_it_came_to(
    write_arms, tmp_path, monkeypatch, rounds, joules
):
    monkeypatch.setattr(fakes, "JOULES", 2.0)
    monkeypatch.setattr(fakes, "MERGED_AFTER", rounds)
    path = write_arms("t", 0.5, seeds=[0])  # passed in round 15
    rows = fakes.make_up(path, tmp_path / "out").targets("energy")
    assert (list(rows["at_least"]), list(rows["reached"])) == ([joules], [1])


def test_the_axis_with_numbers_is_drawn_against_unless_another_is_asked_for(
    write_arms, tmp_path
):
    grid = {"downlink.payload": ["fp32", "fp16"], UP: ["2 Mbps", "20 Mbps", "2 Gbps"]}
    path = write_arms("tr", 0.5, seeds=[0], grid=grid)
    study = fakes.make_up(path, tmp_path / "out")
    assert choose_swept_axis(study) == UP
    assert choose_swept_axis(study, "payload") == "downlink.payload"
    with pytest.raises(InputError, match="payload or up"):
        choose_swept_axis(study, "k")
    with pytest.raises(InputError, match="payload or up"):
        choose_swept_axis(study, "strategy")  # it holds the arms
    # of their logarithms
    assert build_places(study, UP).at == pytest.approx((0, 1 / 3, 1))
    figure = target_figure(study)
    assert [ax.get_title() for ax in figure.axes] == ["payload fp32", "payload fp16"]
    # a name may have dollar signs
    assert not any(ax.title.get_parse_math() for ax in figure.axes)
    ticks = figure.axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["2 Mbps", "20 Mbps", "2 Gbps"]


def marks(ax):
    """(colour, filling) of every mark with a colour of its own."""
    drawn = [line for line in ax.lines if line.get_marker() not in ("None", "")]
    return [(line.get_markeredgecolor(), line.get_markerfacecolor()) for line in drawn]


def test_the_picture_marks_what_is_censored(studied):
    figure = target_figure(studied, width_in=5, height_in=3)
    assert list(figure.get_size_inches()) == [5, 3]
    at_50, at_90 = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ["to 50 %", "to 90 %"]
    rows = studied.targets()
    for ax, target in ((at_50, 0.5), (at_90, 0.9)):
        of_target = rows[rows["target"] == target]
        assert len(marks(ax)) == len(of_target)
        hollow = sum(face == "white" for _, face in marks(ax))
        assert hollow == of_target["median"].isna().sum()
    assert sum(face == "white" for _, face in marks(at_90)) > 0
    legend = [text.get_text() for one in figure.legends for text in one.get_texts()]
    assert legend[:3] == ["top-k", "random-k", "periodic-k"]
    assert "later than this, or never" in legend
    assert "Hollow marks are bounds" in describe_target_figure(studied)
    assert "Hollow" not in describe_target_figure(studied, targets=[0.3])


def test_without_a_swept_axis_there_is_a_row_per_arm(write_arms, tmp_path):
    study = fakes.make_up(write_arms("tr", 0.5), tmp_path / "out")
    (ax,) = target_figure(study).axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["top-k", "random-k"]
    assert ax.get_xlabel() == "simulated time to 50 % (s)"


def test_the_page_has_a_table_of_every_quantity_and_target(studied):
    tables = list_arms_tables(studied)
    assert list(tables) == ["time", "sent", "moved"]
    for quantity, table in tables.items():
        assert table.header[4::2] == ("to 50 %", "to 90 %"), quantity
        never = next(
            row for row in table.rows if row[:2] == ("up 5 Mbps", "periodic-k")
        )
        assert (never[2], never[-1]) == ("3", "0 of 3")
        assert never[-2].startswith("> ")
    page = render_study_page(studied)
    # three quantities and the curves
    assert page.count("<svg") - page.count("<svg:") >= 4
    assert "Moved both ways: the median over 3 seeds" in page


def test_a_legend_has_a_title_and_a_mark_its_interval(studied):
    figure = target_figure(studied)
    assert figure.legends[0].get_title().get_text() == "strategy"
    assert draw_study_figure(studied).legends[0].get_title().get_text() == "strategy"
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
    said = capsys.readouterr().out
    assert "Sent by clients: the median over 3 seeds" in said
    assert "sent by clients" in out.read_text()
    assert 'width="249.4' in out.read_text()  # points
    assert main([*ask, "--figure", "curves", "--height", "5cm", "--ymin", "20%"]) == 0
    assert 'height="141.7' in out.read_text()
    said = capsys.readouterr().out
    assert "Accuracy on the test set over simulated time: the mean over 3 seeds" in said
    assert "Dashed: " in said
    assert "(95 %, Student's t)" in said


def test_curves_begin_where_they_are_asked_to(studied):
    least = {ax.get_ylim()[0] for ax in draw_study_figure(studied, y_min=0.2).axes}
    assert least == {0.2}
    assert {ax.get_ylim()[0] for ax in draw_study_figure(studied).axes} == {0.0}
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
    write_arms, tmp_path, monkeypatch
):
    monkeypatch.setattr(fakes, "CLASSES", 2)
    study = fakes.make_up(write_arms("tr", 0.3, 0.5, 0.6), tmp_path / "out")
    assert study.thresholds == [0.6]
    assert study.caveat == "Not compared: 30 % and 50 %; guessing reaches 50 %."
    assert len(study.verdicts) == 1
