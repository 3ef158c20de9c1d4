"""Units of work on the workers of a Dask cluster: the pool of `simfed run --dask`.

Units are pure calls, so they may be done anywhere, and again: a worker that dies costs
its work again and nothing else. A batch goes out in one message per thread, straight to
a worker, with all that its units need, states too: nothing lies at workers alone.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from simfed.compress.choice import NO_COMPRESSION
from simfed.fleet.contract import Task
from simfed.ground.cluster import SchedulerConnection, call_part
from simfed.ground.errors import InputError, RunFailed, SimfedError
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.clients import Bench, Unit
from simfed.learn.federation import CPU
from simfed.learn.orders import Order
from simfed.learn.pools import ForkedPool, UnitWorker
from simfed.learn.precision import fix_bits
from simfed.learn.shelf import Shelf
from simfed.learn.state import ClientState
from simfed.learn.training import split_evenly
from simfed.record.digest import digest_value
from simfed.replay.key import code_digest, describe_learning
from simfed.scenario import Scenario
from simfed.scenario.load import validate_scenario

_WORTH_FLOPS = 5e8
"""Work of the server below this (10 ms) is done by this process."""
_WORTH_CLIENT_S = 0.01
"""Seconds of work that a client's messages cost in a round."""
_TRIES = 5
"""The number of times that work is sent out whose workers die."""
_PATIENCE_WALL_S = 300.0
"""Host seconds that a cluster may be without workers."""
_LOOK_EVERY_WALL_S = 10.0

_WORDS = {"code": "version of simfed", "data": "data set"}
"""Key of a learning setup → what differs where it does."""

_HERE = threading.local()
"""Each thread of a worker has its bench: `rig` that it was made of, `worker`."""


