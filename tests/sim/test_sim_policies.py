"""Pulls, rewards, forced rounds and lost uploads, with a scripted learning side."""

import itertools
import math

import pytest
import sim_worlds as sim

from simfed import RunFailed
from simfed.fleet import Evaluation
from simfed.net import Star
from simfed.policy import Ascend

UNCLIPPED = {"kind": "ascend", "warmup": 1, "reward": {"clip": None}}
ARMS = ["periodic-k", "random-k", "top-k"]


def build(plain, script, **options):
    """Clients of 1 s and 0.5 s whose c-th uploads at 8000 (c + 1) bytes/s."""
    count = plain.client_count
    rates = [8000.0 * (c + 1) for c in range(count)]
    parts = {
        "devices": [sim.Fixed() for _ in range(count)],
        "star": Star(count, up_bytes_per_s=rates),
    }
    workload = sim.Scripted(plain, script)
    return sim.build(plain, workload=workload, **{**parts, **options})


def ascend(**changes):
    policy = {"kind": "ascend", "warmup": 1, "reward": {"rho": 0.5, "beta": 0.25}}
    return sim.scenario(**{"policy": policy, **changes})


def losses(kd, before, **more):
    return {
        "shared_loss": {"small": kd},
        "shared_loss_before": {"small": before},
        "local_loss": {c: (2.0, 1.0 + c) for c in range(4)},
        **more,
    }


def test_the_reward_is_gain_over_training_compression_and_upload():
    alike = {
        "index_code": "seeded",
        "k": 1998,
        "strategies": ["random-k", "periodic-k"],
    }
    world = build(ascend(compression=alike), {1: losses(1.0, before=3.0)}).run()
    names = "client", "gain", "reward_raw", "reward", "local_loss"
    for client, gain, raw, reward, loss in world.rows("participations", *names)[:4]:
        assert gain == 0.5 * (3.0 - 1.0) + 0.25 * (2.0 - (1.0 + client))
        assert raw == gain / (1.0 + 0.5 + 1.0 / (client + 1))
        assert reward == max(-1.0, min(1.0, raw))
        assert loss == 1.0 + client


def in_flight(aggregation, script, **options):
    """What is merged by a server that keeps clients in flight, whose losses are
    given.
    """
    made = ascend(aggregation=aggregation, rounds=len(script), **options)
    rows = build(made, script).run().rows("participations")
    return [row for row in rows if row["outcome"] == "aggregated"]


def test_a_late_upload_is_paid_for_the_way_from_the_version_it_trained_on():
    # of the initial models and after each merge
    levels = [9.0, 7.0, 6.0, 4.0, 3.5, 3.0]
    script = {
        merge: losses(level, before, local_loss={})
        for merge, (before, level) in enumerate(itertools.pairwise(levels), 1)
    }
    merged = in_flight({"mode": "asynchronous", "concurrency": 4}, script)
    assert max(row["staleness"] for row in merged) == 3
    for row in merged:
        way = levels[row["model_version"]] - levels[row["merge"]]
        assert row["gain"] == 0.5 * way


def test_each_of_a_clients_two_uploads_in_one_merge_is_paid_by_its_own_losses():
    told = {"local_loss": {"0/1": (5.0, 1.0), "0/1.1": (3.0, 1.0), "1/1": (2.0, 1.0)}}
    aggregation = {"mode": "buffered", "buffer": 4, "concurrency": 2}
    merged = in_flight(aggregation, {1: told}, clients=2)
    gains = {(row["client"], row["gain"]) for row in merged}
    assert gains >= {(0, 0.25 * 4.0), (0, 0.25 * 2.0), (1, 0.25 * 1.0)}


def test_waiting_downlink_and_server_work_are_no_part_of_the_rewards_time():
    server = sim.Fixed(decompression=5.0, inference=5.0, distillation=5.0)
    quick, slow = (
        build(ascend(), {1: losses(1.0, before=3.0)}, server_device=device).run()
        for device in (None, server)
    )
    first_s = [world.column("rounds", "duration_s")[0] for world in (quick, slow)]
    assert first_s[1] > first_s[0] + 40
    rewards = [world.column("participations", "reward") for world in (quick, slow)]
    assert rewards[0] == rewards[1]


def test_a_missing_loss_counts_nothing():
    script = {1: {"shared_loss": {"small": 1.0}}}  # no earlier KD loss, no local losses
    world = build(ascend(), script).run()
    assert world.column("participations", "gain")[:4] == [0.0] * 4


def test_values_before_each_pull_are_recorded_for_policies_that_learn():
    world = build(ascend(), {1: losses(1.0, before=1.2)}).run()
    rows = world.rows("policies", "client", "arm", "value")
    assert len(rows) == 3 * 4 * 3
    played = world.rows("participations", "client", "arm", "reward")[:4]
    first = {(client, arm): reward for client, arm, reward in played}
    assert rows[:24] == [
        (client, arm, known.get((client, arm)))
        for known in ({}, first)
        for client in range(4)
        for arm in ("top-k", "random-k", "periodic-k")
    ]
    uniform = build(sim.scenario(), {}).run()
    assert uniform.rows("policies") == []
    assert set(uniform.column("participations", "choice")) == {"fixed"}


def test_the_round_after_a_rollback_is_forced_and_costs_no_warm_up_slot():
    rolled_back = losses(9.0, before=1.0, rolled_back=True, forced_arm="top-k")
    world = build(ascend(rounds=5), {2: rolled_back}).run()
    rows = world.rows("participations", "arm", "choice", "reward")
    assert rows[8:12] == [("top-k", "forced", None)] * 4
    for client in range(4):
        arms, choices, _ = zip(*rows[client:8:4], rows[12 + client], strict=True)
        assert sorted(arms) == ARMS
        assert set(choices) == {"warm-up"}
    assert world.column("rounds", "rolled_back") == [False, True, False, False, False]


