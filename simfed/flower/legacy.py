"""Apps with `server_fn` and strategies of `flwr.server.strategy`: without the threads that Flower
starts for them.

Flower's legacy server sends each client its message from a thread of a pool, and keeps its list of
nodes up to date in another. Here everything runs in the server app's own thread: each call of a
pool is run up to the message that it sends, all messages leave at once, and each call is run anew
with its reply. So all of a round's clients are asked at once, however many threads the pool has.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

from flwr.app import Message
from flwr.server import server as flower_server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat import app as flower_app
from flwr.server.compat.app_utils import _update_client_manager
from flwr.server.workflow import default_workflows as flower_workflows

from simfed.flower.clocks import replaced
from simfed.flower.grid import Later, SimGrid

Call = Callable[[], object]

_LOOK_EVERY_S = 5.0
"""How often Flower's own list of nodes is brought up to date."""


@contextmanager
def without_threads(grid: SimGrid) -> Iterator[None]:
    """Meanwhile Flower's legacy server asks `grid` from one thread."""
    futures = SimpleNamespace(
        ThreadPoolExecutor=lambda max_workers=None: _Pool(grid),
        wait=lambda fs, timeout=None: (_finish_all(fs), set()),
        Future=concurrent.futures.Future,
    )
    with (
        replaced(flower_server, "concurrent", SimpleNamespace(futures=futures)),
        replaced(flower_app, "start_update_client_manager_thread", _update_manager),
        replaced(flower_workflows, "start_update_client_manager_thread", _update_manager),
        replaced(SimpleClientManager, "wait_for", _wait_for),
    ):
        yield


class _Pool:
    """What `ThreadPoolExecutor` is to Flower's server."""

    def __init__(self, grid: SimGrid) -> None:
        self._grid = grid
        self._calls: list[tuple[_Future, Call]] = []

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def submit(self, function: Callable[..., object], *arguments: object) -> _Future:
        future = _Future(self)
        self._calls.append((future, partial(function, *arguments)))
        return future

    def finish(self) -> None:
        """Run all calls up to the message that they send, send these, and run each anew with its
        reply."""
        calls, self._calls = self._calls, []
        messages: list[Message] = []
        waiting: list[tuple[_Future, Call]] = []
        for future, call in calls:
            try:
                with self._grid.later():
                    future.settle(call)
            except Later as later:
                messages += later.messages
                waiting.append((future, call))
        ids = list(self._grid.push_messages(messages))
        under_way = dict(zip(ids, waiting, strict=True))
        for reply in self._grid.await_messages(ids):
            future, call = under_way[reply.metadata.reply_to_message_id]
            with self._grid.given([reply]):
                future.settle(call)


class _Future(concurrent.futures.Future[object]):
    """One that knows its pool, and its place among all in the order in which they were done."""

    _places = itertools.count(1)

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self.pool = pool
        self.place = 0

    def settle(self, call: Call) -> None:
        """Its result or exception is that of this call. Raises: `Later`."""
        try:
            self.set_result(call())
        except Later:
            raise
        except Exception as error:
            self.set_exception(error)
        self.place = next(self._places)


def _finish_all(futures: Iterable[_Future]) -> list[_Future]:
    """All of them, in the order in which they were done."""
    futures = list(futures)
    for future in futures:
        future.pool.finish()
    return sorted(futures, key=lambda future: future.place)


def _update_manager(
    grid: SimGrid, manager: SimpleClientManager
) -> tuple[SimpleNamespace, threading.Event, threading.Event]:
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
