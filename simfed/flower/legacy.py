"""Apps with `server_fn` and legacy strategies, on the simulated clock.

Those are the strategies of `flwr.server.strategy`. Flower's legacy server sends each
client its message from a thread of a pool: here these take turns as those of any pool
(`simfed.flower.turns`), and there are as many as clients, so that all of a round's
clients are asked at once. Its list of nodes, which Flower keeps in a thread of its own,
is brought up to date whenever it is asked, and never between.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from flwr.server import server as flower_server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat import app as flower_app
from flwr.server.compat.app_utils import _update_client_manager
from flwr.server.workflow import default_workflows as flower_workflows

from simfed.flower.clocks import replaced
from simfed.flower.grid import SimGrid
from simfed.flower.turns import list_done

_LOOK_EVERY_S = 5.0
"""The seconds between a server's looks for nodes that it waits for."""
_MOST_THREADS = 2**31


@contextmanager
def legacy_server() -> Iterator[None]:
    """Have Flower's legacy server take turns with its clients meanwhile."""
    futures = SimpleNamespace(
        ThreadPoolExecutor=lambda max_workers=None: (
            concurrent.futures.ThreadPoolExecutor(_MOST_THREADS)
        ),
        # in a set of them they would be in an order of chance
        wait=lambda fs, timeout=None: (
            list_done(concurrent.futures.wait(fs, timeout).done),
            set(),
        ),
        Future=concurrent.futures.Future,
    )
    with (
        replaced(flower_server, "concurrent", SimpleNamespace(futures=futures)),
        replaced(flower_app, "start_update_client_manager_thread", _update_manager),
        replaced(
            flower_workflows, "start_update_client_manager_thread", _update_manager
        ),
        replaced(SimpleClientManager, "wait_for", _wait_for),
    ):
        yield


def _update_manager(
    grid: SimGrid, manager: SimpleClientManager
) -> tuple[SimpleNamespace, threading.Event, threading.Event]:
    """Let the manager bring its list of nodes up to date when it is asked."""
    stopped, done = threading.Event(), threading.Event()
    stopped.set()
    _update_client_manager(grid, manager, stopped, done)
    return SimpleNamespace(join=lambda: None), stopped, done


def _wait_for(
    self: SimpleClientManager, num_clients: int, timeout: int = 86400
) -> bool:
    """Wait until so many nodes are there, in simulated time."""
    until_s = time.monotonic() + timeout
    while self.num_available() < num_clients:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
