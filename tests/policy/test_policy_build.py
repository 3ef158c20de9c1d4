"""From a kind and options to a policy."""

import pytest

from simfed import InputError
from simfed.policy import build_policy


def test_a_kind_with_its_options():
    policy = build_policy(
        "exp3", ["a", "b"], reward_range=(0.0, 2.0), options={"mixing": 0.3}
    )
    assert " ".join(map(str, policy.arms)) == "a b"
    assert (policy.high, policy.mixing) == (2.0, 0.3)


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
    sentence = rf"policy mine does not take these options: .*{reason}.*"
    with pytest.raises(InputError, match=sentence):
        build_policy("mine", ["a"], options=options)
