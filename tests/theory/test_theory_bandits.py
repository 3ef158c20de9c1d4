"""What is known of bandits holds for those of simfed.

Figures and words are in docs/theory.md.

Rewards are 0 or 1 with known means. Everything is seeded, so a test that passes passes
again; confidences say how often a sound policy would fail under other seeds.
"""

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from theory_bandits import (
    FLOOR,
    FORGETFUL,
    GRID,
    MOVING,
    STEPS,
    STILL,
    UNFORGETTING,
    averages,
    best_arm_shares,
    certain_plays,
    constant,
    exploration_counts,
    interval,
    kind,
    play,
    regret_parts,
    slope,
    totals,
    tuned_exp3,
)
from theory_steps import Clients, Draws, exploitation, powers

from simfed.policy import build_policy

FALLS = [name for name in STILL if name != "exp3, mixing 0.1"]


def with_slow_ones_long(names):
    slow = ("thompson", "thompson, no discount", "ucb, window")
    return [pytest.param(n, marks=pytest.mark.long) if n in slow else n for n in names]


def test_ascend_explores_as_often_as_its_schedule_says():
    """Each client inside the interval that 99.99 % of them are in, all together inside
    99.9 %.
    """
    counts, expected, sd = exploration_counts(4000, seeds=12)
    for t in (100, 1000, 4000):
        z = (counts[:, t - 1] - expected[t - 1]) / sd[t - 1]
        assert np.abs(z).max() < norm.ppf(1 - 1e-4 / 2)
        assert abs(z.sum()) / np.sqrt(len(z)) < norm.ppf(1 - 1e-3 / 2)
    assert expected[-1] == pytest.approx(6 * np.sqrt(4000), rel=0.07)  # Σ c/√t ≈ 2·c·√T


@pytest.mark.parametrize("name", with_slow_ones_long(FALLS))
def test_average_regret_falls_where_nothing_changes(name):
    """From 1,000 to 16,000 plays, to less than half, with intervals that do not meet
    (95 %).
    """
    average = averages(STILL[name], GRID[-1], seeds=3)
    early, late = interval(average[:, 999]), interval(average[:, -1])
    assert late.mean < early.mean / 2
    gain = interval(average[:, 999] - average[:, -1])
    assert gain.low > 0


def test_a_constant_step_goes_on_choosing_wrongly_and_steps_of_one_over_n_do_not():
    """Three arms a tenth apart: with a step of 0.1 the wrong choices of a long run cost
    as much per play as those of a short one, within a factor of two; with 1/n next to
    none are left.
    """
    last, first = 20_000, 5_000
    constant_step, falling = (
        regret_parts(STEPS[name], last, 3).exploited
        for name in ("step 0.1", "step 1/n")
    )
    late = (constant_step[:, -1] - constant_step[:, -first - 1]).mean() / first
    early = constant_step[:, first - 1].mean() / first
    assert late > 0.01
    assert 0.5 < late / early < 2
    assert (falling[:, -1] - falling[:, -first - 1]).mean() / first < 0.1 * late


class Scripted:
    """Hands a policy the draws of one client, in the order in which it asks."""

    def __init__(self, draws, client):
        self._coins, self._arms = (
            iter(draws.coin[:, client]),
            iter(draws.arm[:, client]),
        )
        self._arm = 0

    def random(self):
        self._arm = next(self._arms)
        return next(self._coins)

    def integers(self, n):
        return self._arm


def test_many_clients_at_once_play_as_the_policy_plays():
    """The same draws, the same arms and utilities, play by play, over two blocks."""
    rng, means, step = np.random.default_rng(5), (0.5, 0.6, 0.4), np.array([0.1, 0.03])
    crowd = Clients.warmed_up(rng, step, means)
    policies = []
    for client in range(2):
        policy = build_policy(
            "ascend", ("a", "b", "c"), options={"ema": float(step[client])}
        )
        warm = [[float(crowd.utility[arm, client])] * 5 for arm in range(3)]
        policy._pulls, policy._slots_left = 15, [0, 0, 0]
        policy._warmup_rewards, policy._rewarded = warm, [5] * 3
        policies.append(policy)
    for plays in (300, 200):
        draws = Draws.of(rng, plays, 2, 3)
        played, explored = crowd.play(draws)
        for client, policy in enumerate(policies):
            script = Scripted(draws, client)
            for row in range(plays):
                pull = policy.pull(script)
                arm = policy.arms.index(pull.arm)
                assert (arm, pull.choice == "explore") == (
                    played[row, client],
                    explored[row, client],
                )
                policy.update(pull, float(draws.pay[row, client] < means[arm]))
            assert policy.values() == pytest.approx(crowd.utility[:, client], abs=1e-12)