def test_every_pull_comes_back_once_with_its_reward_or_to_void(add_part):
    came_back = []

    class Watching(Ascend):
        def update(self, pull, reward):
            came_back.append((pull.choice, "update"))
            super().update(pull, reward)

        def void(self, pull):
            came_back.append((pull.choice, "void"))
            super().void(pull)

    add_part("policy", "watching", Watching)
    script = {1: losses(9.0, before=1.0, rolled_back=True, forced_arm="top-k")}
    build(ascend(policy={"kind": "watching", "warmup": 1}), script).run()
    warm_up = [("warm-up", "update")] * 4
    assert came_back == [*warm_up, *[("forced", "void")] * 4, *warm_up]


def test_without_a_clip_a_reward_is_the_gain_per_second_as_it_is():
    script = {
        1: losses(9.0, before=1.0),
        2: {**losses(1.0, before=1.0), "shared_loss_before": {}},
    }
    world = build(ascend(policy=UNCLIPPED), script).run()
    rows = world.rows("participations", "reward", "reward_raw")
    assert all(reward == raw for reward, raw in rows)
    rewards = [reward for reward, _ in rows]
    assert min(rewards[:4]) < -1 < 1 < max(rewards[4:8])


def test_without_a_clip_and_without_time_the_run_ends_with_a_sentence():
    devices = [sim.Fixed(0.0, 0.0)] * 4
    script = {1: losses(9.0, before=1.0)}
    world = build(ascend(policy=UNCLIPPED), script, devices=devices, star=None)
    with pytest.raises(RunFailed, match="client 0 took no simulated time"):
        world.run()


def test_losses_that_are_no_numbers_end_the_run_with_a_sentence():
    world = build(ascend(), {1: losses(math.nan, before=1.0)})
    sentence = "round 1: the losses of client 0 are no longer finite"
    with pytest.raises(RunFailed, match=sentence):
        world.run()


def test_accuracy_is_recorded_per_prototype_and_shown_as_their_mean_over_clients():
    plain = sim.scenario(
        rounds=2,
        prototypes={"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        clients=[sim.group(3, "small"), sim.group(1, "large")],
    )
    tested = {"small": Evaluation(0.5, 1.5), "large": Evaluation(0.9, 0.5)}
    shown = []
    world = build(plain, {2: {"evaluation": tested}})
    world.run(progress=lambda *facts: shown.append(facts[2]))
    assert shown == [None, pytest.approx((3 * 0.5 + 0.9) / 4)]
    rows = world.rows("prototypes", "prototype", "test_accuracy", "kd_loss")
    assert rows == [("small", 0.5, None), ("large", 0.9, None)]


@pytest.mark.parametrize(
    ("at_s", "phases", "uplink_bytes"),
    [
        (0.25, (0.25, 0.0, 0.0), 0.0),
        (1.25, (1.0, 0.25, 0.0), 0.0),
        (1.75, (1.0, 0.5, 0.25), 2000.0),
    ],
)
def test_a_dropped_client_is_discarded_and_spends_the_rest_of_the_round_away(
    at_s, phases, uplink_bytes
):
    world = build(ascend(), {1: losses(1.0, before=1.2)}).lose(at_s, 0).run()
    names = "training_s", "compression_s", "uplink_s", "uplink_bytes"
    assert world.rows("participations", *names)[0] == (*phases, uplink_bytes)
    # without client 0 (1 s of upload), client 1 (0.5 s) is the last to arrive
    assert world.rows("rounds", "duration_s", "dropped")[0] == (2.0, 1)
    names = "outcome", "offline_s", "waiting_s", "gain", "reward", "slack_s"
    away = ("dropped", 2.0 - at_s, 0.0, None, None, None)
    assert world.rows("participations", *names)[0] == away
    assert ("discard", 1, 0) in world.workload.log
    assert ("merge", 1, [1, 2, 3]) in world.workload.log


def test_a_lost_warm_up_pull_gives_its_slot_back():
    world = build(ascend(rounds=4), {}).lose(1.75, 0).run()
    rows = world.rows("participations", "choice", "outcome", "arm")
    mine = rows[::4]
    assert [choice for choice, _, _ in mine] == ["warm-up"] * 4
    assert sorted(arm for _, outcome, arm in mine if outcome == "aggregated") == ARMS


def test_a_failed_client_stays_and_waits():
    world = build(ascend(), {}).lose(0.25, 0, "failed").run()
    row = world.rows("participations", "outcome", "waiting_s", "offline_s")[0]
    assert row == ("failed", 1.75, 0.0)
    assert world.column("rounds", "dropped") == [1, 0, 0]


def test_a_lost_last_client_ends_the_round_when_it_is_lost():
    world = build(ascend(clients=1), {}, star=None).lose(0.25, 0).run()
    assert world.column("rounds", "duration_s") == [0.25, 1.5, 1.5]
    assert ("merge", 1, []) in world.workload.log
    assert world.column("participations", "model_version") == [0, 0, 1]


def test_the_learning_side_is_asked_in_client_order_whatever_the_clock_does():
    world = build(sim.scenario(rounds=2), {}).run()
    assert world.workload.log == [
        entry
        for round in (1, 2)
        for entry in (
            *(("execute", round, client) for client in range(4)),
            ("merge", round, [0, 1, 2, 3]),
        )
    ]
