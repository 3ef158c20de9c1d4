"""Each server mode on tiny worlds: who is merged when, who is late, who is started
again.
"""

from collections import Counter

import numpy as np
import pytest
import sim_worlds as sim

from simfed.fleet import Availability, Markov
from simfed.ground import Streams
from simfed.net import Star

LATE = {"mode": "deadline", "deadline": "2 s", "late": "merge"}


def play(aggregation, seconds, rounds=3, *, server_s=None, star=None, **changes):
    """Clients whose training takes `seconds`, everything else no time.

    Uploads of 8,000 bytes. `weights`: of each merge, by (client, round).
    """
    plain = sim.scenario(
        rounds=rounds, aggregation=aggregation, clients=len(seconds), **changes
    )
    server = sim.Fixed(decompression=0.0, inference=0.0, distillation=server_s)
    world = sim.build(
        plain,
        star=star,
        devices=[sim.Fixed(s, 0.0) for s in seconds],
        server_device=None if server_s is None else server,
    )
    world.weights = []
    merge = world.workload.merge

    def spy(round, contributions, weights=()):
        names = [(c.task.client, c.task.round) for c in contributions]
        world.weights.append(dict(zip(names, weights, strict=True)))
        return merge(round, contributions, weights)

    world.workload.merge = spy
    return world.run()


def story(world, *names):
    """Of every participation, in the order in which they were settled."""
    return world.rows("participations", *names)


def test_an_upload_that_arrives_at_the_deadline_counts_and_a_later_one_is_cut_off():
    star = Star(3, up_bytes_per_s=8000.0)  # a second per upload
    world = play({**LATE, "late": "drop"}, [0.5, 1.0, 1.5], rounds=1, star=star)
    names = "outcome", "training_s", "uplink_s", "uplink_bytes", "waiting_s", "slack_s"
    assert story(world, *names) == [
        ("aggregated", 0.5, 1.0, 8000.0, 0.5, 0.5),
        ("aggregated", 1.0, 1.0, 8000.0, 0.0, 0.0),
        ("dropped", 1.5, 0.5, 4000.0, 0.0, None),
    ]
    names = "duration_s", "participants", "dropped", "critical_client", "critical_phase"
    assert world.rows("rounds", *names) == [(2.0, 3, 1, None, "deadline")]


def test_a_round_ends_before_its_deadline_when_everybody_has_ended():
    world = play({"mode": "deadline", "deadline": "9 s"}, [1.0, 2.0], rounds=2)
    ended = world.rows("rounds", "finished_at_s", "critical_client")
    assert ended == [(2.0, 1), (4.0, 1)]


def test_who_is_late_goes_on_is_not_started_meanwhile_and_is_merged_later():
    world = play(LATE, [1.0, 2.0, 3.0])
    names = "client", "round", "merge", "outcome", "staleness", "finished_at_s"
    assert story(world, *names) == [
        (0, 1, 1, "aggregated", 0, 2.0),
        (1, 1, 1, "aggregated", 0, 2.0),
        (0, 2, 2, "aggregated", 0, 4.0),
        (1, 2, 2, "aggregated", 0, 4.0),
        (2, 1, 2, "late", 1, 4.0),
        (0, 3, 3, "aggregated", 0, 6.0),
        (1, 3, 3, "aggregated", 0, 6.0),
        (2, 3, 3, "dropped", 0, 6.0),  # the run is over
    ]
    assert world.column("rounds", "late") == [0, 1, 0]


def test_a_round_without_arrivals_merges_nothing_and_says_so():
    world = play({"mode": "deadline", "deadline": "0.5 s"}, [1.0, 2.0], rounds=2)
    assert world.weights == [{}, {}]
    names = "duration_s", "participants", "dropped"
    assert world.rows("rounds", *names) == [(0.5, 2, 2)] * 2
    assert world.column("participations", "model_version") == [0] * 4


@pytest.mark.parametrize("late", ["drop", "merge"])
def test_the_first_m_of_more_that_were_asked_make_the_merge(late):
    aggregation = {"mode": "first", "over_selection": 0.5, "late": late}
    asked = {"participation": {"clients_per_round": 2}}
    world = play(aggregation, [1.0, 2.0, 3.5], rounds=2, **asked)
    first = [(0, 1, 1, "aggregated"), (1, 1, 1, "aggregated")]
    again = [(0, 2, 2, "aggregated"), (1, 2, 2, "aggregated")]
    slow = {
        "drop": [*first, (2, 1, 1, "dropped"), *again, (2, 2, 2, "dropped")],
        "merge": [*first, *again, (2, 1, 2, "late")],
    }
    assert story(world, "client", "round", "merge", "outcome") == slow[late]
    ended = world.rows("rounds", "finished_at_s", "critical_client")
    assert ended == [(2.0, 1), (4.0, 1)]


@pytest.mark.parametrize(("clients", "asked"), [(9, 6), (5, 5)])
def test_more_are_asked_than_are_waited_for_rounded_up_and_never_more_than_there_are(
    clients, asked
):
    aggregation = {"mode": "first", "over_selection": 0.3}
    participation = {"clients_per_round": 4}
    world = play(aggregation, [1.0] * clients, rounds=1, participation=participation)
    assert len(story(world)) == asked