def test_exploitation_with_a_constant_step_is_neither_linear_nor_in_the_root_of_plays():
    """It grows faster than √T, as the bound does not allow, and slower than T: its cost
    per play falls.
    """
    marks = (2_000, 40_000)
    (power,) = powers(exploitation((0.1,), 60, marks)[0.1].exploited, marks)
    assert power.low > 0.5
    assert power.high < 1


def test_the_schedule_plays_every_arm_as_often_as_the_root_of_all_plays_and_no_more():
    """Four times as many plays bring twice as many of an arm that is not the best."""
    plays = 16_000
    fewest = regret_parts(STEPS["step 1/n"], plays, 6, (0.2, 0.9, 0.2)).fewest.mean(
        axis=0
    )
    certain = certain_plays(plays)
    assert fewest[-1] == pytest.approx(certain[-1], rel=0.1)
    assert certain[-1] / certain[plays // 4 - 1] == pytest.approx(2, rel=0.05)
    assert certain[-1] < 0.02 * plays


def test_with_fixed_mixing_exp3_has_a_floor():
    """Per play γ·(gap to the mean of the arms), which no length of play undercuts."""
    for seed in range(2):
        regret = play(kind("exp3")(0, 0), constant(16_000), seed).regret[-8000:]
        floor = FLOOR * len(regret)
        # plays of mixing are binomial; 99.99 % of runs are above this
        assert (
            regret.sum() > floor - norm.ppf(1 - 1e-4) * np.sqrt(0.1 * len(regret)) * 0.4
        )
        assert regret.sum() < 1.5 * floor


@pytest.mark.parametrize("name", with_slow_ones_long(FORGETFUL))
def test_who_forgets_finds_the_arm_that_overtook_the_others(name):
    best = best_arm_shares(MOVING[name], 4000, seeds=4)
    plays = int(best[:, -500:].sum())
    assert binomtest(plays, 4 * 500, 0.6, alternative="greater").pvalue < 1e-4
    assert best[:, 1500:2000].mean() > 0.5


@pytest.mark.parametrize("name", ["ascend, ema 1/n", "exp3, mixing 0.1"])
def test_who_does_not_forget_has_not_found_it_as_many_plays_later(name):
    best = best_arm_shares(UNFORGETTING[name], 4000, seeds=4)
    assert best[:, 1500:2000].mean() > 0.8
    assert best[:, -500:].mean() < 0.4


@pytest.mark.long
@pytest.mark.parametrize("name", FORGETFUL)
def test_regret_grows_no_faster_than_the_root_of_changes_times_plays(name):
    """The 95 % interval of the slope of log regret over log(M·T) ends below 0.55."""
    sizes = [(plays, changes) for changes in (1, 9) for plays in (1000, 4000)]
    power = slope(totals(MOVING[name], sizes, seeds=5), [t * m for t, m in sizes])
    assert power.high < 0.55
    assert power.low > 0.2


@pytest.mark.long
def test_tuned_exp3_grows_like_the_root_of_plays_and_fixed_mixing_does_not():
    plays = (4000, 16_000)
    sizes = [(t, 0) for t in plays]
    tuned = slope(totals(tuned_exp3, sizes, seeds=8), plays)
    fixed = slope(totals(kind("exp3"), sizes, seeds=8), plays)
    assert 0.4 < tuned.mean < 0.6
    assert tuned.high < fixed.low
    assert fixed.low > 0.75  # on its way to 1
