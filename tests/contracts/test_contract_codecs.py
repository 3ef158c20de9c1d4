"""Every registered codec in a run: with a method of the batched engine, and with a
hosted one.
"""

import engine_worlds as tiny
import numpy as np
import pytest
import torch
import worlds

from simfed.compress import ErrorFeedback, codec_from_spec, feedback_for
from simfed.ground.registry import registry
from simfed.policy import Choice
from simfed.sim import TimeOnlyWorkload

K = 60
ARMS = [
    *registry("codec").names(),
    "detached-ef(random-k,weight=0)",
    "top-k+qsgd(4)",
    "random-k+fp16",
    "qsgd(4,bucket=64)",
    "ef21(top-k+fp16)",
    "layers(conv*=periodic-k@10%,fc1.weight=svd(1),*=qsgd(4))",
]
CODECS = [codec_from_spec(arm) for arm in ARMS]
PLAYED = [
    *(("fedkd", codec.label) for codec in CODECS),
    *(("fedprox", codec.label) for codec in CODECS if not codec.moves_point),
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def workload():
    """Yield a function that makes the workload of one arm."""

    def make(method, arm):
        made = worlds.world(
            "tiny",
            {
                "method": method,
                "dataset.public": tiny.public_of(method, 8),
                "prototypes.a.model": "lenet5-half",
                "policy.strategy": arm,
                "compression": {"k": K, "index_code": "fixed"},
                "training": {"batch_size": 8, "local_steps": 1},
                "safeguard.rollback": None,
            },
        )
        return tiny.Host(made, data=tiny.federation(made, train=48, test=8))

    yield make
    while tiny.OPEN:
        tiny.OPEN.pop().close()


@pytest.mark.parametrize(("method", "arm"), PLAYED)
def test_what_is_charged_is_what_an_encoder_writes(workload, method, arm, monkeypatch):
    work, choice = workload(method, arm), Choice(arm, K)
    monkeypatch.setattr(work._encoder, "payloads", seen := {})
    upload = work.begin(1, 0, arm, K)
    size = upload.uplink_bytes()
    work.work_off()
    # sent as it is; what an encoder would make of it has the same size
    if arm == "dense":
        update = torch.zeros(upload.task.parameters)
        seen["update"] = codec_from_spec(arm).encode(update, k=K)[0]
    payload = seen["update"]
    assert size == payload.wire_bytes("fixed") == len(payload.encoded("fixed"))
    declared = work.tasks.uplink_bytes(upload.task, choice)
    assert declared in (None, size)
    if declared:
        assert TimeOnlyWorkload(work.tasks).size_bytes(upload.task, choice) == size


@pytest.mark.parametrize(("method", "arm"), PLAYED)
def test_a_lost_upload_returns_to_where_the_codec_keeps_its_error(
    workload, method, arm
):
    [update] = workload(method, "dense").sent(clients=[0])
    work = workload(method, arm)
    work.discard(work.begin(1, 0, arm, K))
    residual = tiny.residual(work, 0)
    memory = work.kept.states[0].memories["update"][arm]
    close = {"rtol": 1e-5, "atol": 1e-6 * float(update.abs().max())}
    if isinstance(feedback_for(codec_from_spec(arm)), ErrorFeedback):
        np.testing.assert_allclose(residual, update, **close)
        return
    assert not residual.any()
    for name, array in memory.arrays.items() if memory else ():
        # an estimate is of what has arrived; everything else holds what has not
        np.testing.assert_allclose(
            array, 0 * update if name == "estimate" else update, **close
        )
    assert memory or arm.startswith("terngrad"), (
        "only what has no memory may lose an update"
    )


@pytest.mark.parametrize("arm", ["ef21(top-k)", "dgc(0.9)"])
def test_arms_take_turns_and_nothing_is_left_behind(workload, arm):
    """What top-k left in the residual goes with the update of a codec that keeps its
    own error.
    """
    work = workload("fedkd", arm)
    for round, played in enumerate(["top-k", arm], 1):
        work.play(round, arm=played, k=K)
        for client in range(2):
            assert bool(tiny.residual(work, client).any()) == (played == "top-k")
