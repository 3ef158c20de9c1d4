"""Learning on a GPU, where there is one: the CPU's numbers, and few waits."""

import warnings
from types import SimpleNamespace

import engine_worlds as tiny
import pytest
import torch
from engine_worlds import Host
from test_learn_engine_round import SCENARIOS as ROUNDS

from simfed import InputError


def gpu(test):
    here = torch.cuda.is_available()
    return pytest.mark.gpu(pytest.mark.skipif(not here, reason="no CUDA device")(test))


SCENARIOS = {
    **{
        name: ROUNDS[name]
        for name in ("ascend", "several local steps", "rollbacks", "public subset")
    },
    "printed": {
        "policy": {
            "kind": "exp3",
            "reward": {"local_loss": {"credit": "as-printed", "data": "batch"}},
        }
    },
    "small clients": {"training": {"batch_size": 2700}},
    "fedavg": {
        "method": "fedavg",
        "prototypes": {"small": {"model": "logistic-regression"}},
    },
}


def played(made, device="cpu", data=None):
    host = Host(made, device=device, data=data)
    rounds = list(host.rounds())
    weights = {name: vector.cpu() for name, vector in tiny.weights(host).items()}
    return [r.arms for r in rounds], [r.outcome for r in rounds], weights


def losses_of(outcome):
    """Every loss that a round has measured, by what it is of."""
    before, after = outcome.shared_loss_before or {}, outcome.shared_loss
    found = {("before", name): loss for name, loss in before.items()}
    found |= {("after", name): loss for name, loss in after.items()}
    for client, (first, then) in outcome.local_loss.items():
        found |= {("first", client): first, ("then", client): then}
    return found | {name: one.loss for name, one in outcome.evaluation.items()}


def assert_same(one, other, rel=1e-5):
    assert one[0] == other[0]
    for left, right in zip(one[1], other[1], strict=True):
        assert left.rolled_back == right.rolled_back
        assert losses_of(left) == pytest.approx(losses_of(right), rel=rel, abs=1e-9)
        for name, evaluation in left.evaluation.items():
            accuracy = right.evaluation[name].accuracy
            assert evaluation.accuracy == pytest.approx(accuracy, abs=0.02)
    for name, weights in one[2].items():
        torch.testing.assert_close(weights, other[2][name], rtol=1e-3, atol=1e-5)


def test_precision_is_float32_whatever_the_caller_has_set():
    # bfloat16, where the processor knows it
    torch.set_float32_matmul_precision("medium")
    try:
        host = Host(tiny.scenario())
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        host.close()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_data_elsewhere_is_refused():
    elsewhere = SimpleNamespace(device=torch.device("meta"))
    with pytest.raises(
        ValueError, match="data on cpu, where it is to be learned; got it on meta"
    ):
        Host(tiny.scenario(), data=elsewhere)


def test_a_device_that_is_not_here_is_one_sentence():
    with pytest.raises(
        InputError, match="--device: got 'tpu', expected a device: cpu or cuda"
    ):
        Host(tiny.scenario(), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="PyTorch finds no CUDA device here"):
            Host(tiny.scenario(), device="cuda")


DEEP = {
    "rounds": 2,
    "dataset": {"name": "stripes", "public": 12},
    "prototypes": {
        "small": {"model": "lenet5-half"},
        "large": {"model": "wresnet40-2"},
    },
    "training": {"batch_size": 8},
}


def deep(device="cpu", **changes):
    """Two rounds of a network with batch norm beside a small one."""
    scenario = tiny.scenario(**{**DEEP, **changes})
    data = tiny.federation(
        scenario, side=12, channels=3, train=120, test=12, device=device
    )
    return played(scenario, device, data)


@gpu
@pytest.mark.parametrize("name", SCENARIOS)
def test_gpu_rounds_are_those_of_the_cpu(name):
    scenario = tiny.scenario(**SCENARIOS[name])
    assert_same(played(scenario, "cuda"), played(scenario), rel=2e-5)


@gpu
def test_gpu_rounds_of_deep_models_are_those_of_the_cpu():
    assert_same(deep("cuda"), deep(), rel=1e-3)


@gpu
@pytest.mark.parametrize(
    "play",
    [lambda: played(tiny.scenario(), "cuda"), lambda: deep("cuda")],
    ids=["lenets", "deep"],
)
def test_gpu_runs_repeat_bit_for_bit(play):
    first, second = play(), play()
    assert first[1] == second[1]
    assert all(torch.equal(first[2][n], w) for n, w in second[2].items())


@gpu
def test_gpu_sizes_that_depend_on_the_data_and_lost_uploads():
    rice = {"strategies": ["top-k", "random-k"], "k": 500, "index_code": "rice"}
    host = Host(tiny.scenario(compression=rice), device="cuda")
    for round in (1, 2):
        uploads = [host.begin(round, c, "top-k", 500) for c in range(4)]
        assert all(upload.uplink_bytes() > 0 for upload in uploads)
        host.discard(uploads[0])
        host.merge(round, uploads[1:])
    timings = host.timings()
    assert min(timings[name] for name in ("training", "logits", "distillation")) > 0


WAITS = {
    "merged": {},
    "rejected": {"safeguard": {"rollback": {"threshold": 1e-9}}},
    "deep": DEEP,
}


@gpu
@pytest.mark.parametrize("name", WAITS)
def test_gpu_waits_do_not_grow_with_the_number_of_clients(name):
    waits = [waits_of_a_round(count, WAITS[name]) for count in (2, 8)]
    assert waits[0] == waits[1] > 0


def waits_of_a_round(count, changes):
    fixed = {"kind": "uniform", "strategy": "top-k"}
    scenario = tiny.scenario(2 * count, **changes, policy=fixed)
    data = None
    if changes is DEEP:
        data = tiny.federation(
            scenario, side=12, channels=3, train=400, test=12, device="cuda"
        )
    host = Host(scenario, device="cuda", data=data)
    for round in (1, 2):
        uploads = [host.begin(round, c, "top-k", 500) for c in range(2 * count)]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                host.merge(round, uploads)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
