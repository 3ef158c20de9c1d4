"""What an oracle says of the course of a run."""

import oracle
import pandas as pd
import pytest
from oracle import gain_over_time, keep, play, samples, shares_over_thirds


def table(best, played="top-k", rounds=range(25, 301, 25)):
    """One client of each prototype; `best(prototype, round)` would bring 1, the others 0.25."""
    rows = [
        {
            "round": r,
            "client": client,
            "prototype": prototype,
            "arm": arm,
            "played": arm == played,
            "choice": "exploit",
            "reward_raw": 1.0 if arm == best(prototype, r) else 0.25,
            "reward": 0.0,
        }
        for r in rounds
        for client, prototype in enumerate(("lenet5-half", "lenet5"))
        for arm in ("top-k", "random-k", "periodic-k")
    ]
    return pd.DataFrame(rows)


def changing(prototype, r):
    return "top-k" if prototype == "lenet5" or r <= 100 else "random-k"


@pytest.fixture
def runs(tmp_path):
    """Two seeds of a run in which the half model's best strategy changes after a third."""
    for seed in (0, 1):
        keep(table(changing), 1000, seed, tmp_path)
    return tmp_path


def test_shares_of_the_best_are_told_by_prototype_and_third(runs):
    half, whole = (shares_over_thirds("best", 1000, one, runs) for one in ("lenet5-half", "lenet5"))
    assert half["top-k"][:2] == (1.0, 0.0)
    assert half["random-k"][:2] == (0.0, 1.0)
    assert half["random-k"][2].least == pytest.approx(1.0)
    assert whole["top-k"][:2] == (1.0, 1.0)
    assert shares_over_thirds("best", 5000, "lenet5", runs) == {}


def test_choices_are_those_that_were_free(runs):
    forced = table(changing, played="random-k").assign(choice="forced")
    late = table(changing, played="periodic-k").query("round > 200")
    keep(pd.concat([forced.query("round <= 200"), late]), 1000, 0, runs)
    shares = shares_over_thirds("chosen", 1000, "lenet5", runs)
    assert shares["random-k"][1] == 0.0
    assert shares["periodic-k"][1] == pytest.approx(0.5)  # of two seeds one chose it late
    assert shares["top-k"][1] == pytest.approx(0.5)


def test_gains_are_shares_of_what_the_best_choice_gains(runs):
    first, middle, last = gain_over_time(1000, runs)
    # Top-K always: right for everybody at first, then for one of two; by chance a third
    assert first == pytest.approx((1.0, 0.25, 1.0))
    assert middle == last == pytest.approx(((0.5 * 0.75 - 0.25) / 0.5, 1.0, 0.5))


def test_what_is_kept_is_the_same_to_the_byte_and_is_not_played_again(runs, monkeypatch, tmp_path):
    file = runs / "k1000-seed0.csv.gz"
    before = file.read_bytes()
    keep(table(changing), 1000, 0, runs)
    assert file.read_bytes() == before
    assert set(samples(1000, runs)) == {0, 1}
    monkeypatch.setattr(oracle, "KS", (1000,))
    monkeypatch.setattr(oracle, "SEEDS", (0, 1))
    play(tmp_path / "out", runs)
    assert not (tmp_path / "out").exists()


def test_clipped_rewards_make_strategies_equal_which_then_share_being_best(runs):
    """In the made-up table all clipped rewards are equal: nobody is better than chance."""
    half = shares_over_thirds("best", 1000, "lenet5-half", runs, "reward")
    assert {arm: early for arm, (early, _, _) in half.items()} == pytest.approx(
        dict.fromkeys(("top-k", "random-k", "periodic-k"), 1 / 3)
    )
    clipped = table(changing)
    clipped["reward"] = clipped["reward_raw"].clip(upper=0.5)
    for seed in (0, 1):
        keep(clipped, 1000, seed, runs)
    # less is to be gained, and the shares of it are the same
    assert gain_over_time(1000, runs, "reward")[0] == pytest.approx((1.0, 0.25, 1.0))
