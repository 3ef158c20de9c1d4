"""FedNova against the paper's formulas, written out, and the partial work it is for."""

import numpy as np
import pytest
import torch
from engine_worlds import Host
from textbook import RATE, assert_close, beside, scenario
from worlds import play, world

from simfed import InputError
from simfed.experiment import Parts
from simfed.ground import Streams
from simfed.learn import draw_local, plain_rounds
from simfed.learn.methods.fednova import sum_step_weights
from simfed.replay import TrajectoryStore
from simfed.tasks import LocalEpochs

UNIFORM = {"uniform": {"low": 1, "high": 5}}
DRAWN = [{"local_epochs": 3}, {"count": 3, "local_epochs": UNIFORM}]


@pytest.mark.parametrize(
    ("mu", "momentum", "weights_of"),
    [
        (0.0, 0.0, lambda t: [1.0] * t),
        (0.0, 0.6, lambda t: [(1 - 0.6 ** (t - k)) / 0.4 for k in range(t)]),
        (0.9, 0.0, lambda t: [(1 - RATE * 0.9) ** (t - 1 - k) for k in range(t)]),
    ],
)
def test_two_rounds_are_those_of_the_paper(mu, momentum, weights_of):
    steps = {"batch_size": 16, "learning_rate": RATE, "momentum": momentum}
    made = scenario(
        {"kind": "fednova", "mu": mu}, clients=DRAWN, training=steps, rounds=2
    )
    workload, book, x = beside(made)
    counts = set()
    shares = np.array(book.samples) / sum(book.samples)
    for round in (1, 2):
        direction, tau = torch.zeros_like(x), 0.0
        clients, local = book.locals(x, round, lambda w, x=x: mu * (w - x))
        for client, share, one in zip(clients, shares, local, strict=True):
            weights = weights_of(len(list(book.batches(client, round))))
            counts.add(len(weights))
            direction += share * (x - one) / sum(weights)
            tau += share * sum(weights)
        x = x - tau * direction
    assert len(counts) > 2  # or nothing would be told apart
    assert_close(workload.array("server/a/weights"), x)


def test_momentum_and_pull_together_are_unit_gradients_that_were_stepped():
    point = velocity = 0.0
    for _ in range(7):
        velocity = 0.5 * velocity + (1 + 0.3 * point)
        point -= 0.1 * velocity
    assert sum_step_weights(7, 0.5, 0.1 * 0.3) == pytest.approx(-point / 0.1)


@pytest.mark.parametrize("pull", [0.5, 1.0, 1.5, 2.0])
def test_weights_of_a_pull_are_summed_without_sign(pull):
    weights = [(1 - pull) ** k for k in range(6)]
    assert sum_step_weights(6, pull=pull) == pytest.approx(sum(map(abs, weights)))


def test_each_number_of_epochs_is_as_likely_and_hangs_on_nobody_else():
    made = scenario("fednova", clients=DRAWN)
    drawing = LocalEpochs(made, Streams(7))
    found = [drawing.draw(client, round) for round in range(4000) for client in (1, 2)]
    _, counts = np.unique(found, return_counts=True)
    assert len(counts) == 5
    # χ² of 4 degrees of freedom at 0.1 %
    assert ((counts - 1600) ** 2 / 1600).sum() < 18.5
    assert drawing.draw(0, 1) == 3
    one = scenario("fednova", clients=[DRAWN[0], {**DRAWN[1], "count": 1}])
    alone = LocalEpochs(one, Streams(7))
    assert [alone.draw(1, round) for round in range(9)] == found[:18:2]


def test_the_work_charged_follows_the_epochs():
    def played(epochs):
        made = world("tiny", {"method": "fednova", "clients[0].local_epochs": epochs})
        return made, play(made, time_only=True).participations

    (made, drawn), (_, once) = played(UNIFORM), played(1)
    drawing = LocalEpochs(made, Streams(made.seed))
    epochs = list(map(drawing.draw, drawn.client, drawn["round"]))
    assert len(set(epochs)) > 1
    assert np.allclose(drawn.training_s / once.training_s, epochs)


FAST = {"training": "100 ms", "compression": "10 ms"}
SLOW = {"device": {**FAST, "training": "1 s"}}
CUT = {"count": 4, "local_epochs": 3, "local_time": "2 s"}


@pytest.mark.parametrize("method", ["fednova", "fedprox", "fedavg"])
def test_slow_clients_are_cut_off_and_merged_instead_of_lost(method):
    """A second a step and a tenth of it: ten steps do not fit into six seconds."""
    quick = {"prototype": "a", "device": FAST}

    def merged(**slow):
        changes = {
            "clients": [quick, {**quick, **SLOW, **slow}],
            "training.local_steps": 10,
            "aggregation": {"mode": "deadline", "deadline": "6 s"},
        }
        rows = play(world("tiny", changes, method=method)).participations
        return rows, set(zip(rows.client, rows.outcome, strict=True))

    _, lost = merged()
    rows, cut = merged(local_time="4.5 s")
    assert lost == {(0, "aggregated"), (1, "dropped")}
    assert cut == {(0, "aggregated"), (1, "aggregated")}
    assert np.allclose(sorted(rows.training_s), [1, 1, 4, 4])  # four whole steps


def test_a_cut_client_learns_the_first_of_its_steps():
    made = scenario("fednova", clients=[{**CUT, **SLOW}])
    host = Host(made)
    host.tasks.count_steps = Parts(made).count_steps
    who = host.tasks.who(1, 0, 1)
    assert host.tasks.setting.steps(who) == 2
    assert host.tasks.setting.training(who).times == 2
    batches = host.kit.batches(who, 1)
    rng = Streams(made.seed)("batch", 1, 1)
    whole = draw_local(rng, host.data.owned[1], made.training, 3)
    assert len(batches) == 2 < len(whole)
    assert all(map(np.array_equal, batches, whole))


def test_without_a_clock_there_are_no_seconds_to_cut_off_at():
    made = scenario("fednova", clients=[CUT])
    with pytest.raises(InputError, match=r"clients\[0\].local_time"):
        next(plain_rounds(made, None, Streams(0)))


def test_what_is_kept_of_runs_is_told_apart_by_the_steps_that_were_cut(tmp_path):
    store = {"trajectories": TrajectoryStore(tmp_path / "store")}

    def losses(speed, **more):
        changes = {"method": "fednova", "clients[0].local_time": "1 s"}
        changes["clients[0].device"] = {**FAST, "speed": speed}
        return play(world("tiny", changes), **more).prototypes.test_loss.tolist()

    fast, slow = losses(1.0, **store), losses(0.5, **store)
    assert slow == losses(0.5) != fast
    assert fast == losses(1.0, **store)
