"""What a participation and a merge are charged, method by method: `plans.txt`.

A block is a world of `textbook`, a client and what is different; bytes down in rounds 1
and 2 and up (None: learning knows), 4 for each entry; work in rounds 1 and 2, and of
the server when all arrive; FLOPs of auxiliary work.
"""

from pathlib import Path

import pytest
import textbook
import yaml
from engine_worlds import Host

from simfed.compress.choice import NO_COMPRESSION

BLOCKS = Path(__file__).with_name("plans.txt").read_text().strip().split("\n\n")


def describe(where, work):
    for unit in work:
        size = f"{unit.size}×{unit.times:g}"
        words = where, unit.quantity, unit.model, size, unit.kind, unit.name
        yield " ".join(filter(None, words))


def describe_compressed(fields):
    for name, field in fields.items():
        if field.compressed and name != "update":
            feedback = "feedback" if field.feedback else "no feedback"
            yield f"up: {name} compressed with {feedback}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_bytes_and_work(block):
    head, *said = [line for line in block.split("\n") if line[0] != "#"]
    world, client, changes = head.split(maxsplit=2)
    host = Host(getattr(textbook, world)(**yaml.safe_load(changes)))
    first, second = (host.task(round, int(client)) for round in (1, 2))
    up = host.tasks.uplink_bytes(first, NO_COMPRESSION)
    arrived = [host.task(1, one).who for one in range(host.scenario.client_count)]
    work = host.tasks.server_work(arrived, 1, measured=False)
    assert said == [
        f"{first.downlink_bytes:g} {second.downlink_bytes:g} {up}",
        *describe_compressed(first.plan.up),
        *describe("1:", first.plan.work),
        *describe("2:", second.plan.work),
        *describe("server:", [one for one in work if one.quantity != "handling"]),
        *(f"{name}: {flops:.9g}" for name, flops in host.tasks.auxiliary().items()),
    ]
