"""Policies that were written for arms as text run through one adapter."""

from types import SimpleNamespace

import numpy as np
import pytest

from simfed.compress.choice import Choice
from simfed.fleet.tasks import choose_pull
from simfed.ground.errors import InputError
from simfed.ground.levels import Level
from simfed.ground.seeding import Streams
from simfed.policy import Ascend, Policy, Pull, build_policy
from simfed.testing import check_policy


class TopKFirst(Policy):
    """As such policies were written: it reads its arms' labels, and answers with one."""

    learns = True

    def __init__(self, arms, reward_range=(-1.0, 1.0), *, first="top-k"):
        self.arms = tuple(sorted(arms, key=lambda arm: not arm.startswith(first)))
        self.paid = dict.fromkeys(self.arms, 0.0)

    def pull(self, rng):
        best = max(self.arms, key=lambda arm: self.paid[arm])
        return Pull(best, "exploit")

    def update(self, pull, reward):
        if pull.choice != "forced":
            self.paid[pull.arm] += reward

    def void(self, pull):
        pass

    def values(self):
        return tuple(self.paid[arm] for arm in self.arms)

    def state(self):
        return {"paid": self.paid}

    def restore(self, state):
        self.paid = dict(state["paid"])


@pytest.fixture(autouse=True)
def registered(add_part):
    """For these tests alone: others play every policy that there is."""
    add_part("policy", "top-k-first", TopKFirst)


def test_a_policy_for_text_gets_labels_and_gives_choices():
    arms = Choice("random-k", 5), Choice("top-k", "1%")
    policy = build_policy("top-k-first", arms)
    assert policy.arms == arms[::-1]
    pull = policy.pull(np.random.default_rng(0))
    assert pull.arm == arms[1]
    policy.update(pull, -1.0)
    assert policy.pull(np.random.default_rng(0)).arm == arms[0]
    assert policy.values() == (-1.0, 0.0)
    again = build_policy("top-k-first", arms)
    again.restore(policy.state())
    assert again.values() == policy.values()


def test_it_keeps_the_contract():
    check_policy(TopKFirst)


def test_it_is_one_of_two_bandits():
    arms = [Choice(codec, k) for codec in ("top-k", "random-k") for k in (5, 9)]
    policy = build_policy("top-k-first", arms, factored=True)
    assert policy.pull(np.random.default_rng(0)).arm == Choice("top-k", 5)


class Twice(TopKFirst):
    """It sets K itself, and looks at what comes back."""

    def pull(self, rng):
        return Pull(self.arms[0], "exploit", k=7)

    def update(self, pull, reward):
        super().update(pull, reward * (pull.k == 7))


def test_k_goes_in_as_a_number_and_comes_back_as_one(add_part):
    add_part("policy", "twice", Twice)
    policy = build_policy("twice", [Choice("top-k", 5)])
    pull = policy.pull(np.random.default_rng(0))
    assert pull.k == Level("entries", 7)
    policy.update(Pull.of_plain(pull.plain()), 0.5)
    assert policy.values() == (0.5,)


class Answers(Ascend):
    """It is given choices, as its parent is, but answers with text."""

    def pull(self, rng):
        return Pull("top-k", "explore")


def test_text_where_a_choice_is_due_is_one_sentence():
    task = SimpleNamespace(plan=SimpleNamespace(longest=9), client=0, key=1)
    policy = Answers((Choice("top-k"),))
    with pytest.raises(InputError, match=r"policy Answers: got 'top-k', expected one of the"):
        choose_pull(task, policy, None, Streams(0))