class DaskPool(ForkedPool):
    """A `Pool` of the threads of a cluster's workers.

    Clients' work is done there, and the server's where it takes longer than a message.
    Each thread has a bench of its own, made of the scenario; before it gets work it
    shows that it learns the same bits as this process.
    """

    def __init__(
        self,
        bench: Bench,
        connection: SchedulerConnection,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """Have every worker show that it learns the same bits.

        Args:
            bench: of the run, as this process has it.
            connection: to the cluster's scheduler.
            say: hears it if the cluster does not pay; None: nobody.

        Raises:
            InputError: a worker that does not, with its address.
            RunFailed: there is no worker.
        """
        super().__init__(bench, 1)
        self._connection, self._client = connection, connection.client
        self._shelf, self._say = _make_shelf(), say
        scenario = bench.tasks.scenario
        self._rig = json.dumps({
            "folder": str(Path.cwd()),
            "scenario": scenario.model_dump(mode="json"),
            "setup": _describe_setup(scenario),
            "bits": _digest_work(bench),
        })  # fmt: skip
        self._count_threads(_LOOK_EVERY_WALL_S)
        for address in self._connection.threads():
            try:
                self._send([self._shelf.pack([])], address)
            except InputError as error:
                raise error.within(f"--dask: {address}") from None
            except (ImportError, AttributeError):  # of code that is not there
                raise _make_refusal("code").within(f"--dask: {address}") from None

    @override
    def pays(self, units: Sequence[Unit], costs: Sequence[float]) -> bool:
        return sum(costs) >= _WORTH_FLOPS or any(name == "work" for name, _ in units)

    @override
    def share(
        self, units: Sequence[Unit], costs: Sequence[float]
    ) -> list[tuple[Any, dict[str, float]]]:
        found: dict[int, tuple[Any, dict[str, float]]] = {}
        for _ in range(_TRIES):
            left = [at for at in range(len(units)) if at not in found]
            if not left:
                break
            left.sort(key=lambda at: -costs[at])
            dealt = split_evenly(left, len(left), self.workers)
            sent = [self._shelf.pack([units[at] for at in mine]) for mine in dealt]
            for number, came in self._send(sent).items():
                found |= zip(dealt[number], came, strict=True)
            if len(found) < len(units):
                self._count_threads(_PATIENCE_WALL_S)
        else:
            raise RunFailed(
                f"workers of the Dask cluster have died {_TRIES} times at the same "
                "work (for want of memory, perhaps); resume from the last checkpoint"
            )
        answers = [found[at] for at in range(len(units))]
        if self._say is not None and units[0][0] == "work":
            say, self._say = self._say, None
            clients = sum(len(orders) for _, (orders, *_) in units)
            work_s = sum(sum(seconds.values()) for _, seconds in answers) / clients
            if work_s < _WORTH_CLIENT_S:
                say(
                    f"--dask: a client's work takes {1000 * work_s:.2g} ms in a round, "
                    f"its messages some {1000 * _WORTH_CLIENT_S:g} ms: --workers on "
                    "one machine will be faster"
                )
        return answers

    def _send(self, messages: Sequence[bytes], address: str = "") -> dict[int, Any]:
        """Return number of a message → its answers, of those that workers lived for.

        Args:
            messages: packed units, each for one thread.
            address: the worker that is to answer, if it is still there; empty: any.

        Raises:
            SimfedError: what a worker answered with.
        """
        client = self._client
        there = {"workers": [address], "allow_other_workers": True} if address else {}
        try:
            laid = client.scatter([*messages], hash=False, direct=True)
            futures = [
                client.submit(call_part, _SERVE, self._rig, one, pure=False, **there)
                for one in laid
            ]
            self._wait(futures)
            done = [n for n, one in enumerate(futures) if one.status != "cancelled"]
            packed = client.gather([futures[n] for n in done], direct=True)
        except (*self._connection.gone, self._connection.distributed.KilledWorker):
            return {}  # a worker, or all of them: who counts threads will see
        answers = dict(zip(done, map(self._shelf.unpack, packed), strict=True))
        for answer in answers.values():
            if isinstance(answer, SimfedError):
                raise answer
        return answers

    def _wait(self, futures: Sequence[Any]) -> None:
        """Wait until all futures are done, or those of workers that died are given up.

        Raises:
            RunFailed: the cluster stays without workers.
        """
        distributed = self._connection.distributed
        while True:
            try:
                with self._client.as_current():
                    distributed.wait(futures, timeout=_LOOK_EVERY_WALL_S)
                return
            except distributed.TimeoutError:
                self._count_threads(_PATIENCE_WALL_S)
            except (
                distributed.CancelledError
            ):  # what they need lay at a worker that died
                return

    def _count_threads(self, patience_wall_s: float) -> None:
        """Note how many threads there are, once there is one.

        Args:
            patience_wall_s: host seconds to wait for it.

        Raises:
            RunFailed: the cluster is gone, or stays empty for so long.
        """
        until = time.monotonic() + patience_wall_s
        while not (threads := self._connection.threads()):
            if time.monotonic() > until:
                raise RunFailed(
                    f"the Dask cluster has had no worker for {patience_wall_s:g} s"
                )
            time.sleep(0.2)
        self.workers = sum(threads.values())


# ---- at a worker ---------------------------------------------------------------------


def serve(rig: str, message: bytes) -> bytes:
    """Return the answers to a message's units, packed, or what is wrong here.

    It is what a worker of the cluster runs.

    Args:
        rig: the run that the message is of, as JSON: scenario, setup, digest of its
        bits.
        message: packed units.
    """
    try:
        worker = _find_worker(rig)
        units = worker.shelf.unpack(message)
        answers: object = [worker.answer(*unit) for unit in units]
    except SimfedError as error:
        answers = error
    return _make_shelf().pack(answers)


_SERVE = f"{serve.__module__}:{serve.__qualname__}"


def _find_worker(rig: str) -> UnitWorker:
    """Return this thread's worker for a run, made when the run is new to it.

    Args:
        rig: as of `serve`.

    Raises:
        InputError: it would learn other bits.
    """
    if getattr(_HERE, "rig", None) == rig:
        worker: UnitWorker = _HERE.worker
        return worker
    told = json.loads(rig)
    if told["setup"]["code"] != code_digest():
        raise _make_refusal("code")
    source, folder = "scenario", Path(told["folder"])
    scenario = validate_scenario(
        told["scenario"], source=source, folder=folder, allow_plugins=True
    )
    _compare(told["setup"], _describe_setup(scenario))
    if not hasattr(_HERE, "settings"):
        _HERE.settings = fix_bits(CPU)  # for as long as the thread lives
        _HERE.settings.__enter__()
    bench = Bench(scenario, Streams(scenario.seed), CPU)
    _compare({"bits": told["bits"]}, {"bits": _digest_work(bench)})
    worker = _HERE.worker = UnitWorker(bench, _make_shelf())
    _HERE.rig = rig
    return worker


def _compare(told: dict[str, str], found: dict[str, str]) -> None:
    """Raise `InputError` for the first thing that two setups do not have alike."""
    for key in told.keys() | found.keys():
        if told.get(key) != found.get(key):
            raise _make_refusal(key)


def _make_refusal(key: str) -> InputError:
    """Return the error for a worker that differs in one thing of a setup."""
    allowed = "a worker that learns what the server would"
    return InputError(allowed, problem=f"another {_WORDS.get(key, key)}")


def _describe_setup(scenario: Scenario) -> dict[str, str]:
    """Return a digest of each thing that the bits of learning hang on, by its name."""
    setup = describe_learning(scenario)
    machine: dict[str, Plain] = setup.pop("machine")
    return {
        "code": setup.pop("code"),
        **{key: digest_value(value) for key, value in {**setup, **machine}.items()},
    }


def _digest_work(bench: Bench) -> str:
    """Return a digest of the bits of a client's first work, in hex digits.

    Two processes with the same one are taken to learn alike.
    """
    who = bench.tasks.who(0)  # here nobody knows devices, nor what they cut off
    plan = bench.method.plan(bench.tasks.setting, who, 1)
    task = Task(1, 0, who, plan, 0, 0.0)
    down = bench.method.send(bench.method.begin(bench.kit), task.who, 1)
    [(result, _)] = bench.work([Order(task, NO_COMPRESSION, down)], [ClientState()])
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(result.values):
        digest.update(result.values[name].detach().numpy().tobytes())
    return digest.hexdigest()


def _make_shelf() -> Shelf:
    """Return a shelf without room: tensors travel with their message."""
    return Shelf([0])
