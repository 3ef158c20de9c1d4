"""Many rounds against the textbook loop: the choices of learning policies, and what is
learnt.
"""

from __future__ import annotations

import engine_worlds as tiny
import pytest
from engine_worlds import Host
from reference_loop import ReferenceLoop

from simfed.ground.seeding import Streams

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]


def scenario(rounds, **changes):
    plain = {
        "rounds": rounds,
        "dataset": {"name": "mnist-mini", "public": 64},
        "clients": [
            {"count": 2, "prototype": "small", "device": "any"},
            {"count": 2, "prototype": "large", "device": "any"},
        ],
        "training": {"batch_size": 32, "learning_rate": 0.05},
        "policy": {"kind": "ascend", "reward": {"local_loss": {"samples": 64}}},
        "evaluation": {"every": rounds},
    }
    return tiny.scenario(**{**plain, **changes})


@pytest.mark.parametrize("policy", ["ascend", "exp3"])
def test_learning_policies_choose_the_same_for_fifty_rounds(policy):
    made = scenario(
        50, policy={"kind": policy, "reward": {"local_loss": {"samples": 64}}}
    )
    streams = Streams(made.seed)
    reference, host = ReferenceLoop(made, streams), Host(made)
    arms = set()
    for ours in host.rounds():
        assert ours.arms == reference.round(ours.round)["arms"]
        arms.update(ours.arms.values())
    assert arms == {"top-k", "random-k", "periodic-k"}


def test_three_seeds_learn_what_the_textbook_loop_learns():
    # A convex model: kinks (ReLU, pooling) let a last bit grow until two runs go apart
    # as two seeds do; `analysis/benchmarks/learning.py accuracy` compares means over
    # seeds there.
    for seed in range(3):
        made = scenario(
            150,
            seed=seed,
            prototypes={
                n: {"model": "logistic-regression"} for n in ("small", "large")
            },
            training={"batch_size": 32, "learning_rate": 0.1},
            policy={"kind": "uniform", "strategy": "top-k"},
        )
        streams = Streams(seed)
        reference, host = ReferenceLoop(made, streams), Host(made)
        for played in host.rounds():
            reference.round(played.round)
        accuracies = {
            name: each.accuracy for name, each in played.outcome.evaluation.items()
        }
        assert accuracies == pytest.approx(reference.accuracy(), abs=0.005)
        assert min(accuracies.values()) > 0.7  # something was learnt
