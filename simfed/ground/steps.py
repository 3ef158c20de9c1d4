"""What a participation is made of: steps on nodes, in plain data.

A step is a transfer from one node to another, work on a node, or a wait at a barrier. Steps say
nothing of links, processors or instants: a world (`simfed.sim.world`) carries them out. They are
shared by all participations alike, so nothing may be written into one.

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
    "nodes_of",
]

CLIENT: Node = "client"
SERVER: Node = "server"


DOWNLOAD = Send(SERVER, CLIENT, "download")
UPLOAD = Send(CLIENT, SERVER, "upload")


def message_up(size_bytes: float) -> Send:
    """A message to the server beside the upload; charged whatever the scenario charges."""
    return Send(CLIENT, SERVER, "upload", size_bytes)


def message_down(size_bytes: float) -> Send:
    """A message of the server's beside the download; charged whatever the scenario charges."""
    return Send(SERVER, CLIENT, "download", size_bytes)


def nodes_of(plan: Plan) -> set[Node]:
    """The nodes that its messages come from or go to, beside the client and the server."""
    sent = [step for step in plan.steps if isinstance(step, Send)]
    return {end for step in sent for end in (step.source, step.target)} - {CLIENT, SERVER}


def bytes_beside(plan: Plan, phase: str) -> float:
    """What a plan's messages beside its `download` or `upload` come to."""
    return sum(
        step.size_bytes or 0.0
        for step in plan.steps
        if isinstance(step, Send) and step.phase == phase
    )


def check_steps(plan: Plan, participants: int) -> None:
    """Raises: `InputError` for steps that no world can carry out among so many participants.

    >>> check_steps(Plan({}, (), {}, steps=(Wait("keys", least=3),)), participants=2)
    Traceback (most recent call last):
    ...
    simfed.ground.errors.InputError: got 3, expected 1 to 2 clients (all there are) at barrier keys
    """
    for step in plan.steps:
        if isinstance(step, Send):
            _check_message(step)
        elif isinstance(step, Do) and step.node not in (CLIENT, SERVER):
            raise InputError("work of a participation on the client or the server", got=step.node)
        elif isinstance(step, Wait) and not 1 <= step.least <= participants:
            allowed = f"1 to {participants} clients (all there are) at barrier {step.gate}"
            raise InputError(allowed, got=step.least)
        elif isinstance(step, Wait) and not step.deadline_s > 0:
            raise InputError(f"a deadline above 0 s at barrier {step.gate}", got=step.deadline_s)
    for fields, step, name in ((plan.down, DOWNLOAD, "DOWNLOAD"), (plan.up, UPLOAD, "UPLOAD")):
        count = plan.steps.count(step)
        if plan.steps and count != bool(fields):
            times = "once, as" if fields else "never, as nothing"
            raise InputError(f"{name} {times} travels so", got=f"{count} times")
    _check_order(plan)
    gates = [step.gate for step in plan.steps if isinstance(step, Wait)]
    if len(set(gates)) < len(gates):
        raise InputError("barriers of different names", got=", ".join(gates))


def _check_order(plan: Plan) -> None:
    """Raises: `InputError` for an `after` that names no other step, or leads round in a circle."""
    if not plan.after:
        return
    count = len(plan.steps)
    if len(plan.after) != count:
        raise InputError(f"one tuple in `after` for each of {count} steps", got=len(plan.after))
    for number, before in enumerate(plan.after):
        for other in before:
            if not 0 <= other < count:
                allowed = f"numbers of steps from 0 to {count - 1} in after[{number}]"
                raise InputError(allowed, got=other)
    done: set[int] = set()
    while True:
        ready = {n for n in range(count) if n not in done and done.issuperset(plan.after[n])}
        if not ready:
            break
        done |= ready
    left = sorted(set(range(count)) - done)
    if left:
        raise InputError(
            "steps that do not wait for each other in a circle",
            where="after",
            got=f"steps {', '.join(map(str, left))}, which never start",
        )


def _check_message(step: Send) -> None:
    ways = f"{step.phase} from {step.source} to {step.target}"
    if step.phase not in ("download", "upload") or step.source == step.target:
        raise InputError("a download or an upload from one node to another", got=ways)
    wrong = (CLIENT, SERVER) if step.phase == "download" else (SERVER, CLIENT)
    if (step.source, step.target) == wrong:
        raise InputError(f"a {step.phase} from {wrong[1]} to {wrong[0]}", got=ways)
    if step.size_bytes is None and step not in (DOWNLOAD, UPLOAD):
        raise InputError("the size in bytes of a message beside DOWNLOAD and UPLOAD", got=ways)
    if step.size_bytes is not None and not 0 <= step.size_bytes < inf:
        raise InputError("a message of at least 0 bytes", got=step.size_bytes)
