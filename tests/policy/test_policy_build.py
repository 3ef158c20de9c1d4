"""From a kind and options to a policy."""

import pytest

from simfed import InputError
from simfed.policy import Exp3, build_policy


def test_a_kind_with_its_options():
    policy = build_policy(
        "exp3", ["a", "b"], reward_range=(0.0, 2.0), options={"mixing": 0.3}
    )
    assert isinstance(policy, Exp3)
    assert (list(map(str, policy.arms)), policy.high, policy.mixing) == (
        ["a", "b"],
        2.0,
        0.3,
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"mood": 1}, "mood"), ({}, "missing"), ({"depth": -1}, "depth below 0")],
)
def test_what_a_constructor_refuses_in_its_own_way_is_one_sentence(
    options, reason, add_part
):
    def mine(arms, reward_range, *, depth):
        if depth < 0:
            raise ValueError("depth below 0")

    add_part("policy", "mine", mine)
    with pytest.raises(
        InputError,
        match=rf"policy mine does not take these options: "
        rf".*{reason}.*",
    ):
        build_policy("mine", ["a"], options=options)
