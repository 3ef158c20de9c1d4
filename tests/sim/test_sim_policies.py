"""Pulls, rewards, forced rounds and lost uploads, with a scripted learning side."""

import itertools
import math

import pytest
import sim_worlds as sim

from simfed import RunFailed
from simfed.fleet import Evaluation, Outcome
from simfed.net import Star
from simfed.policy import Ascend

UNCLIPPED = {"kind": "ascend", "warmup": 1, "reward": {"clip": None}}
ARMS = ("top-k", "random-k", "periodic-k")


class Scripted:
    """A learning side with given losses: `script[round]` is what its merge says."""

    def __init__(self, sizes, script):
        self._sizes = sizes
        self._script = script
        self.log = []

    def __getattr__(self, name):
        return getattr(self._sizes, name)

    def execute(self, task, choice):
        self.log.append(("execute", task.round, task.client, choice.strategy))
        return self._sizes.execute(task, choice)

    def merge(self, round, contributions, weights=()):
        self.log.append(("merge", round, [c.task.client for c in contributions]))
        version = self._sizes.merge(round, contributions).model_version
        said = dict(self._script.get(round, {}))
        told = said.pop("local_loss", {})  # by client, or by the task's label
        local = {
            c.task.label: told[name]
            for c in contributions
            for name in (c.task.client, c.task.label)
            if name in told
        }
        return Outcome(round, version, local_loss=local, **said)

    def discard(self, contribution):
        self.log.append(("discard", contribution.task.round, contribution.task.client))


def build(plain, script, **options):
    sizes = sim.TimeOnlyWorkload(sim.TasksOf(plain, down_bytes=0.0))
    devices = [sim.Fixed(1.0, 0.5) for _ in range(plain.client_count)]
    star = Star(
        plain.client_count,
        up_bytes_per_s=[8000.0 * (c + 1) for c in range(plain.client_count)],
    )
    return sim.build(
        plain, workload=Scripted(sizes, script), devices=devices, star=star, **options
    )


def ascend(**changes):
    policy = {"kind": "ascend", "warmup": 1, "reward": {"rho": 0.5, "beta": 0.25}}
    return sim.scenario(rounds=3, policy=policy, **changes)


def losses(kd, before=None):
    return {
        "shared_loss": {"small": kd},
        "shared_loss_before": {"small": before} if before is not None else {},
        "local_loss": {c: (2.0, 1.0 + c) for c in range(4)},
    }


def test_the_reward_is_gain_over_training_compression_and_upload():
    alike = {
        "index_code": "seeded",
        "k": 1998,
        "strategies": ["random-k", "periodic-k"],
    }
    world = build(ascend(compression=alike), {1: losses(1.0, before=3.0)}).run()
    for row in world.rows("participations")[:4]:
        client = row["client"]
        gain = 0.5 * (3.0 - 1.0) + 0.25 * (2.0 - (1.0 + client))
        tau_s = 1.0 + 0.5 + 1.0 / (client + 1)
        assert row["gain"] == gain
        assert row["reward_raw"] == gain / tau_s
        assert row["reward"] == max(-1.0, min(1.0, gain / tau_s))
        assert row["local_loss"] == 1.0 + client


def in_flight(aggregation, script, **options):
    """Four clients that are kept in flight by a server whose losses are given."""
    made = ascend(aggregation=aggregation, **options)
    return (
        build(made.model_copy(update={"rounds": len(script)}), script)
        .run()
        .rows("participations")
    )


def test_a_late_upload_is_paid_for_the_way_from_the_version_it_trained_on():
    # of the initial models and after each merge
    levels = [9.0, 7.0, 6.0, 4.0, 3.5, 3.0]
    script = {
        merge: {
            "shared_loss": {"small": level},
            "shared_loss_before": {"small": before},
        }
        for merge, (before, level) in enumerate(itertools.pairwise(levels), 1)
    }
    rows = in_flight({"mode": "asynchronous", "concurrency": 4}, script)
    merged = [row for row in rows if row["outcome"] == "aggregated"]
    assert max(row["staleness"] for row in merged) == 3
    for row in merged:
        assert row["gain"] == 0.5 * (
            levels[row["model_version"]] - levels[row["merge"]]
        )


