"""The accelerator's engine: the same numbers as the CPU's, on a GPU where there is one.

Its code runs on any PyTorch device, so most of it is tested on the CPU; the tests marked `gpu` play
the same rounds on a GPU, and look for waits.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import engine_worlds as tiny

from simfed.errors import InputError
from simfed.learn import workload as workload_module
from simfed.learn.accelerator import AcceleratorEngine
from simfed.learn.plain import plain_rounds
from simfed.learn.workload import LearningWorkload
from simfed.seeding import Streams

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

SCENARIOS = {
    "lenets": {},
    "several steps": {"training": {"batch_size": 16, "local_steps": 2}},
    "rollbacks": {"safeguard": {"rollback": {"threshold": 0.5}}},
    "public subset": {"dataset": {"name": "mnist-mini", "public": 48, "public_batch": 20}},
    "printed": {"policy": {"kind": "exp3", "reward": {"local_loss": {"credit": "as-printed", "data": "batch"}}}},
    "small clients": {"training": {"batch_size": 2700}},
    "fedavg": {"method": "fedavg", "prototypes": {"small": {"model": "logistic-regression"}},
               "clients": [{"count": 4, "prototype": "small", "device": "any"}]},
}  # fmt: skip


def played(scenario, device="cpu", data=None):
    work = LearningWorkload(scenario, Streams(scenario.seed), device=device, data=data)
    rounds = list(plain_rounds(scenario, work, Streams(scenario.seed)))
    weights = {n: p.server.weights.cpu() for n, p in work.engine.prototypes.items()}
    work.close()
    return [r.arms for r in rounds], [r.outcome for r in rounds], weights


def assert_same(one, other, rel=1e-5):
    assert one[0] == other[0]
    for left, right in zip(one[1], other[1], strict=True):
        assert left.rolled_back == right.rolled_back
        assert dict(left.kd_loss) == pytest.approx(dict(right.kd_loss), rel=rel, abs=1e-9)
        assert set(left.local_loss) == set(right.local_loss)
        for client, losses in left.local_loss.items():
            assert losses == pytest.approx(right.local_loss[client], rel=rel)
        for name, found in left.evaluation.items():
            assert found.loss == pytest.approx(right.evaluation[name].loss, rel=rel)
            assert found.accuracy == pytest.approx(right.evaluation[name].accuracy, abs=0.02)
    for name, weights in one[2].items():
        torch.testing.assert_close(weights, other[2][name], rtol=1e-3, atol=1e-5)


@pytest.fixture
def on_cpu(monkeypatch):
    """The accelerator's engine in place of the processes'."""

    def engine(scenario, streams, data, workers):
        return AcceleratorEngine(scenario, streams, data)

    monkeypatch.setattr(workload_module, "Engine", engine)


@pytest.mark.parametrize("name", SCENARIOS)
def test_rounds_are_those_of_the_processes(name, request):
    scenario = tiny.scenario(**SCENARIOS[name])
    expected = played(scenario)
    request.getfixturevalue("on_cpu")
    assert_same(played(scenario), expected)


def test_deep_models_with_statistics_run_one_after_another(on_cpu):
    scenario = tiny.scenario(
        rounds=1,
        dataset={"name": "cifar10", "public": 12},
        prototypes={"small": {"model": "lenet5-half"}, "large": {"model": "wresnet40-2"}},
        training={"batch_size": 8},
    )
    data = tiny.federation(scenario, side=12, channels=3, train=120, test=12)
    work = LearningWorkload(scenario, Streams(0), data=data)
    assert work.engine.worker.together == {"small"}
    outcome = work.merge(1, [work.execute(work.task(1, c), "top-k", 500) for c in range(4)])
    assert set(outcome.kd_loss) == {"small", "large"}
    assert work.engine.prototypes["large"].server.statistics.std() > 0


def test_a_device_that_is_not_here_is_one_sentence():
    with pytest.raises(InputError, match="--device: a device: cpu or cuda, got 'tpu'"):
        LearningWorkload(tiny.scenario(), Streams(0), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="PyTorch finds no CUDA device here"):
            LearningWorkload(tiny.scenario(), Streams(0), device="cuda")


@gpu
@needs_gpu
@pytest.mark.parametrize("name", SCENARIOS)
def test_gpu_rounds_are_those_of_the_cpu(name):
    scenario = tiny.scenario(**SCENARIOS[name])
    assert_same(played(scenario, "cuda"), played(scenario), rel=1e-4)


@gpu
@needs_gpu
def test_gpu_runs_repeat_bit_for_bit():
    first, second = (played(tiny.scenario(), "cuda") for _ in range(2))
    assert first[1] == second[1]
    assert all(torch.equal(first[2][n], w) for n, w in second[2].items())


@gpu
@needs_gpu
def test_gpu_waits_do_not_grow_with_the_number_of_clients():
    waits = []
    for count in (2, 8):
        clients = [{"count": count, "prototype": p, "device": "any"} for p in ("small", "large")]
        scenario = tiny.scenario(clients=clients, policy={"kind": "uniform", "strategy": "top-k"})
        work = LearningWorkload(scenario, Streams(0), device="cuda", learns=True)
        for round in (1, 2):
            uploads = [work.execute(work.task(round, c), "top-k", 500) for c in range(2 * count)]
            torch.cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                work.merge(round, uploads)
            torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(w.message) for w in caught))
    assert waits[0] == waits[1]
