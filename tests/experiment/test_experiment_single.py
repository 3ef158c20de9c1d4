"""Batches of one sample, which batch norm cannot train on, are known before a run."""

import numpy as np
import pytest
import worlds

from simfed import InputError, InputErrors
from simfed.experiment import check
from simfed.scenario import validate_scenario


def scenario(
    folder,
    *,
    samples=66,
    side=8,
    owners=None,
    model="resnet18",
    method=None,
    **training,
):
    rng = np.random.default_rng(0)
    arrays = {
        f"{axis}_{part}": values
        for part, n in (("train", samples), ("test", 4))
        for axis, values in (
            ("x", rng.integers(0, 255, (n, 3, side, side), dtype=np.uint8)),
            ("y", rng.integers(0, 2, n)),
        )
    }
    if owners is not None:
        arrays["owner_train"] = np.array(owners)
    np.savez(folder / "small.npz", **arrays)
    partition = {"kind": "iid" if owners is None else "natural"}
    keys = {
        "dataset": {"file": "small.npz", "partition": partition},
        "prototypes.a.model": model,
        "training": training,
    }
    keys |= {} if method is None else {"method": method}
    plain = worlds.change(worlds.TINY, keys)
    return validate_scenario(plain, source="s.yaml", folder=folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"batch_size": 32, "local_epochs": 1},
            "client 0 owns 33 of the samples, which in bat",
        ),
        ({"batch_size": 1, "local_steps": 1}, "in batches of 1 come to a batch of one"),
        (
            {
                "batch_size": 32,
                "local_steps": 1,
                "samples": 5,
                "owners": [0, 0, 0, 0, 1],
            },
            "client 1 owns 1 of the samples",
        ),
        *(
            (
                {
                    "batch_size": 32,
                    "local_steps": 1,
                    "method": {"kind": kind, **option},
                },
                "client 0 owns 33 of the samples, which in bat",
            )
            for kind, option in (("fedrep", {}), ("ditto", {"own_epochs": 1}))
        ),
    ],
)
def test_a_batch_of_one_under_batch_norm_is_refused_with_its_client(
    tmp_path, changes, said
):
    with pytest.raises((InputError, InputErrors)) as refused:
        check(
            scenario(tmp_path, **changes), source=tmp_path / "s.yaml", time_only=False
        )
    sentence = str(refused.value)
    assert "training.batch_size: client" in sentence
    assert said in sentence
    assert (
        "the batch norm of prototype 'a' needs two at least, expected a batch"
        in sentence
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 11, "local_epochs": 1},
        {"batch_size": 32, "local_steps": 1},
        {"batch_size": 32, "local_steps": 1, "method": {"kind": "ditto"}},
        {"batch_size": 32, "local_epochs": 1, "side": 16},
        {"batch_size": 32, "local_epochs": 1, "model": "resnet18-gn"},
    ],
)
def test_what_batch_norm_can_train_on_is_not_refused(tmp_path, changes):
    check(scenario(tmp_path, **changes), source=tmp_path / "s.yaml", time_only=False)
