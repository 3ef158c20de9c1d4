"""Files of one's own that cannot be learned from are known before the run."""

from contextlib import nullcontext

import numpy as np
import pytest
import worlds

from simfed import InputErrors
from simfed.experiment import check
from simfed.scenario import validate_scenario

TIMES = dict.fromkeys(("training", "compression", "inference", "distillation"), "1 ms")


def checked(folder, dataset, method="fedavg"):
    keys = {"method": method, "dataset": dataset, "clients[0].device": TIMES}
    made = validate_scenario(
        worlds.change(worlds.TINY, keys), source="s.yaml", folder=folder
    )
    return check(made, source="s.yaml")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((16, 28, 28), None),
        ((20, 27, 28), r"public.npz: x: got '\(n, 27, 28\)', expected samples of shap"),
        ((20, 3, 28, 28), r"'\(n, 3, 28, 28\)', expected .* of shape \(n, 1, 28, 28\)"),
        ((5, 28, 28), "dataset.public: got 16, expected at most the 5 samples of"),
        ((), "x: got 'a single number', expected an array of samples"),
    ],
)
def test_public_file_of_another_shape_is_refused(tmp_path, shape, said):
    np.savez(tmp_path / "public.npz", x=np.zeros(shape, np.uint8))
    data = {"name": "mnist-mini", "public": 16, "public_file": "public.npz"}
    with pytest.raises(InputErrors, match=said) if said else nullcontext():
        checked(tmp_path, data, "fedmd")


def test_row_without_a_value_is_refused(tmp_path):
    rows = [f"{n % 7},{n % 2}" for n in range(40)]
    rows[12] = ",0"
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows]))
    table = {"table": "t.csv", "target": "y", "partition": {"kind": "iid"}}
    said = "t.csv: column a, row 13: got 'nothing'.*median puts"
    with pytest.raises(InputErrors, match=said):
        checked(tmp_path, table)
    checked(tmp_path, {**table, "missing": "median"})
