"""What the page says of `balance` and its rivals is what the registered rules make of the rows."""

import pandas as pd
import pytest
import rivals_figure

ARMS = [arm for arms in rivals_figure.RIVALS.values() for arm in arms]


def made_up(balance_s, rival_s, seeds=8):
    """Rows in which every rival takes `rival_s`, its first arm a bit less, and bytes are alike."""
    times = dict.fromkeys(ARMS, rival_s * 1.2) | {"balance": balance_s}
    times |= {arms[0]: rival_s for arms in rivals_figure.RIVALS.values()}
    return pd.DataFrame(
        [
            {"setting": "here", "list": arm, "seed": seed, "reached": True,
             "at_s": s * (1 + 0.001 * ((seed * len(arm)) % 7)), "uplink_bytes": 100.0 + seed % 2}
            for arm, s in times.items()
            for seed in range(seeds)
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("balance_s", "word"), [(5.0, "wins"), (20.0, "loses"), (9.8, "cannot be told")]
)
def test_the_verdict_asks_for_a_sure_difference_that_matters(balance_s, word):
    verdicts = rivals_figure.judge(made_up(balance_s, 10.0))
    assert [v.word for v in verdicts if v.spent == "time"] == [word] * 3
    assert [v.word for v in verdicts if v.spent == "bytes"] == ["cannot be told"] * 3
    assert {v.against.reference for v in verdicts if v.rival == "BCRS"} == {"bcrs 0.3%"}


def test_fewer_seeds_than_registered_decide_nothing():
    verdicts = rivals_figure.judge(made_up(5.0, 10.0, seeds=4))
    assert {v.word for v in verdicts} == {"not decided"}