def test_each_of_a_clients_two_uploads_in_one_merge_is_paid_by_its_own_losses():
    told = {"local_loss": {"0/1": (5.0, 1.0), "0/1.1": (3.0, 1.0), "1/1": (2.0, 1.0)}}
    aggregation = {"mode": "buffered", "buffer": 4, "concurrency": 2}
    rows = in_flight(aggregation, {1: told}, clients=2)
    gains = [
        (row["client"], row["gain"]) for row in rows if row["outcome"] == "aggregated"
    ]
    assert (0, 0.25 * 4.0) in gains
    assert (0, 0.25 * 2.0) in gains
    assert (1, 0.25 * 1.0) in gains


def test_waiting_downlink_and_server_work_are_no_part_of_the_rewards_time():
    quick = build(ascend(), {1: losses(1.0, before=3.0)}).run()
    server = sim.Fixed(decompression=5.0, inference=5.0, distillation=5.0)
    slow = build(ascend(), {1: losses(1.0, before=3.0)}, server_device=server).run()
    assert (
        slow.column("rounds", "duration_s")[0]
        > quick.column("rounds", "duration_s")[0] + 40
    )
    assert slow.column("participations", "reward") == quick.column(
        "participations", "reward"
    )


def test_a_missing_loss_counts_nothing():
    script = {1: {"shared_loss": {"small": 1.0}}}  # no earlier KD loss, no local losses
    world = build(ascend(), script).run()
    assert world.column("participations", "gain")[:4] == [0.0] * 4


def test_values_before_each_pull_are_recorded_for_policies_that_learn():
    world = build(ascend(), {1: losses(1.0, before=1.2)}).run()
    rows = world.rows("policies")
    assert len(rows) == 3 * 4 * 3
    assert [row["value"] for row in rows[:12]] == [None] * 12
    first = {
        row["client"]: (row["arm"], row["reward"])
        for row in world.rows("participations")[:4]
    }
    for row in rows[12:24]:
        arm, reward = first[row["client"]]
        assert row["value"] == (reward if row["arm"] == arm else None)
    uniform = build(sim.scenario(), {}).run()
    assert uniform.rows("policies") == []
    assert set(uniform.column("participations", "choice")) == {"fixed"}


def test_the_round_after_a_rollback_is_forced_and_costs_no_warm_up_slot():
    plain = ascend().model_copy(update={"rounds": 5})
    script = {
        2: {**losses(9.0, before=1.0), "rolled_back": True, "forced_arm": "top-k"}
    }
    world = build(plain, script).run()
    by_round = {}
    for row in world.rows("participations"):
        by_round.setdefault(row["round"], []).append(row)
    assert {(row["arm"], row["choice"]) for row in by_round[3]} == {("top-k", "forced")}
    assert {row["reward"] for row in by_round[3]} == {None}
    assert {row["choice"] for row in by_round[4]} == {"warm-up"}
    for client in range(4):
        free = [by_round[r][client] for r in (1, 2, 4)]
        assert sorted(row["arm"] for row in free) == sorted(ARMS)
        assert {row["choice"] for row in free} == {"warm-up"}
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
    script = {
        1: {**losses(9.0, before=1.0), "rolled_back": True, "forced_arm": "top-k"}
    }
    build(
        sim.scenario(rounds=3, policy={"kind": "watching", "warmup": 1}), script
    ).run()
    warm_up = [("warm-up", "update")] * 4
    assert came_back == [*warm_up, *[("forced", "void")] * 4, *warm_up]


def test_without_a_clip_a_reward_is_the_gain_per_second_as_it_is():
    script = {1: losses(9.0, before=1.0), 2: losses(1.0)}
    world = build(sim.scenario(rounds=3, policy=UNCLIPPED), script).run()
    rewards, raw = (
        world.column("participations", name) for name in ("reward", "reward_raw")
    )
    assert rewards == raw
    assert min(rewards[:4]) < -1 < 1 < max(rewards[4:8])


def test_without_a_clip_and_without_time_the_run_ends_with_a_sentence():
    plain = sim.scenario(rounds=3, policy=UNCLIPPED)
    sizes = sim.TimeOnlyWorkload(sim.TasksOf(plain, down_bytes=0.0))
    world = sim.build(
        plain,
        workload=Scripted(sizes, {1: losses(9.0, before=1.0)}),
        devices=[sim.Fixed(0.0, 0.0) for _ in range(plain.client_count)],
        star=Star(plain.client_count),
    )
    with pytest.raises(RunFailed, match="client 0 took no simulated time"):
        world.run()


