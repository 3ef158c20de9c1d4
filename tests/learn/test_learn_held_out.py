"""Evaluation on owners that never train."""

import numpy as np
import pytest
from worlds import play, world

from simfed.experiment import check_parts
from simfed.ground import Streams
from simfed.learn import load_data, load_federation
from simfed.learn.data import count_held_out, hold_out, split_of

HELD = {"owners": "held-out", "share": 0.3, "every": 1}


@pytest.fixture
def made(tmp_path):
    """A scenario of ten owners with twelve training and three test samples each."""
    owner, samples = np.arange(150) % 10, np.arange(150)
    x, y = np.stack([owner, samples], axis=1).astype("float32"), samples % 3
    parts = {"train": slice(120), "test": slice(120, 150)}
    rows = {"x": x, "y": y, "owner": owner}
    file = tmp_path / "own.npz"
    np.savez(
        file, **{f"{key}_{n}": rows[key][at] for n, at in parts.items() for key in rows}
    )

    def scenario(evaluation=HELD, **changes):
        dataset = {"file": str(file), "partition": {"kind": "natural"}}
        return world("tiny", dataset=dataset, evaluation=evaluation, **changes)

    return scenario


def test_nobody_trains_on_what_a_held_out_owner_has(made):
    streams, scenario = Streams(0), made()
    data, split = load_data(scenario.dataset), split_of(scenario, streams)
    assert len(split.held) == 3
    trained = {int(data.train_owners[i]) for part in split.clients for i in part}
    assert trained == set(split.owners.tolist())
    assert not trained & set(split.held.tolist())
    tests = hold_out(data, split.held)
    # all that these owners have: (12 + 3) each
    assert len(tests.test_labels) == 45 == count_held_out(scenario, streams)
    assert set(tests.test_owners.tolist()) == set(split.held.tolist())
    assert set(tests.test_images[:, 0].tolist()) == set(split.held.tolist())
    assert len(set(tests.test_images[:, 1].tolist())) == 45
    assert len(load_federation(scenario, streams).test_labels) == 45
    # a server's evaluation is charged by them
    assert check_parts(scenario, "s.yaml", False).tasks._test_samples == 45


def test_public_samples_are_not_theirs_either(made):
    public = made(method="feddf", **{"dataset.public": 60})
    data, split = load_data(public.dataset), split_of(public, Streams(0))
    assert len(split.public) == 60
    whose = set(data.train_owners[split.public].tolist())
    assert not whose & set(split.held.tolist())


def test_who_is_held_out_depends_on_the_seed_alone(made):
    one, same, other = (split_of(made(), Streams(seed)).held for seed in (0, 0, 1))
    assert one.tolist() == same.tolist() != other.tolist()
    assert len(split_of(made({**HELD, "share": 0}), Streams(0)).held) == 1


def test_runs_test_on_them(made):
    run = play(made())
    everybody = play(made({"every": 1}))
    assert run.participations.uplink_bytes.sum() == (
        everybody.participations.uplink_bytes.sum()
    )
    assert not np.allclose(run.prototypes.test_loss, everybody.prototypes.test_loss)
    # 45 samples: accuracies are multiples of a forty-fifth
    shares = run.prototypes.test_accuracy * 45
    assert np.allclose(shares, shares.round())
