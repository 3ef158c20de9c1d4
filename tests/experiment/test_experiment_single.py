"""Batches of one sample, which batch norm cannot train on, are known before a run."""

import numpy as np
import pytest
import worlds

from simfed import InputErrors
from simfed.experiment import check
from simfed.scenario import validate_scenario


def check_training(
    folder, *, samples=66, side=8, owners=None, model="resnet18", method, **training
):
    rng = np.random.default_rng(0)
    sizes = {"train": samples, "test": 4}
    arrays = {f"y_{part}": rng.integers(0, 2, n) for part, n in sizes.items()}
    for part, n in sizes.items():
        arrays[f"x_{part}"] = np.zeros((n, 3, side, side), np.uint8)
    if owners is not None:
        arrays["owner_train"] = np.array(owners)
    np.savez(folder / "small.npz", **arrays)
    partition = {"kind": "iid" if owners is None else "natural"}
    keys = {
        "dataset": {"file": "small.npz", "partition": partition},
        "prototypes.a.model": model,
        "training": {"batch_size": 32, "local_steps": 1, **training},
        "method": method,
    }
    made = worlds.change(worlds.TINY, keys)
    check(validate_scenario(made, source="s.yaml", folder=folder), time_only=False)


EPOCH = {"local_steps": None, "local_epochs": 1}
DITTO = {"kind": "ditto", "own_epochs": 1}
OWNS_33 = "client 0 owns 33 of the samples, which in bat"


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("fedavg", EPOCH, OWNS_33),
        ("fedavg", {"batch_size": 1}, "in batches of 1 come to a batch of one"),
        (
            "fedavg",
            {"samples": 5, "owners": [0, 0, 0, 0, 1]},
            "client 1 owns 1 of the samples",
        ),
        ("fedrep", {}, OWNS_33),
        (DITTO, {}, OWNS_33),
    ],
)
def test_batch_of_one_under_batch_norm_is_refused_with_its_client(
    tmp_path, method, changes, said
):
    with pytest.raises(InputErrors) as refused:
        check_training(tmp_path, method=method, **changes)
    sentence = str(refused.value)
    assert "training.batch_size: client" in sentence
    assert said in sentence
    needs = "the batch norm of prototype 'a' needs two at least, expected a batch"
    assert needs in sentence


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {"batch_size": 11, **EPOCH}),
        ("fedavg", {}),
        ("ditto", {}),
        ("fedavg", {"side": 16, **EPOCH}),
        ("fedavg", {"model": "resnet18-gn", **EPOCH}),
    ],
)
def test_what_batch_norm_can_train_on_is_not_refused(tmp_path, method, changes):
    check_training(tmp_path, method=method, **changes)
