"""What a participation is made of: steps one after another, in plain data.

A participation is a chain: each step, a transfer between client and server, work at either end or
a wait at a barrier, begins when the one before has ended. Steps say nothing of links, processors or
instants: a world (`simfed.sim.world`) carries them out. They are shared by all participations
alike, so nothing may be written into one.

The short form, `Plan(down, work, up)`, is download, work, compression, upload. A method with more
messages says its steps in their order:

    Plan(down, (), up, steps=(
        DOWNLOAD, Do(CLIENT, setting.training(who), "training"),
        message_up(64.0), Wait("keys"), message_down(64.0 * setting.participants),
        UPLOAD,
    ))
"""

from __future__ import annotations

from math import inf

from simfed.ground.errors import InputError
from simfed.ground.method import Do, Node, Plan, Send, Step, Wait

__all__ = [
    "CLIENT",
    "DOWNLOAD",
    "SERVER",
    "UPLOAD",
    "Do",
    "Node",
    "Send",
    "Step",
    "Wait",
    "bytes_beside",
    "check_steps",
    "message_down",
    "message_up",
]

CLIENT: Node = "client"
SERVER: Node = "server"


DOWNLOAD = Send("download")
UPLOAD = Send("upload")


def message_up(size_bytes: float) -> Send:
    """A message to the server beside the upload; charged whatever the scenario charges."""
    return Send("upload", size_bytes)


def message_down(size_bytes: float) -> Send:
    """A message of the server's beside the download; charged whatever the scenario charges."""
    return Send("download", size_bytes)


def bytes_beside(plan: Plan, phase: str) -> float:
    """What a plan's messages beside its `download` or `upload` come to."""
    return sum(
        step.size_bytes or 0.0
        for step in plan.steps
        if isinstance(step, Send) and step.phase == phase
    )


def check_steps(plan: Plan) -> None:
    """Raises: `InputError` for steps that no world can carry out.

    >>> check_steps(Plan({}, (), {}, steps=(Wait("keys", deadline_s=0.0),)))
    Traceback (most recent call last):
    ...
    simfed.ground.errors.InputError: got 0.0, expected a deadline above 0 s at barrier keys
    """
    for step in plan.steps:
        if isinstance(step, Send):
            _check_message(step)
        elif isinstance(step, Do) and step.node not in (CLIENT, SERVER):
            raise InputError("work of a participation on the client or the server", got=step.node)
        elif isinstance(step, Wait) and not step.deadline_s > 0:
            raise InputError(f"a deadline above 0 s at barrier {step.gate}", got=step.deadline_s)
    for fields, step, name in ((plan.down, DOWNLOAD, "DOWNLOAD"), (plan.up, UPLOAD, "UPLOAD")):
        count = plan.steps.count(step)
        if plan.steps and count != bool(fields):
            times = "once, as" if fields else "never, as nothing"
            raise InputError(f"{name} {times} travels so", got=f"{count} times")
    gates = [step.gate for step in plan.steps if isinstance(step, Wait)]
    if len(set(gates)) < len(gates):
        raise InputError("barriers of different names", got=", ".join(gates))


def _check_message(step: Send) -> None:
    if step.phase not in ("download", "upload"):
        raise InputError("a message of phase download or upload", got=step.phase)
    if step.size_bytes is not None and not 0 <= step.size_bytes < inf:
        raise InputError("a message of at least 0 bytes", got=step.size_bytes)
