"""Every server mode stops after any round, with clients in flight, and goes on to the same run."""

import json
import math

import mode_worlds as modes
import numpy as np
import pytest
import sim_worlds as sim

from simfed.fleet.availability import Always, Availability, Markov
from simfed.fleet.battery import Battery
from simfed.ground.seeding import Streams
from simfed.record import Checkpoint
from simfed.scenario.presence import Failure

# ---- with clients that come and go ---------------------------------------------------------------


class Wearing(Availability):
    """All grow tired together: how long a client stays hangs on when it is asked, and on all that
    anybody has worked until then."""

    def __init__(self):
        super().__init__(())
        self.follows_work, self.told_s = True, 0.0

    def available(self, at_s):
        return np.arange(6)

    def there(self, client, at_s):
        return True

    def change_after(self, client, at_s):
        return at_s + 3.0 - self.told_s % 2.0

    def arrival_after(self, at_s):
        return math.inf

    def failure(self, client, phase):
        return 0.0

    def worked(self, client, ended_s, worked_s, energy_j):
        self.told_s += worked_s

    def state(self):
        return {"told_s": self.told_s}

    def restore(self, state):
        self.told_s = state["told_s"]


def of_fleet(presence, **failures):
    return Availability([(np.arange(6), presence)], [Failure(**failures)])


EVERYBODY = np.arange(6)
BATTERY = Battery(10.0, 1.0, "00:00", "23:59", work_w=4.0)
PRESENCES = {
    "always, failing": lambda seed: of_fleet(Always(6), download=0.05, training=0.1, upload=0.1),
    "markov": lambda seed: of_fleet(Markov(Streams(seed), EVERYBODY, 3.0, 1.0), upload=0.1),
    "battery": lambda seed: of_fleet(BATTERY.presence(EVERYBODY, Streams(seed))),
    "wearing": lambda seed: Wearing(),
}


def check_every_resumption(mode, presence, seed=0, rounds=6):
    """From every border of a run, through JSON, the rest of the run comes to the same rows."""
    plain = modes.scenario(mode, rounds=rounds)

    def make():
        return modes.world(plain, presence=PRESENCES[presence](seed), seed=seed)

    whole = make()
    for number, _, resumed in sim.resumptions(whole, make):
        for table, column in (("participations", "merge"), ("rounds", "round")):
            later = [row for row in whole.rows(table) if row[column] > number]
            assert resumed.rows(table) == later, (number, table)
    return whole


@pytest.mark.parametrize("presence", PRESENCES)
@pytest.mark.parametrize("mode", modes.MODES)
def test_a_resumed_run_is_the_whole_run_whoever_comes_and_goes(mode, presence):
    whole = check_every_resumption(mode, presence)
    if presence == "wearing":
        assert "dropped" in whole.column("participations", "outcome")


@pytest.mark.long
@pytest.mark.parametrize("presence", PRESENCES)
@pytest.mark.parametrize("mode", modes.MODES)
def test_so_it_is_for_many_seeds(mode, presence):
    for seed in range(1, 5):
        check_every_resumption(mode, presence, seed, rounds=12)


# ---- with learning -------------------------------------------------------------------------------


def learning_scenario(method, mode):
    """Six clients on a tiny data set; two prototypes where the method mixes them."""
    prototypes = {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}}
    names = ["small", "large"] if method == "fedkd" else ["small"]
    each = 6 // len(names)
    policy = {"kind": "ascend", "warmup": 1, "reward": {"local_loss": {"samples": 20}}}
    return modes.scenario(
        mode,
        rounds=6,
        method=method,
        dataset={"name": "mnist-mini", "public": 24 if method == "fedkd" else None},
        prototypes={name: prototypes[name] for name in names},
        clients=[{"count": each, "prototype": n, "device": "rtx3090-ryzen4800h"} for n in names],
        policy=policy,
        training={"batch_size": 8},
        compression={"k": 200, "index_code": "rice"},
        evaluation={"every": 2},
    )


def learning_world(plain, data):
    from simfed.ground.seeding import Streams
    from simfed.learn.hosted import HostedWorkload

    return modes.world(plain, workload=HostedWorkload(plain, Streams(0), data=data))


def tiny_federation(plain):
    """120 images of 28×28 with a stripe, dealt to the scenario's clients."""
    from simfed.ground.seeding import Streams
    from simfed.learn.data import Dataset, deal
    from simfed.learn.federation import Federation

    rng = np.random.default_rng(5)
    labels = np.arange(150) % 10
    images = rng.integers(0, 120, (150, 1, 28, 28), dtype=np.uint8)
    images[np.arange(150), :, 2 * labels] += 130
    parts = (images[:120], labels[:120], images[120:], labels[120:])
    made = Dataset(*parts, classes=10, mean=(0.4,), sd=(0.3,))
    public = plain.public_dealt
    split = deal(labels[:120], Streams(0), clients=plain.client_count, public=public)
    return Federation(made, split.clients, split.public)


@pytest.mark.parametrize(
    ("method", "mode"),
    [
        ("fedkd", "deadline, merge"),
        ("fedavg", "first, drop"),
        ("fedprox", "buffered"),
        ("fedkd", "asynchronous"),
    ],
)
def test_learning_goes_on_with_uploads_under_way(method, mode):
    plain = learning_scenario(method, mode)
    data = tiny_federation(plain)
    whole = learning_world(plain, data)
    saved = []
    whole.run(save=saved.append, save_every=1)
    assert any(len(one.facts["simulation"]["flights"]) for one in saved[:-1]) or "drop" in mode
    for checkpoint in saved[:-1]:
        facts = json.loads(json.dumps(checkpoint.facts))
        arrays = {name: np.array(array) for name, array in checkpoint.arrays.items()}
        resumed = learning_world(plain, data)
        resumed.simulation.restore(Checkpoint(checkpoint.round, facts, arrays))
        resumed.run()
        for table in ("participations", "prototypes", "rounds", "policies", "links"):
            rows, all_rows = resumed.rows(table), whole.rows(table)
            assert rows == all_rows[len(all_rows) - len(rows) :], (checkpoint.round, table)
        for table, column in (("participations", "merge"), ("rounds", "round")):
            later = [row for row in whole.rows(table) if row[column] > checkpoint.round]
            assert resumed.rows(table) == later
        resumed.workload.close()
    whole.workload.close()
