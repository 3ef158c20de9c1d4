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


def upload_bytes(sides, strategy="top-k", k=500, round=1):
    return sides.execute(sides.task(round, 0), Choice(strategy, k)).uplink_bytes()


def test_sizes_are_those_of_the_wire_with_what_is_charged():
    def sizes(strategy="dense", **changes):
        resnet = {"small": {"model": "resnet18"}}
        sides = workload(prototypes=resnet, **changes)
        return sides.task(1, 0).downlink_bytes, upload_bytes(sides, strategy)

    d, buffers = 11_172_810, 9600
    assert sizes() == (4 * (d + buffers), 4 * (d + buffers))
    assert sizes("top-k")[1] == 500 * (32 + np.log2(d)) / 8 + 4 * buffers
    assert sizes(charge={"buffers": False}) == (4 * d, 4 * d)
    assert sizes(charge={"downlink": False}) == (0, 4 * (d + buffers))
    assert sizes(downlink={"payload": "fp16"})[0] == 2 * d + 4 * buffers


def test_a_size_that_depends_on_the_data_needs_a_record():
    with pytest.raises(InputError, match=r"rice with top-k.*policy\.arms_from: RUN"):
        upload_bytes(workload("rice"))


def run(path, **changes):
    plain = sim.scenario(**changes)
    return sim.write(path, lambda recorder: sim.build(plain, recorder=recorder), plain)


def test_a_recorded_run_gives_arms_and_sizes_back(tmp_path):
    policy = {"kind": "exp3"}
    full = run(tmp_path / "run", rounds=4, policy=policy)
    again = [
        sim.build(
            sim.scenario(rounds=rounds, policy=policy), recorded=RecordedRun(full)
        )
        for rounds in (4, 5)
    ]
    played = again[0].run().rows("participations", "arm", "finished_at_s", "choice")
    parts = full.participations
    assert played == [
        (arm, at_s, "fixed")
        for arm, at_s in zip(parts.arm, parts.finished_at_s, strict=True)
    ]
    with pytest.raises(InputError, match="only 4 participations of this client"):
        again[1].run()


def recorded_at(path, code="seeded"):
    """A recorded run whose learning answered with the size of an upload."""
    full = run(path, rounds=2)
    full.scenario_yaml = full.scenario_yaml.replace(
        "index_code: seeded", f"index_code: {code}"
    )
    journal = Journal(full.path / NAME)
    journal.note("", "up 0/1", [1234.5, None])
    full.manifest["journal"] = journal.compress()
    return RecordedRun(full)


def test_a_recorded_run_at_another_k_gives_its_arms_alone(tmp_path):
    sides = workload(recorded=recorded_at(tmp_path / "run"))
    assert upload_bytes(sides, k=700) == upload_bytes(workload(), k=700)


def test_recorded_sizes_that_depend_on_the_data_are_those_of_the_same_upload(tmp_path):
    sides = workload("rice", recorded=recorded_at(tmp_path / "run", "rice"))
    other = workload("rice", recorded=recorded_at(tmp_path / "other"))
    assert upload_bytes(sides, "random-k", 1998) == 1234.5
    for asked, k, round, sentence in (
        (
            sides,
            5,
            1,
            "got '1998', expected a recorded run with K 5 for client 0, as sizes "
            "that depend on the data are taken from it",
        ),
        (sides, 1998, 5, "client 0 takes no part in round 5"),
        (
            other,
            1998,
            1,
            "got 'seeded', expected .* with index code rice for client 0",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            upload_bytes(asked, "random-k", k, round)


def test_everybody_is_drawn_equally_often():
    rounds, clients, size = 4000, 20, 5
    drawn = [cohort(Streams(7), round, clients, size) for round in range(rounds)]
    counts = np.bincount(np.concatenate(drawn))
    expected = rounds * size / clients
    # 20 correlated counts of variance ~ 750: 4.5 standard deviations is beyond 1 in
    # 10,000
    sd = np.sqrt(expected * (1 - size / clients))
    assert np.abs(counts - expected).max() < 4.5 * sd


def test_only_clients_that_took_part_have_objects():
    made = []
    plain = sim.scenario(clients=100_000, participation={"clients_per_round": 5})
    people = Population(
        plain,
        lambda client: made.append(client) or object(),
        lambda client: None,
        Streams(0),
    )
    assert (len(people), made) == (100_000, [])
    assert people.policy(7) is people.policy(7)
    assert made == [7]


def test_groups_may_have_their_own_k_and_policy():
    other = {"kind": "uniform", "strategy": "periodic-k"}
    groups = [sim.group(2, k=10), sim.group(1, policy=other)]
    world = sim.build(sim.scenario(groups, rounds=1)).run()
    told = world.rows("participations", "k", "arm")
    assert told == [(10, "random-k")] * 2 + [(1998, "periodic-k")]