def test_losses_that_are_no_numbers_end_the_run_with_a_sentence():
    with pytest.raises(
        RunFailed, match="round 1: the losses of client 0 are no longer finite"
    ):
        build(ascend(), {1: losses(math.nan, before=1.0)}).run()


def test_accuracy_is_recorded_per_prototype_and_shown_as_their_mean_over_clients():
    plain = sim.scenario(
        rounds=2,
        prototypes={"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        clients=[sim.group(3, "small"), sim.group(1, "large")],
    )
    sizes = sim.TimeOnlyWorkload(sim.TasksOf(plain, down_bytes=0.0))
    tested = {"small": Evaluation(0.5, 1.5), "large": Evaluation(0.9, 0.5)}
    shown = []
    world = sim.build(plain, workload=Scripted(sizes, {2: {"evaluation": tested}}))
    world.run(progress=lambda *facts: shown.append(facts[2]))
    assert shown == [None, pytest.approx((3 * 0.5 + 0.9) / 4)]
    assert [
        (r["prototype"], r["test_accuracy"], r["kd_loss"])
        for r in world.rows("prototypes")
    ] == [("small", 0.5, None), ("large", 0.9, None)]


def lose_at(world, at_s, client, outcome):
    """Have this client lose its participation at an instant of the first round."""
    clock, carry = world.clock, world.clock.carry

    def carry_and_lose(flight):
        carry(flight)
        if flight.client == client and flight.task.round == 1:
            strike = clock.env.timeout(at_s - clock.env.now)
            strike.callbacks.append(lambda _: clock.cut(flight, outcome))

    clock.carry = carry_and_lose
    return world


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
    world = build(ascend(), {1: losses(1.0, before=1.2)})
    lose_at(world, at_s, 0, "dropped").run()
    row = world.rows("participations")[0]
    assert (row["training_s"], row["compression_s"], row["uplink_s"]) == phases
    assert row["uplink_bytes"] == uplink_bytes
    # without client 0 (1 s of upload), client 1 (0.5 s) is the last to arrive
    assert world.column("rounds", "duration_s")[0] == max(2.0, at_s)
    assert (row["outcome"], row["offline_s"], row["waiting_s"]) == (
        "dropped",
        2.0 - at_s,
        0.0,
    )
    assert (row["gain"], row["reward"], row["slack_s"]) == (None, None, None)
    assert ("discard", 1, 0) in world.workload.log
    assert ("merge", 1, [1, 2, 3]) in world.workload.log
    assert world.column("rounds", "dropped") == [1, 0, 0]


def test_a_lost_warm_up_pull_gives_its_slot_back():
    plain = ascend().model_copy(update={"rounds": 4})
    world = lose_at(build(plain, {}), 1.75, 0, "dropped").run()
    mine = [row for row in world.rows("participations") if row["client"] == 0]
    assert [row["choice"] for row in mine] == ["warm-up"] * 4
    assert sorted(
        row["arm"] for row in mine if row["outcome"] == "aggregated"
    ) == sorted(ARMS)


def test_a_failed_client_stays_and_waits():
    world = lose_at(build(ascend(), {}), 0.25, 0, "failed").run()
    row = world.rows("participations")[0]
    assert (row["outcome"], row["waiting_s"], row["offline_s"]) == ("failed", 1.75, 0.0)
    assert world.column("rounds", "dropped") == [1, 0, 0]


def test_a_lost_last_client_ends_the_round_when_it_is_lost():
    plain = ascend(clients=1)
    sizes = sim.TimeOnlyWorkload(sim.TasksOf(plain, down_bytes=0.0))
    world = sim.build(plain, workload=Scripted(sizes, {}), devices=[sim.Fixed()])
    lose_at(world, 0.25, 0, "dropped").run()
    assert world.column("rounds", "duration_s") == [0.25, 1.5, 1.5]
    assert ("merge", 1, []) in world.workload.log
    assert world.column("participations", "model_version") == [0, 0, 1]


def test_the_learning_side_is_asked_in_client_order_whatever_the_clock_does():
    world = build(sim.scenario(rounds=2), {}).run()
    assert [entry[:3] for entry in world.workload.log] == [
        *(("execute", 1, c) for c in range(4)),
        ("merge", 1, [0, 1, 2, 3]),
        *(("execute", 2, c) for c in range(4)),
        ("merge", 2, [0, 1, 2, 3]),
    ]
