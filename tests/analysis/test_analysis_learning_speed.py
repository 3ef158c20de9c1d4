"""Local training of small models stays faster than a plain loop, in one process and in turn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "analysis" / "benchmarks"))
import learning


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_cohorts_of_small_models_take_less_processor_time_than_a_plain_loop(method, capsys):
    medians = learning.fedavg("logistic-regression", method, rounds=30)
    # five and four times less where it was measured: half of that would be a loss, not a neighbour
    assert medians["plain loop"] > 1.8 * medians[method]
    assert "processor time per round" in capsys.readouterr().out


def test_loop_and_learning_learn_the_same():
    import torch

    made = learning.averaging("logistic-regression", "fedavg")
    made = made.model_copy(
        update={"dataset": made.dataset.model_copy(update={"name": "mnist-mini"})}
    )
    streams = learning.Streams(made.seed)
    data = learning.federation(made)
    work = learning.workload(made, streams, data)
    loop = learning.AveragingLoop(made, streams, data)
    for played in learning.plain_rounds(made, work, streams):
        loop.round(played.round)
        if played.round == 3:
            break
    found = work.engine.prototypes["only"].server.weights
    torch.testing.assert_close(found, loop.weights(), rtol=1e-5, atol=1e-6)
    work.close()
