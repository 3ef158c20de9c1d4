"""Every registered codec in a run: with a method of the batched engine, and with a
hosted one.
"""

import engine_worlds as tiny
import numpy as np
import pytest
import torch

from simfed.compress import ErrorFeedback, codec_from_spec, feedback_for
from simfed.ground import Streams
from simfed.ground.registry import registry
from simfed.learn import HostedWorkload
from simfed.policy import Choice
from simfed.sim import TimeOnlyWorkload

K, CLIENTS = 60, 2

ARMS = [
    *registry("codec").names(),
    "detached-ef(random-k,weight=0)",
    "top-k+qsgd(4)",
    "random-k+fp16",
    "qsgd(4,bucket=64)",
    "ef21(top-k+fp16)",
    "layers(conv*=periodic-k@10%,fc1.weight=svd(1),*=qsgd(4))",
]
LABELS = [codec_from_spec(arm).label for arm in ARMS]
METHODS = ["fedkd", "fedprox"]
PLAYED = [
    (method, arm)
    for method in METHODS
    for arm in LABELS
    if method == "fedkd" or not codec_from_spec(arm).moves_point
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def workload():
    """What builds a workload of one arm, closed in the end."""
    made = []

    def build(method, arm, *, workers=1, clients=CLIENTS, **compression):
        scenario = tiny.scenario(
            method=method,
            prototypes={"only": {"model": "lenet5-half"}},
            clients=[{"count": clients, "prototype": "only", "device": "any"}],
            dataset={"name": "mnist-mini", "public": 8 if method == "fedkd" else None},
            policy={"kind": "uniform", "strategy": arm},
            compression={"k": K, "index_code": "fixed", **compression},
            training={"batch_size": 8}
            | ({} if method == "fedkd" else {"local_steps": 1}),
            safeguard={"rollback": None},
        )
        data = tiny.federation(scenario, train=48, test=8)
        made.append(HostedWorkload(scenario, Streams(3), workers=workers, data=data))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.mark.parametrize(("method", "arm"), PLAYED)
def test_what_is_charged_is_what_an_encoder_writes(workload, method, arm, monkeypatch):
    work = workload(method, arm)
    monkeypatch.setattr(work._encoder, "payloads", seen := {})
    upload = work.execute(work.task(1, 0), Choice(arm, K))
    size = upload.uplink_bytes()
    work.state()
    # sent as it is; what an encoder would make of it has the same size
    if arm == "dense":
        update = torch.zeros(upload.task.parameters)
        seen["update"] = codec_from_spec(arm).encode(update, k=K)[0]
    payload = seen["update"]
    assert size == payload.wire_bytes("fixed") == len(payload.encoded("fixed"))
    declared = work.tasks.uplink_bytes(upload.task, Choice(arm, K))
    assert declared in (None, size)
    if declared is not None:
        assert (
            TimeOnlyWorkload(work.tasks).size_bytes(upload.task, Choice(arm, K)) == size
        )


def first_update(workload, method):
    """What client 0 would send of its first update if it sent everything."""
    work = workload(method, "dense")
    upload = work.execute(work.task(1, 0), Choice("dense", K))
    work.state()
    return upload.values["update"].numpy().copy()


@pytest.mark.parametrize(("method", "arm"), PLAYED)
def test_a_lost_upload_returns_to_where_the_codec_keeps_its_error(
    workload, method, arm
):
    update = first_update(workload, method)
    work = workload(method, arm)
    work.discard(work.execute(work.task(1, 0), Choice(arm, K)))
    residual = tiny.residual(work, 0).numpy()
    memory = tiny.state_of(work).memories[0, "update", arm]
    close = {"rtol": 1e-5, "atol": 1e-6 * np.abs(update).max()}
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
        work.merge(
            round,
            [
                work.execute(work.task(round, c), Choice(played, K))
                for c in range(CLIENTS)
            ],
        )
        for client in range(CLIENTS):
            assert bool(tiny.residual(work, client).any()) == (played == "top-k")
