"""What the page says of `balance` and its rivals is what the registered rules make of
the rows.
"""

import pandas as pd
import pytest
import rivals_figure
from kept import read

ARMS = [arm for arms in rivals_figure.RIVALS.values() for arm in arms]


def made_up(balance_s, rival_s, seeds=8):
    """Rows in which every rival takes `rival_s`, its first arm a bit less, and bytes
    are alike.
    """
    times = dict.fromkeys(ARMS, rival_s * 1.2) | {"balance": balance_s}
    times |= {arms[0]: rival_s for arms in rivals_figure.RIVALS.values()}
    return pd.DataFrame(
        [
            {"setting": "here", "list": arm, "seed": seed, "reached": True,
             "at_s": s * (1 + 0.001 * ((seed * len(arm)) % 7)),
             "uplink_bytes": 100.0 + seed % 2}
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


def beside(rows, setting, arm, spent):
    """How many times what `balance` needs an arm needs."""
    there = rivals_figure.amounts(rows, spent).query("setting == @setting")
    return rivals_figure.against(there, setting, "balance", arm)


def test_sentences_say_of_one_arm_what_it_takes():
    page = " ".join(rivals_figure.PAGE.read_text(encoding="utf-8").split())
    rows = read(rivals_figure.ROWS)

    def share(setting, arm):
        return beside(rows, setting, arm, "bytes").paired.ratio.exact

    one, sparing = (share("LTE-like traces", f"bcrs {k}") for k in ("1%", "0.3%"))
    drawn, wifi = share("drawn fleet", "bcrs 1%"), 100 * share("Wi-Fi cell", "bcrs 3%")
    for said in (
        f"BCRS at 1 % (1.01 [0.91, 1.12]), which sends {drawn:.1f} times as much",
        f"at 1 % for {one:.1f} times the bytes, at 0.3 %, where it is most sparing, "
        f"for {sparing:.1f} times",
        f"BCRS at 3 % is 1.2 times sooner for {wifi:.0f} % of the bytes",
    ):
        assert said in page


def test_fewer_seeds_than_registered_decide_nothing():
    verdicts = rivals_figure.judge(made_up(5.0, 10.0, seeds=4))
    assert {v.word for v in verdicts} == {"not decided"}
