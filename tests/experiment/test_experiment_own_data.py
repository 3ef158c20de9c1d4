"""Files of one's own that cannot be learned from are known before the run."""

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
        (
            (20, 27, 28),
            (
                r"public.npz: x: got '\(n, 27, 28\)', expected samples of shape "
                r"\(n, 1, 28"
            ),
        ),
        (
            (20, 3, 28, 28),
            (
                r"got '\(n, 3, 28, 28\)', expected samples of shape \(n, 1, "
                r"28, 28\)"
            ),
        ),
        ((5, 28, 28), "dataset.public: got 16, expected at most the 5 samples of"),
        ((), "x: got 'a single number', expected an array of samples"),
    ],
)
def test_a_public_file_of_another_shape_is_refused(tmp_path, shape, said):
    np.savez(tmp_path / "public.npz", x=np.zeros(shape, np.uint8))
    data = {"name": "mnist-mini", "public": 16, "public_file": "public.npz"}
    with pytest.raises(InputErrors, match=said):
        checked(tmp_path, data, "fedmd")


def test_a_public_file_that_fits_is_not_refused(tmp_path):
    np.savez(tmp_path / "public.npz", x=np.zeros((16, 28, 28), np.uint8))
    checked(
        tmp_path,
        {"name": "mnist-mini", "public": 16, "public_file": "public.npz"},
        "fedmd",
    )


def test_a_row_without_a_value_is_refused(tmp_path):
    rows = [f"{n % 7},{n % 2}" for n in range(40)]
    rows[12] = ",0"
    (tmp_path / "t.csv").write_text("a,y\n" + "\n".join(rows) + "\n")
    table = {"table": "t.csv", "target": "y", "partition": {"kind": "iid"}}
    with pytest.raises(
        InputErrors,
        match=r"t.csv: column a, row 13: got "
        r"'nothing'.*median puts",
    ):
        checked(tmp_path, table)
    checked(tmp_path, {**table, "missing": "median"})
