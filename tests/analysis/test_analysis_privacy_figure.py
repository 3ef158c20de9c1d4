"""The picture of ε and accuracy, from made-up runs, and the real ones' scenarios."""

import pandas as pd
import pytest
from privacy_figure import (
    CODECS,
    Row,
    at_one_instant,
    price_table,
    privacy_figure,
    time_table,
)


def rows(pace_s, seeds=2, top=0.6):
    """Runs of three evaluations, 10 rounds apart.

    `pace_s`: codec → seconds of ten rounds.
    """
    made = []
    for codec, s in pace_s.items():
        for budget in (3.0, None):
            for seed in range(seeds):
                for nth in (1, 2, 3):
                    spent = None if budget is None else budget * nth / 3
                    accuracy = top * nth / 3 + 0.01 * seed - (0.05 if budget else 0.0)
                    at = 10 * nth, s * nth, accuracy, spent, 1e6
                    made.append(Row("lenet5", codec, budget, seed, "5 Mbps up", *at))
    return pd.DataFrame(made)


def test_all_are_read_when_the_fastest_is_through():
    points = at_one_instant(rows({"dense": 20.0, "8 bit": 10.0}))
    assert set(points["instant_s"]) == {30.0}
    last = points.groupby("codec")["round"].unique().map(list).to_dict()
    assert last == {"dense": [10], "8 bit": [30]}
    assert points["epsilon"].dropna().min() == pytest.approx(1.0)


def test_a_budget_costs_points_and_seconds():
    points = at_one_instant(rows(dict.fromkeys(CODECS, 10.0), top=0.84))
    table = price_table(points, "lenet5").splitlines()
    assert len(table) == 2 + len(CODECS)
    assert sum("(−5.0 ± 0.0)" in line for line in table) == len(CODECS)
    seconds = time_table(points, "lenet5").splitlines()[2:]
    assert [line.split("|")[3:7] for line in seconds] == [
        [" 30.0 ", " – ", " – ", " – "]
    ] * 5
    figure = privacy_figure(points)
    assert len(figure.axes) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CODECS)
