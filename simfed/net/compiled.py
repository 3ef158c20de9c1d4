"""The engine in compiled form (`simfed/native/sharing.cpp`): the same numbers, bit for bit.

Flows are known to the library by handles; a `Flow` here is what was asked for, and says again how
far it is when it has ended, is cancelled, or is looked at. Traces, programs of flows, the rare
solution from scratch and checkpoints stay in Python: the library asks for them, and a checkpoint
is that of `simfed.net.engine.Engine`, so either engine goes on with the other's.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, PYFUNCTYPE, Structure, c_double, c_int, c_int64, c_void_p
from functools import cache
from itertools import accumulate, chain
from math import nan
from typing import Any, NamedTuple, NoReturn

import numpy as np

from simfed import native
from simfed.errors import BrokenInvariant
from simfed.net.compiled_state import flows_of, read_plain, write_plain
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.following import AnyEngine, Varying
from simfed.net.maxmin import max_min
from simfed.net.meter import Meter
from simfed.net.topology import Floats, Path
from simfed.net.traces import LinkTrace

__all__ = ["CompiledEngine", "Fluids", "fluid_durations", "make_engine"]


def make_engine(
    capacities_bytes_per_s: Sequence[float] | Floats,
    traces: Mapping[int, LinkTrace] | None = None,
    meter: Meter | None = None,
) -> AnyEngine:
    """The compiled engine where it was built, else Python's; they give the same."""
    kind = Engine if native.sharing() is None else CompiledEngine
    return kind(capacities_bytes_per_s, traces, meter)


