"""Tiny fleets and apps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import simfed
from simfed.verify import verify

DEVICE = "x86-2core-vm"
PROJECT = """
[project]
name = "tiny"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "{package}.apps:server"
clientapp = "{package}.apps:client"
[tool.flwr.app.config]
"""


def write_app(folder: Path, package: str, code: str, config: str) -> Path:
    """Write an app in a package of a name of its own, and return its folder."""
    (folder / package).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(package=package) + config)
    (folder / package / "__init__.py").write_text("")
    (folder / package / "apps.py").write_text(code)
    return folder


def fleet(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A fleet whose nodes compute for 1 s; groups are completed by a device."""
    groups = groups or ({"count": 2},)
    clients = [{"device": DEVICE, "link": {}, **group} for group in groups]
    computing = {"kind": "declared", "seconds": "1 s"}
    return {"name": "tiny", "clients": clients, "computing": computing, **more}


def payload(value: float = 0.0, size: int = 1) -> Any:
    """A content with one array of `size` values and one metric."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

    arrays = ArrayRecord([np.full(size, value, np.float64)])
    return RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, "v": value})}
    )


def client(work: Callable[[Any, Any], Any] | None = None) -> Any:
    """A client app that answers what `work(message, context)` gives, or an echo."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def answer(message: Any, context: Any) -> Any:
        content = message.content if work is None else work(message, context)
        return Message(content, reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(answer)
    return app


def server(main: Callable[[Any, Any], None]) -> Any:
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(main)
    return app


def to(node: int, content: Any = None, kind: str = "train", **more: Any) -> Any:
    from flwr.app import Message

    return Message(payload() if content is None else content, node, kind, **more)


def ask(grid: Any, kind: str = "train", **options: Any) -> list[Any]:
    """The replies of all nodes that are there."""
    asked = [to(node, kind=kind) for node in grid.get_node_ids()]
    return list(grid.send_and_receive(asked, **options))


def ask_everybody_twice(grid: Any, context: Any) -> None:
    """What a server app does that sends as much to every node, and waits for 30 s at
    most.
    """
    for turn in range(2):
        content = payload(turn, size=200)
        messages = [to(node, content) for node in grid.get_node_ids()]
        list(grid.send_and_receive(messages, timeout=30.0))


def play(
    main: Callable[[Any, Any], None],
    world: dict[str, Any],
    tmp_path: Any,
    app: Any = None,
    **options: Any,
) -> Any:
    """Run `main(grid, context)` over a fleet; the run, whose invariants hold."""
    run = simfed.flower.run(
        server(main),
        client() if app is None else app,
        world,
        tmp_path / "run",
        progress=False,
        **options,
    )
    assert verify(run.path) == []
    return run
