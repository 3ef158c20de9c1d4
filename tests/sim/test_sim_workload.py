"""The stand-in for learning, the cohort, and the columns of idle clients."""

import numpy as np
import pytest
import sim_worlds as sim

from simfed import InputError
from simfed.fleet import cohort
from simfed.ground import Streams
from simfed.policy import Choice
from simfed.record import NAME, Journal
from simfed.sim import RecordedRun, TimeOnlyWorkload
from simfed.sim.population import Population


def workload(index_code="ideal", recorded=None, **changes):
    plain = sim.scenario(compression={"index_code": index_code}, **changes)
    return TimeOnlyWorkload(sim.TasksOf(plain), recorded=recorded)


def test_sizes_are_those_of_the_wire_plus_charged_buffers():
    sides = workload(prototypes={"small": {"model": "resnet18"}})
    task = sides.task(1, 3)
    d, buffers = task.parameters, task.who.size.buffers
    assert (task.client, task.downlink_bytes) == (3, 4 * (d + buffers))
    sent = sides.execute(task, Choice("top-k", 500))
    assert sent.uplink_bytes() == 500 * (32 + np.log2(d)) / 8 + 4 * buffers


def test_what_is_not_charged_weighs_nothing():
    def sizes(**changes):
        sides = workload(prototypes={"small": {"model": "resnet18"}}, **changes)
        task = sides.task(1, 0)
        return task.downlink_bytes, sides.execute(
            task, Choice("dense", 1)
        ).uplink_bytes()

    d, buffers = 11_172_810, 9600
    assert sizes() == (4 * (d + buffers), 4 * (d + buffers))
    assert sizes(charge={"buffers": False}) == (4 * d, 4 * d)
    assert sizes(charge={"downlink": False}) == (0, 4 * (d + buffers))
    assert sizes(downlink={"payload": "fp16"})[0] == 2 * d + 4 * buffers


def test_the_version_counts_merges_of_something():
    sides = workload()
    assert sides.merge(1, []).model_version == 0
    sent = sides.execute(sides.task(1, 0), Choice("top-k", 5))
    assert sides.merge(1, [sent]).model_version == 1
    assert sides.task(2, 0).model_version == 1


def test_a_size_that_depends_on_the_data_needs_a_record():
    sides = workload("rice")
    with pytest.raises(InputError, match=r"rice with top-k.*policy\.arms_from: RUN"):
        sides.execute(sides.task(1, 0), Choice("top-k", 500))


def test_a_recorded_run_gives_arms_and_sizes_back(tmp_path):
    policy = {"kind": "exp3"}
    plain = sim.scenario(rounds=4, policy=policy)
    full = sim.write(
        tmp_path / "run", lambda recorder: sim.build(plain, recorder=recorder), plain
    )
    recorded = RecordedRun(full)
    replayed = sim.build(plain, recorded=recorded).run()
    assert replayed.column("participations", "arm") == full.participations.arm.tolist()
    assert (
        replayed.column("rounds", "finished_at_s") == full.rounds.finished_at_s.tolist()
    )
    assert set(replayed.column("participations", "choice")) == {"fixed"}
    with pytest.raises(InputError, match="only 4 participations of this client"):
        sim.build(plain.model_copy(update={"rounds": 5}), recorded=recorded).run()


def recorded_at(tmp_path, code="seeded", answers=(("up 0/1", [1.0, None]),)):
    """A recorded run whose learning answered this."""
    plain = sim.scenario(rounds=2)
    full = sim.write(
        tmp_path / "run", lambda recorder: sim.build(plain, recorder=recorder), plain
    )
    full.scenario_yaml = full.scenario_yaml.replace(
        "index_code: seeded", f"index_code: {code}"
    )
    journal = Journal(full.path / NAME)
    for label, answer in answers:
        journal.note("", label, answer)
    full.manifest["journal"] = journal.compress()
    return RecordedRun(full)


def test_a_recorded_run_at_another_k_gives_its_arms_alone(tmp_path):
    sides = workload(recorded=recorded_at(tmp_path))
    sent = sides.execute(sides.task(1, 0), Choice("top-k", 700))
    assert sent.uplink_bytes() == workload().size_bytes(
        sides.task(1, 0), Choice("top-k", 700)
    )
    assert sides.merge(1, [sent]).model_version == 1


def test_recorded_sizes_that_depend_on_the_data_are_those_of_the_same_upload(tmp_path):
    answers = [("up 0/1", [1234.5, None])]
    sides = workload("rice", recorded=recorded_at(tmp_path, "rice", answers))
    k = sim.scenario().compression.k
    assert (
        sides.execute(sides.task(1, 0), Choice("random-k", k)).uplink_bytes() == 1234.5
    )
    with pytest.raises(
        InputError,
        match=(
            "got '1998', expected a recorded run with K 5 for client 0, as sizes "
            "that depend on the data are taken from it"
        ),
    ):
        sides.execute(sides.task(1, 0), Choice("random-k", 5))
    with pytest.raises(InputError, match="client 0 takes no part in round 5"):
        sides.execute(sides.task(5, 0), Choice("random-k", k))
    other = workload("rice", recorded=recorded_at(tmp_path / "other", answers=answers))
    with pytest.raises(
        InputError, match=r"got 'seeded', expected .* with index code rice for client 0"
    ):
        other.execute(other.task(1, 0), Choice("random-k", k))


def test_everybody_is_drawn_equally_often():
    rounds, clients, size = 4000, 20, 5
    counts = np.zeros(clients)
    for round in range(rounds):
        counts[cohort(Streams(7), round, clients, size)] += 1
    expected = rounds * size / clients
    variance = rounds * (size / clients) * (1 - size / clients)
    # 20 correlated counts of variance ~ 750: 4.5 standard deviations is beyond 1 in
    # 10,000
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(variance)


def test_only_clients_that_took_part_have_objects():
    made = []
    plain = sim.scenario(
        clients=100_000,
        participation={"clients_per_round": 5},
    )
    people = Population(
        plain,
        lambda client: made.append(client) or object(),
        lambda client: None,
        Streams(0),
    )
    assert len(people) == 100_000
    assert made == []
    assert people.policy(7) is people.policy(7)
    assert made == [7]


def test_groups_may_have_their_own_k_and_policy():
    other = {"kind": "uniform", "strategy": "periodic-k"}
    plain = sim.scenario(
        rounds=1, clients=[sim.group(2, k=10), sim.group(1, policy=other)]
    )
    world = sim.build(plain).run()
    assert world.column("participations", "k") == [10, 10, 1998]
    assert world.column("participations", "arm") == [
        "random-k",
        "random-k",
        "periodic-k",
    ]
