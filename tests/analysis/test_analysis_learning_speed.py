"""Local training of small models stays faster than a plain loop, in one process and in
turn.
"""

import learning
import pytest

from simfed.native import layers


# The only tests that compare times, and CI's only check that nobody made training slow:
# processor time, not wall time, of rounds in turn in one process, medians, and bounds
# at less than half of what was measured, so that neighbours do not fail them. Hence
# marked long: they stay out of the default tests.
@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "method", "rounds", "times"),
    [
        ("logistic-regression", "fedavg", 30, 2.5),  # 4.8 to 6
        ("logistic-regression", "fedprox", 30, 1.8),  # 4
        ("lenet5", "fedavg", 7, 1.6 if layers() else 0.5),  # 3.2 to 4; 0.8 by PyTorch
    ],
)
def test_training_takes_less_processor_time_than_a_plain_loop(
    model, method, rounds, times, capsys
):
    medians = learning.fedavg(model, method, rounds)
    assert medians["plain loop"] > times * medians[method]
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
    weights = torch.tensor(work.state()[1]["server/only/weights"])
    torch.testing.assert_close(weights, loop.weights(), rtol=1e-5, atol=1e-6)
    work.close()
