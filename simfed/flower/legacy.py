"""Apps with `server_fn` and strategies of `flwr.server.strategy`: without the threads that Flower
starts for them.

Flower's legacy server sends each client its message from a thread of a pool, and keeps its list of
nodes up to date in another. Here everything is asked in the server app's own thread: what a pool
was given is begun up to the message, all messages leave at once, and each is gone on with when its
reply is there. So all of a round's clients are asked at once, however many threads the pool has.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from flwr.app import Message
from flwr.server import server as flower_server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat import app as flower_app
from flwr.server.compat.app_utils import _update_client_manager

from simfed.flower.grid import Later, SimGrid

__all__ = ["without_threads"]

_LOOK_EVERY_S = 5.0
"""How often Flower's own list of nodes is brought up to date."""


@contextmanager
def without_threads(grid: SimGrid) -> Iterator[None]:
    """Meanwhile Flower's legacy server asks `grid` from one thread."""
    futures = SimpleNamespace(
        ThreadPoolExecutor=lambda max_workers=None: _Pool(grid),
        wait=lambda fs, timeout=None: (_finished(fs), set()),
        Future=concurrent.futures.Future,
    )
    replaced: list[tuple[Any, str, Any]] = [
        (flower_server, "concurrent", SimpleNamespace(futures=futures)),
        (flower_app, "start_update_client_manager_thread", _keep_up_to_date),
        (SimpleClientManager, "wait_for", _wait_for),
    ]
    before = [getattr(of, name) for of, name, _ in replaced]
    for of, name, ours in replaced:
        setattr(of, name, ours)
    try:
        yield
    finally:
        for (of, name, _), theirs in zip(replaced, before, strict=True):
            setattr(of, name, theirs)


class _Pool:
    """What `ThreadPoolExecutor` is to Flower's server."""

    def __init__(self, grid: SimGrid) -> None:
        self._grid = grid
        self._calls: list[tuple[_Future, Callable[..., Any], tuple[Any, ...]]] = []

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> _Future:
        future = _Future(self)
        self._calls.append((future, call, arguments))
        return future

    def finish(self) -> None:
        """Begin all calls, send what they send, and go on with each when its reply is there."""
        calls, self._calls = self._calls, []
        sent: list[Message] = []
        waiting: list[tuple[_Future, Callable[..., Any], tuple[Any, ...]]] = []
        for future, call, arguments in calls:
            try:
                with self._grid.later():
                    future.set_result(call(*arguments))
            except Later as later:
                sent += later.messages
                waiting.append((future, call, arguments))
            except Exception as error:
                future.set_exception(error)
        ids = list(self._grid.push_messages(sent))
        under_way = dict(zip(ids, waiting, strict=True))
        for reply in self._grid.await_messages(ids):
            future, call, arguments = under_way[reply.metadata.reply_to_message_id]
            try:
                with self._grid.given([reply]):
                    future.set_result(call(*arguments))
            except Exception as error:
                future.set_exception(error)


class _Future(concurrent.futures.Future):  # type: ignore[type-arg]
    """One that knows its pool, and when it was done."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self.pool = pool
        self.place = 0
        self.add_done_callback(_number)


_places = itertools.count(1)


def _number(future: Any) -> None:
    future.place = next(_places)


def _finished(futures: Any) -> list[_Future]:
    """All of them, in the order in which they were done."""
    futures = list(futures)
    for future in futures:
        future.pool.finish()
    return sorted(futures, key=lambda future: future.place)


def _keep_up_to_date(grid: Any, manager: Any) -> tuple[Any, threading.Event, threading.Event]:
    """The manager's list of nodes is brought up to date whenever it is asked, and never between."""
    stopped, done = threading.Event(), threading.Event()
    stopped.set()
    _update_client_manager(grid, manager, stopped, done)
    return SimpleNamespace(join=lambda: None), stopped, done


def _wait_for(self: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
    """Wait until so many nodes are there, in simulated time."""
    until_s = time.monotonic() + timeout
    while self.num_available() < num_clients:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