def test_an_asynchronous_run_is_the_sequence_worked_out_by_hand():
    world = play({"mode": "asynchronous", "concurrency": 3}, [1.0, 2.0, 3.5], rounds=6)
    names = (
        "merge",
        "client",
        "round",
        "model_version",
        "staleness",
        "started_at_s",
        "finished_at_s",
        "outcome",
    )
    assert story(world, *names) == [
        (1, 0, 1, 0, 0, 0.0, 1.0, "aggregated"),
        # two arrivals of one instant are one merge
        (2, 0, 2, 1, 0, 1.0, 2.0, "aggregated"),
        (2, 1, 1, 0, 1, 0.0, 2.0, "aggregated"),
        (3, 0, 3, 2, 0, 2.0, 3.0, "aggregated"),
        (4, 2, 1, 0, 3, 0.0, 3.5, "aggregated"),
        (5, 0, 4, 3, 1, 3.0, 4.0, "aggregated"),
        (5, 1, 3, 2, 2, 2.0, 4.0, "aggregated"),
        (6, 0, 6, 5, 0, 4.0, 5.0, "aggregated"),
        (6, 1, 6, 5, 0, 4.0, 5.0, "dropped"),  # the run is over
        (6, 2, 5, 4, 1, 3.5, 5.0, "dropped"),
    ]
    assert world.column("rounds", "finished_at_s") == [1.0, 2.0, 3.0, 3.5, 4.0, 5.0]
    assert world.weights[3] == {(2, 1): 0.5}  # (1 + 3)^(−1/2)
    assert world.weights[4] == {(0, 4): 2**-0.5, (1, 3): 3**-0.5}


def test_a_buffer_is_merged_when_it_is_full_and_its_clients_work_on():
    aggregation = {"mode": "buffered", "buffer": 3, "concurrency": 2}
    world = play(aggregation, [1.0, 1.5], rounds=2)
    assert story(world, "merge", "client", "round", "finished_at_s", "outcome") == [
        (1, 0, 1, 1.0, "aggregated"),
        (1, 0, 1, 2.0, "aggregated"),
        (1, 1, 1, 1.5, "aggregated"),
        (2, 0, 2, 3.0, "aggregated"),
        (2, 0, 2, 4.0, "aggregated"),
        (2, 1, 2, 4.0, "dropped"),  # the run is over
        (2, 1, 1, 3.0, "aggregated"),
    ]
    assert world.column("rounds", "finished_at_s") == [2.0, 4.0]


def test_beyond_the_bound_an_upload_is_dropped():
    bound = {"kind": "constant", "bound": 2}
    aggregation = {"mode": "asynchronous", "concurrency": 2, "staleness": bound}
    world = play(aggregation, [1.0, 3.5], rounds=6)
    told = story(world, "client", "merge", "staleness", "outcome")
    assert next(row for row in told if row[0] == 1) == (1, 4, 3, "dropped")
    assert world.weights[3] == {}


def test_arrivals_during_the_servers_work_wait_for_the_next_merge():
    aggregation = {"mode": "asynchronous", "concurrency": 2}
    world = play(aggregation, [1.0, 1.5], server_s=1.0)
    names = "merge", "client", "round", "started_at_s", "finished_at_s", "slack_s"
    assert story(world, *names)[:3] == [
        (1, 0, 1, 0.0, 1.0, 0.0),
        (2, 1, 1, 0.0, 1.5, 0.5),
        (3, 0, 2, 2.0, 3.0, 0.0),
    ]
    # nobody was waited for before the second merge: the server was at work
    ended = world.rows("rounds", "finished_at_s", "critical_client")
    assert ended == [(2.0, 0), (3.0, None), (4.0, 0)]


def test_a_late_upload_that_waits_for_the_servers_work_keeps_its_client():
    world = play(LATE, [1.0, 2.5], server_s=1.0)
    names = "client", "round", "merge", "started_at_s", "finished_at_s"
    assert story(world, *names) == [
        (0, 1, 1, 0.0, 3.0),
        (0, 2, 2, 3.0, 5.0),
        (1, 1, 2, 0.0, 5.0),
        (0, 3, 3, 5.0, 8.0),
        (1, 3, 3, 5.0, 8.0),
    ]


# ---- random fleets -------------------------------------------------------------------


class Asked(Availability):
    """Counts how often a client's presence is asked for at an instant."""

    def __init__(self, count):
        ids, self.asked = np.arange(count), Counter()
        super().__init__([(ids, Markov(Streams(0), ids, 8.0, 32.0))])

    def there(self, client, at_s):
        self.asked[client, at_s] += 1
        return super().there(client, at_s)


def test_who_is_away_is_asked_once_for_each_start():
    aggregation = {"mode": "buffered", "buffer": 2, "concurrency": 2}
    plain = sim.scenario(rounds=4, clients=6, aggregation=aggregation)
    presence = Asked(6)
    devices = [sim.Fixed(0.1 + 0.15 * client, 0.02) for client in range(6)]
    played = sim.build(plain, devices=devices, presence=presence).run()
    assert len(played.rows("rounds")) == 4
    assert 1 <= max(presence.asked.values()) <= 3


def test_an_empty_poisson_cohort_is_a_round_of_no_length():
    """Six rounds whose coins choose nobody, one or both: it lasts as long as its
    slowest.
    """
    poisson = {"clients_per_round": 1, "selection": "poisson"}
    world = play({}, [0.5, 1.0], rounds=6, participation=poisson)
    longest = [0.0] * 6
    for round, training_s in story(world, "round", "training_s"):
        longest[round - 1] = max(longest[round - 1], training_s)
    assert world.column("rounds", "duration_s") == longest
    names = "participants", "critical_client", "critical_phase"
    rows = world.rows("rounds", *names)
    assert {count for count, *_ in rows} == {0, 1, 2}
    assert {row for row in rows if not row[0]} == {(0, None, "server")}


def test_a_deadline_at_which_nobody_has_come_is_what_the_round_waited_for():
    """Both are kept for the next merge: nobody has ended, somebody was waited for."""
    world = play({**LATE, "deadline": "0.75 s"}, [1.0, 1.25], rounds=2)
    first, _ = world.rows("rounds", "duration_s", "critical_phase")
    assert first == (0.75, "deadline")
