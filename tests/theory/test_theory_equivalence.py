"""Time and learning meet in one contract, and nowhere else.

That a full barrier learns what a plain loop without a clock learns, and that sizes
known beforehand give the timeline of a run without learning, are laws of drawn worlds
(`tests/laws`).
"""

import json
import subprocess
import sys

import pytest
import worlds

from simfed import InputError
from simfed.ground import Streams
from simfed.learn import HostedWorkload, plain_rounds

ASCEND = {
    "kind": "ascend",
    "warmup": 1,
    "c": 1,
    "reward": {"local_loss": {"samples": 16}},
}
SHARED = {
    "clients[0].link": {"up": "5 Mbps", "down": "5 Mbps"},
    "clients[1].link": {"up": "2 Mbps", "down": "5 Mbps"},
    "network.server": {"receive": "3 Mbps", "send": "4 Mbps", "latency": "3 ms"},
}


def scenario(changes=(), **more):
    keys = {"client_order": "round-robin", "compression.k": 500, "evaluation.every": 2}
    return worlds.world("two", {**keys, **dict(changes), **more})


def plain_curve(plain, **options):
    streams = Streams(plain.seed)
    learns = plain.policy.kind != "uniform"
    workload = HostedWorkload(plain, streams, learns=learns)
    try:
        return list(plain_rounds(plain, workload, streams, **options))
    finally:
        workload.close()


@pytest.mark.parametrize("policy", [ASCEND, {"kind": "ucb"}])
def test_with_the_times_of_a_full_run_a_learning_policy_does_the_same_in_the_plain_loop(
    policy,
):
    plain = scenario(SHARED, policy=policy, rounds=6)
    run = worlds.play(plain)
    parts = run.participations.set_index(["round", "client"])
    tau_s = parts.training_s + parts.compression_s + parts.uplink_s
    rounds = plain_curve(plain, tau_s=lambda *key: tau_s[key])
    tested = []
    for p in rounds:
        for name, loss in p.outcome.shared_loss.items():
            one = p.outcome.evaluation.get(name)
            told = (one.accuracy, one.loss) if one else (None, None)
            tested.append((p.round, name, loss, *told))
    names = "round", "prototype", "kd_loss", "test_accuracy", "test_loss"
    rows = run.table("prototypes").to_pylist()
    assert tested == [tuple(row[name] for name in names) for row in rows]
    for column, told in (
        ("arm", lambda p: p.arms),
        ("uplink_bytes", lambda p: p.uplink_bytes),
        ("reward", lambda p: p.rewards),
    ):
        mine = {(p.round, client): x for p in rounds for client, x in told(p).items()}
        assert parts[column].dropna().to_dict() == mine


def test_a_clock_needs_no_torch(tmp_path):
    """Nor do data sets, the catalogue and what is read of codecs."""
    codecs = ["qsgd", "svd", "top-k+bf16", "random-k"]
    plain = worlds.change(worlds.TWO, {"compression.strategies": codecs})
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(plain))
    program = """
import sys, simfed
from simfed.learn import catalogue, data
data.load_dataset("mnist-mini")
catalogue.facts("resnet18", "cifar10")
simfed.run(sys.argv[1], time_only=True, progress=False)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def test_a_selection_is_told_losses_and_times_without_a_clock():
    two = {"participation.clients_per_round": 2, "rounds": 5}
    fastest = {"participation.selection": {"kind": "fastest", "bound": None}}
    rounds = plain_curve(
        scenario(two, **fastest), tau_s=lambda round, client: 4.0 - client
    )
    assert [sorted(played.arms) for played in rounds[2:]] == [[2, 3]] * 3
    useful = {"participation.selection": "oort", "policy": ASCEND}
    rounds = plain_curve(scenario(two, **useful))
    assert all(len(played.outcome.local_loss) == 2 for played in rounds)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"aggregation": {"mode": "deadline", "deadline": "1 s"}},
            "mode synchronous in learning",
        ),
        ({"clients[*].failure.upload": 0.5}, "nobody comes, goes or fails"),
    ],
)
def test_what_hangs_on_the_clock_is_refused_without_one(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        plain_curve(scenario(changes))
