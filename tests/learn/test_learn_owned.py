"""Who owns what, as a run's manifest and reports tell."""

import numpy as np
import pytest

from simfed.ground.seeding import Streams
from simfed.learn.data.dataset import Dataset
from simfed.learn.data.owned import count_owned
from simfed.scenario import Scenario


@pytest.mark.parametrize(
    ("classes", "columns"), [(40, 40), (41, 21), (80, 40), (81, 27)]
)
def test_of_many_classes_neighbours_are_counted_together(add_part, classes, columns):
    labels = np.repeat(np.arange(classes), 6)
    images = np.zeros((len(labels), 1, 2, 2), np.uint8)
    add_part(
        "dataset", "many", lambda: Dataset(images, labels, images, labels, classes)
    )
    plain = {
        "name": "many",
        "rounds": 1,
        "dataset": {"name": "many"},
        "prototypes": {"small": {"model": "logistic-regression"}},
        "clients": [{"count": 3, "prototype": "small", "device": "x86-2core-vm"}],
        "method": "fedavg",
        "compression": {"k": 5},
        "policy": {"kind": "uniform", "strategy": "top-k"},
    }
    owned = count_owned(Scenario.model_validate(plain), Streams(1))
    assert owned.classes.shape == (3, columns)
    assert owned.classes.sum() == owned.samples.sum() == len(labels)
    assert len(owned.names) == (classes if classes == columns else 2)
    assert (owned.names[0], owned.names[-1]) == ("0", str(classes - 1))
