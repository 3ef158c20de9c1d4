"""The picture of ε and accuracy, and the instant at which it is read."""

import pandas as pd
import pytest
from privacy_figure import CODECS, ROWS, Row, at_one_instant, privacy_figure


def test_all_are_read_when_the_fastest_is_through():
    """Runs of three evaluations, 10 rounds apart."""
    rows = [
        Row("lenet5", codec, 3.0, 0, "5 Mbps up", 10 * n, pace_s * n, 0.2 * n, n, 1e6)
        for codec, pace_s in (("dense", 20.0), ("8 bit", 10.0))
        for n in (1, 2, 3)
    ]
    points = at_one_instant(pd.DataFrame(rows))
    assert set(points["instant_s"]) == {30.0}
    last = points.set_index("codec")["round"]
    assert last.to_dict() == {"dense": 10, "8 bit": 30}
    assert points["epsilon"].min() == pytest.approx(1.0)


def test_the_picture_has_a_line_for_each_codec():
    (legend,) = privacy_figure(pd.read_csv(ROWS)).legends
    assert [text.get_text() for text in legend.get_texts()] == list(CODECS)
