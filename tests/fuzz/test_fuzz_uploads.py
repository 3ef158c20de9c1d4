"""What uploads mean, mutated behind the transport: refused in a sentence, or as good as
honest.
"""

import contextlib
import json
import os

import deploy_worlds as worlds
import numpy as np
import pytest
from mutations import STRANGE, mutated_bytes, mutated_tree, rng_of

from simfed import InputError
from simfed.deploy import Instants, Refused
from simfed.deploy.measured import read_busy
from simfed.ground import Streams
from simfed.learn import Parcel, pack, read_answer, unpack
from simfed.learn.apart import RealClient, make_server_workload
from simfed.policy import Choice

COUNT = int(os.environ.get("SIMFED_FUZZ_MESSAGES", "100000"))
METHODS = {
    **dict.fromkeys(("fedavg", "scaffold"), "logistic-regression"),
    **dict.fromkeys(("fedproto", "fedkd-mutual"), "lenet5-half"),
}
POISON = [np.nan, np.inf, -np.inf, 1e38, -1e38, 3e19, -1.0, 0.0, 1e-45]


def asked(method):
    """(server's workload, an upload under way, what its client honestly sends)."""
    plan = worlds.scenario(
        method=method,
        prototypes={"small": {"model": METHODS[method]}},
        compression={"k": 50, "strategies": ["top-k", "top-k+qsgd(4)"]},
    )
    streams = Streams(plan.seed)
    server = make_server_workload(
        plan, streams, ask=lambda *_: [], tell=lambda *_: None
    )
    client = RealClient(plan, streams, 0)
    choice = Choice.of("top-k+qsgd(4)" if method == "scaffold" else "top-k").at(50)
    upload = server.execute(server.task(1, 0), choice)
    return server, upload, client.work(server.clients.outgoing(upload)).parcel


def mutated(rng, honest):
    """A message that is nearly right: facts, arrays, bytes, or several of them."""
    facts, body = honest
    if rng.random() < 0.6:
        facts = {}  # where it would hold itself
        with contextlib.suppress(ValueError):
            facts = mutated_tree(rng, json.loads(json.dumps(honest.facts)))
    if rng.random() < 0.3:
        known, parts = unpack(honest)
        name = rng.choice([*parts])
        part = parts[name]
        if rng.random() < 0.3:
            parts[name] = rng.choice(
                [np.zeros(3), np.zeros((2, 2), np.int8), b"", b"x" * 40]
            )
        elif not isinstance(part, bytes) and part.size:
            parts[name] = part.copy()
            parts[name].flat[rng.randrange(part.size)] = rng.choice(POISON)
        return pack(known, parts)
    if rng.random() < 0.5:
        whole = len(body) // 4 * 4
        values = np.frombuffer(body[:whole], "<f4").copy()
        begins = rng.randrange(len(values))
        values[begins : begins + rng.choice((1, 5, 500))] = rng.choice(POISON)
        body = values.tobytes() + body[whole:]
    elif rng.random() < 0.2:
        body = mutated_bytes(rng, body)
    return Parcel(facts, body)


def try_messages(method, count, server, upload, honest):
    refused, deliver = [], server.clients.deliver
    deliver(upload, honest)
    shapes = {name: value.shape for name, value in upload.values.items()}
    for number in range(count):
        rng = rng_of(method, number)
        try:
            deliver(upload, mutated(rng, honest))
        except InputError as error:
            refused.append(str(error))
            continue
        for name, value in upload.values.items():
            assert bool(value.isfinite().all()), number
            assert method == "fedkd-mutual" or value.shape == shapes[name], number
            assert float(value.square().sum()) < np.finfo(np.float32).max, number
        assert upload.loss_before is None or upload.loss_before >= 0, number
    assert len(refused) > count // 3
    assert [sentence for sentence in refused if not sentence.isprintable()] == []
    deliver(upload, honest)
    # nothing of the server's was touched by what was refused
    server.merge(1, [upload])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "count", [150, pytest.param(COUNT // len(METHODS), marks=pytest.mark.long)]
)
def test_strange_upload_is_refused_or_as_good_as_honest(method, count):
    server, upload, honest = asked(method)
    try:
        try_messages(method, count, server, upload, honest)
    finally:
        server.close()


MEASURED = "received", "begun", "sending", "training", "compression", "packing"
MEASURED += "training_busy", "compression_busy", "busy"


def test_strange_times_and_losses_are_refused_or_lie_within_the_participation():
    names = [f"{name}_s" for name in MEASURED]
    ends = {"started_s": 0.0, "sent_s": 0.1, "arrived_s": 1.0, "landed_s": 1.0}
    for number in range(500):
        rng = rng_of("times", number)
        times = {name: rng.choice([*STRANGE, 0.1, 0.2, 0.3, 10**400]) for name in names}
        for name in rng.sample(names, 8):
            times[name] = 0.1
        try:
            instants = Instants.of(times, lambda there_s: there_s, **ends)
            busy = read_busy(times, 1.0)
        except Refused:
            continue
        assert 0 <= instants.training_s <= 61
        assert 0 <= busy.training_s <= 61 * 1024
    for number in range(500):
        rng = rng_of("losses", number)
        loss = read_answer(Parcel({"loss": rng.choice([*STRANGE, 10**400])}))
        assert loss is None or 0 <= loss < np.inf