class CompiledEngine(AnyEngine):
    """Does what `simfed.net.engine.Engine` does, two to eight times as fast: the more, the more
    flows share links.

    Raises: `RuntimeError` where the library was not built.
    """

    def __init__(
        self,
        capacities_bytes_per_s: Sequence[float] | Floats,
        traces: Mapping[int, LinkTrace] | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(traces)
        self._calls = _library()
        # the library reads them where they lie
        self._capacities = np.ascontiguousarray(capacities_bytes_per_s, dtype=np.float64)
        self._meter = meter
        self._flows: dict[int, Flow] = {}
        self._handles: dict[Flow, int] = {}
        self._raised: BaseException | None = None
        self._asked: tuple[Any, ...] | None = None
        core = self._calls.net_new(self._capacities.ctypes.data, meter is not None, _SOLVE)
        if not core:
            raise MemoryError
        self._core: int = core
        weakref.finalize(self, self._calls.net_free, core)
        if self._traces:
            self._answer()

    @property
    def now_s(self) -> float:
        now_s: float = self._calls.net_now(self._core)
        return now_s

    def restart_clock(self, epoch_s: float) -> None:
        self._calls.net_restart(self._core)
        self._varying.clear()
        self.epoch_s = epoch_s

    def start(self, flow: Flow, at_s: float | None = None) -> None:
        flow.spent_s = flow.latency_s
        flow.since_s = (self.now_s if at_s is None else at_s) + flow.latency_s
        self._enter(flow, flow.since_s)

    def start_all(self, flows: Iterable[tuple[float, Flow]]) -> None:
        for at_s, flow in flows:
            self.start(flow, at_s)

    def next_at_s(self) -> float:
        at_s: float = self._calls.net_next(self._core)
        return at_s

    def advance(self, until_s: float) -> list[Flow]:
        count = self._calls.net_advance(self._core, until_s)
        return [] if count == 1 else self._take(count)

    def cancel(self, flow: Flow) -> None:
        self._take(self._calls.net_cancel(self._core, self._handles[flow]))

    def change_capacity(self, link: int, capacity_bytes_per_s: float) -> None:
        self._take(self._calls.net_change_now(self._core, link, capacity_bytes_per_s))

    def left(self, flow: Flow) -> float:
        handle = self._handles.get(flow)
        if handle is None:
            return flow.remaining_bytes
        left: float = self._calls.net_left(self._core, handle)
        return left

    def look(self, flow: Flow) -> None:
        handle = self._handles.get(flow)
        if handle is not None:
            count = self._calls.net_look(self._core, handle)
            _read(flow, self._calls.net_out(self._core)[:count], 0)

    def state(self) -> dict[str, Any]:
        plain = Engine(self._capacities, self._traces, self._meter)
        plain.epoch_s, plain._varying = self.epoch_s, self._varying
        write_plain(plain, self._flows, *self._dump())
        return plain.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        plain = Engine(self._capacities, self._traces, self._meter)
        plain.restore(state)
        self.epoch_s, self._varying = plain.epoch_s, plain._varying
        flows = flows_of(plain)
        for flow in flows:
            self._enter(flow, nan)
        whole, parts = read_plain(plain, {flow: n for n, flow in enumerate(flows)})
        self._calls.net_undump(
            self._core,
            (c_int64 * len(whole))(*whole),
            (c_double * len(parts))(*parts),
        )

    # ---- inside --------------------------------------------------------------------------------

    def _enter(self, flow: Flow, at_s: float) -> None:
        """Tell the library of a flow, and when it joins (nan: that is known from elsewhere)."""
        links = array("q", flow.links)
        if flow.program is not None and self._asked is None:
            self._answer()
        handle: int = self._calls.net_enter(
            self._core, flow.id, len(links), links.buffer_info()[0], flow.size_bytes, flow.weight,
            flow.cap_bytes_per_s, flow.remaining_bytes, flow.unsent_bytes, flow.spent_s,
            flow.program is not None, at_s,
        )  # fmt: skip
        if handle < 0:
            raise MemoryError
        self._flows[handle] = flow
        self._handles[flow] = handle

    def _take(self, count: int) -> list[Flow]:
        """What the library hands out: the flows that have ended, then what links carried."""
        if count < 0:
            self._fail(count)
        out: list[float] = self._calls.net_out(self._core)[:count]
        ended, place = [], 1
        for _ in range(int(out[0])):
            flow = self._flows.pop(int(out[place]))
            del self._handles[flow]
            place = _read(flow, out, place)
            ended.append(flow)
        if self._meter is not None and self._meter.on_uses is not None:
            self._meter.on_uses(out[place:])
        elif self._meter is not None:
            on_use = self._meter.on_use
            for at in range(place, count, 6):
                link, from_s, to_s, carried, capacity, flows = out[at : at + 6]
                on_use((int(link), from_s, to_s, carried, capacity, int(flows)))
        return ended

    def _fail(self, trouble: int) -> NoReturn:
        if trouble == _NO_MEMORY:
            raise MemoryError
        if trouble == _RAISED:
            raise self._raised or _raised_in_solve.pop()
        said = self._calls.net_trouble(self._core).contents
        raise BrokenInvariant(_TROUBLES[trouble].format(id=said.id, a=said.a, b=said.b))

    def _dump(self) -> tuple[list[int], list[float]]:
        parts = c_int64()
        count = self._calls.net_dump(self._core, ctypes.byref(parts))
        return (
            self._calls.net_whole(self._core)[:count],
            self._calls.net_parts(self._core)[: parts.value],
        )

    # ---- what the library asks -----------------------------------------------------------------

    def _answer(self) -> None:
        """Have the library ask this engine about programs and traces. (It keeps no reference that
        would keep the engine.)"""
        found = weakref.ref(self)

        def asked(work: Callable[..., None]) -> Callable[..., int]:
            def call(*arguments: Any) -> int:
                engine = found()
                assert engine is not None
                try:
                    work(engine, *arguments)
                except BaseException as error:  # goes on in `_fail`
                    engine._raised = error
                    return 1
                return 0

            return call

        burst = _BURST(asked(CompiledEngine._next_burst))
        self._asked = (
            burst,
            *(
                _ASKED(asked(work)) if self._traces else _ASKED()
                for work in (
                    CompiledEngine._before_join,
                    CompiledEngine._after_join,
                    CompiledEngine._piece_over,
                )
            ),
        )
        self._calls.net_ask(self._core, *self._asked)

    def _next_burst(self, handle: int, spent_s: float, unsent_bytes: float, answer: Any) -> None:
        flow = self._flows[handle]
        flow.spent_s, flow.unsent_bytes = spent_s, unsent_bytes
        assert flow.program is not None
        answer[0], answer[1] = flow.program.next_burst(flow)

    def _before_join(self, handle: int) -> None:
        self._follow_path(self._flows[handle])

    def _after_join(self, handle: int) -> None:
        self._check_path(self._flows[handle])

    def _piece_over(self, link: int) -> None:
        self._change(self._varying[link])

    # ---- for traces ----------------------------------------------------------------------------

    def _capacity(self, id: int) -> float:
        capacity: float = self._calls.net_capacity(self._core, id)
        return capacity

    def _set_capacity(self, id: int, capacity_bytes_per_s: float) -> None:
        self._calls.net_set_capacity(self._core, id, capacity_bytes_per_s)

    def _users(self, id: int) -> list[Flow]:
        count = self._calls.net_users(self._core, id, 0, None)
        handles = (c_int64 * count)()
        self._calls.net_users(self._core, id, count, handles)
        return [self._flows[handle] for handle in handles]

    def _in_use(self, id: int) -> bool:
        return bool(self._calls.net_in_use(self._core, id))

    def _change_at(self, at_s: float, varying: Varying) -> None:
        self._calls.net_change_at(self._core, varying.link, at_s)


class Fluids(NamedTuple):
    """Fluid transfers, in columns."""

    at_s: Sequence[float]
    """When each starts, or how long after the end of the one that it follows."""
    after: Sequence[int]
    """The number of that earlier one; −1: none."""
    paths: Sequence[Path]
    sizes_bytes: Sequence[float]
    weights: Sequence[float]


def fluid_durations(capacities_bytes_per_s: Floats, fluids: Fluids) -> list[float]:
    """What each takes over links that do not vary: what engines give, in one call.

    Raises: `RuntimeError` where the library was not built.
    """
    engine = CompiledEngine(capacities_bytes_per_s)
    links = array("q", chain.from_iterable([path.links for path in fluids.paths]))
    starts = array("q", accumulate([len(path.links) for path in fluids.paths], initial=0))
    count = len(fluids.paths)
    durations_s = array("d", bytes(8 * count))
    columns = (
        array("d", fluids.at_s), array("q", fluids.after), starts, links,
        array("d", fluids.sizes_bytes), array("d", [path.latency_s for path in fluids.paths]),
        array("d", fluids.weights), durations_s,
    )  # fmt: skip
    where = [column.buffer_info()[0] for column in columns]
    trouble = engine._calls.net_play(engine._core, count, *where)
    if trouble:
        engine._fail(trouble)
    return durations_s.tolist()


def _read(flow: Flow, out: Sequence[float], place: int) -> int:
    """What the library tells of a flow from `place` on; where that ends."""
    _, flow.remaining_bytes, flow.unsent_bytes, flow.spent_s, flow.since_s, count = out[
        place : place + 6
    ]
    place += 6
    end = place + 2 * int(count)
    flow.dwelt_s = {int(out[at]): out[at + 1] for at in range(place, end, 2)}
    return end


# ---- the library -------------------------------------------------------------------------------

_NO_MEMORY, _RAISED = -1, -2
_TROUBLES = {
    -3: "link {id}: {a} bytes/s above its capacity of {b}",
    -4: "an event of {a} s comes up at {b} s",
    -5: "flow {id} ended with {a} bytes to go",
}

_BURST = PYFUNCTYPE(c_int, c_int64, c_double, c_double, POINTER(c_double))
_ASKED = PYFUNCTYPE(c_int, c_int64)
_Solve = PYFUNCTYPE(
    c_int, c_int64, POINTER(c_double), c_int64, POINTER(c_int64), POINTER(c_int64),
    POINTER(c_double), POINTER(c_double), POINTER(c_double), POINTER(c_int64),
)  # fmt: skip


def _solve(
    links: int,
    capacities: Any,
    flows: int,
    starts: Any,
    paths: Any,
    weights: Any,
    limits: Any,
    rates: Any,
    bottlenecks: Any,
) -> int:
    """Solve from scratch."""
    try:
        found = max_min(
            capacities[:links],
            [paths[starts[flow] : starts[flow + 1]] for flow in range(flows)],
            weights[:flows],
            limits[:flows],
        )
    except BaseException as error:  # goes on in `_fail`
        _raised_in_solve.append(error)
        return 1
    for flow in range(flows):
        rates[flow], bottlenecks[flow] = found.rates_bytes_per_s[flow], found.bottlenecks[flow]
    return 0


_raised_in_solve: list[BaseException] = []
_SOLVE = _Solve(_solve)


class _Stop(Structure):
    _fields_ = (("what", c_int), ("id", c_int64), ("a", c_double), ("b", c_double))


@cache
def _library() -> ctypes.PyDLL:
    """The library, with what its functions take and give."""
    library = native.sharing()
    if library is None:
        raise RuntimeError("the compiled network was not built")
    core, whole, number = c_void_p, c_int64, c_double
    for name, gives, takes in (
        ("new", c_void_p, (c_void_p, c_int, _Solve)),
        ("free", None, (core,)),
        ("ask", None, (core, _BURST, _ASKED, _ASKED, _ASKED)),
        ("patience", None, (core, whole, whole)),
        ("now", number, (core,)),
        ("restart", None, (core,)),
        ("next", number, (core,)),
        ("capacity", number, (core, whole)),
        ("enter", whole, (core, whole, whole, c_void_p, *(number,) * 6, c_int, number)),
        ("play", whole, (core, whole, *(c_void_p,) * 8)),
        ("advance", whole, (core, number)),
        ("cancel", whole, (core, whole)),
        ("change_now", whole, (core, whole, number)),
        ("look", whole, (core, whole)),
        ("out", POINTER(c_double), (core,)),
        ("trouble", POINTER(_Stop), (core,)),
        ("left", number, (core, whole)),
        ("set_capacity", None, (core, whole, number)),
        ("change_at", None, (core, whole, number)),
        ("in_use", c_int, (core, whole)),
        ("users", whole, (core, whole, whole, POINTER(c_int64))),
        ("dump", whole, (core, POINTER(c_int64))),
        ("whole", POINTER(c_int64), (core,)),
        ("parts", POINTER(c_double), (core,)),
        ("undump", None, (core, POINTER(c_int64), POINTER(c_double))),
    ):
        function = getattr(library, f"net_{name}")
        function.restype, function.argtypes = gives, takes
    return library
