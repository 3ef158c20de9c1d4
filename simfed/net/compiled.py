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
from simfed.ground.arrays import Floats
from simfed.ground.errors import BrokenInvariant
from simfed.net.compiled_state import list_flows, read_plain, write_plain
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.following import AnyEngine, Varying
from simfed.net.maxmin import max_min
from simfed.net.meter import Meter
from simfed.net.topology import Path
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
        self._calls = _load_library()
        # the library reads them where they lie
        self._capacities = np.ascontiguousarray(capacities_bytes_per_s, dtype=np.float64)
        self._meter = meter
        self._flows: dict[int, Flow] = {}
        self._handles: dict[Flow, int] = {}
        self._raised: BaseException | None = None
        self._callbacks: tuple[object, ...] | None = None
        self._said = array("d", bytes(8 * _ROOM))
        core = self._calls.net_new(
            self._capacities.ctypes.data, meter is not None, _SOLVE,
            self._said.buffer_info()[0], _ROOM,
        )  # fmt: skip
        if not core:
            raise MemoryError
        self._core: int = core
        # read where they lie, several times per transfer: a call takes twenty times as long
        self._now: c_double = self._calls.net_now(core).contents
        self._next: c_double = self._calls.net_next(core).contents
        weakref.finalize(self, self._calls.net_free, core)
        if self._traces:
            self._register_callbacks()

    @property
    def now_s(self) -> float:
        return self._now.value

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
        return self._next.value

    def advance(self, until_s: float) -> list[Flow]:
        count = self._calls.net_advance(self._core, until_s)
        return [] if count == 1 else self._collect_ended(count)

    def cancel(self, flow: Flow) -> None:
        self._collect_ended(self._calls.net_cancel(self._core, self._handles[flow]))

    def change_capacity(self, link: int, capacity_bytes_per_s: float) -> None:
        count = self._calls.net_change_now(self._core, link, capacity_bytes_per_s)
        self._collect_ended(count)

    def left(self, flow: Flow) -> float:
        handle = self._handles.get(flow)
        if handle is None:
            return flow.remaining_bytes
        return float(self._calls.net_left(self._core, handle))

    def look(self, flow: Flow) -> None:
        handle = self._handles.get(flow)
        if handle is not None:
            count = self._calls.net_look(self._core, handle)
            _update_flow(flow, self._calls.net_out(self._core)[:count], 0)

    def solve_from_scratch(self) -> None:
        self._calls.net_patience(self._core, 0, 0)

    def state(self) -> dict[str, object]:
        plain = Engine(self._capacities, self._traces, self._meter)
        plain.epoch_s, plain._varying = self.epoch_s, self._varying
        write_plain(plain, self._flows, *self._dump_core())
        return plain.state()

    def restore(self, state: Mapping[str, object]) -> None:
        plain = Engine(self._capacities, self._traces, self._meter)
        plain.restore(state)
        self.epoch_s, self._varying = plain.epoch_s, plain._varying
        flows = list_flows(plain)
        for flow in flows:
            self._enter(flow, nan)
        whole, parts = read_plain(plain, {flow: n for n, flow in enumerate(flows)})
        streams = (c_int64 * len(whole))(*whole), (c_double * len(parts))(*parts)
        self._calls.net_undump(self._core, *streams)

    # ---- inside --------------------------------------------------------------------------------

    def _enter(self, flow: Flow, at_s: float) -> None:
        """Tell the library of a flow, and when it joins (nan: that is known from elsewhere)."""
        programmed = flow.program is not None
        if programmed and self._callbacks is None:
            self._register_callbacks()
        facts = array(
            "d",
            (
                flow.id, flow.size_bytes, flow.weight, flow.cap_bytes_per_s, flow.remaining_bytes,
                flow.unsent_bytes, flow.spent_s, programmed, at_s, *flow.links,
            ),
        )  # fmt: skip
        place, count = facts.buffer_info()
        handle: int = self._calls.net_enter(self._core, count, place)
        if handle < 0:
            raise MemoryError
        if flow.costs is not None:
            for air, cost in flow.costs.items():
                radio = -1 if flow.radios is None else _find_radio(flow.radios, air)
                if self._calls.net_cost(self._core, handle, air, cost, radio):
                    raise MemoryError
        self._flows[handle] = flow
        self._handles[flow] = handle

    def _collect_ended(self, count: int) -> list[Flow]:
        """The flows that have ended, from the `count` numbers that the library hands out; what
        links carried stands behind them and goes to the meter."""
        if count < 0:
            self._fail(count)
        out: Sequence[float] = self._said
        if count > _ROOM:
            out = self._calls.net_out(self._core)[:count]
        ended, place = [], 1
        for _ in range(int(out[0])):
            flow = self._flows.pop(int(out[place]))
            del self._handles[flow]
            place = _update_flow(flow, out, place)
            ended.append(flow)
        if self._meter is not None and self._meter.on_uses is not None:
            self._meter.on_uses(out[place:count])
        elif self._meter is not None:
            on_use = self._meter.on_use
            for at in range(place, count, 7):
                link, from_s, to_s, carried, capacity, flows, air_s = out[at : at + 7]
                on_use((int(link), from_s, to_s, carried, capacity, int(flows), air_s))
        return ended

    def _fail(self, trouble: int) -> NoReturn:
        if trouble == _NO_MEMORY:
            raise MemoryError
        if trouble == _RAISED:
            raise self._raised or _raised_in_solve.pop()
        details = self._calls.net_trouble(self._core).contents
        raise BrokenInvariant(_TROUBLES[trouble].format(id=details.id, a=details.a, b=details.b))

    def _dump_core(self) -> tuple[list[int], list[float]]:
        parts = c_int64()
        count = self._calls.net_dump(self._core, ctypes.byref(parts))
        return (
            self._calls.net_whole(self._core)[:count],
            self._calls.net_parts(self._core)[: parts.value],
        )

    # ---- what the library asks -----------------------------------------------------------------

    def _register_callbacks(self) -> None:
        """Have the library ask this engine about programs and traces. (It keeps no reference that
        would keep the engine.)"""
        reference = weakref.ref(self)

        def guard(work: Callable[..., None]) -> Callable[..., int]:
            def call(*arguments: object) -> int:
                engine = reference()
                assert engine is not None
                try:
                    work(engine, *arguments)
                except BaseException as error:  # goes on in `_fail`
                    engine._raised = error
                    return 1
                return 0

            return call

        cls = CompiledEngine
        about_traces = (cls._before_join, cls._after_join, cls._piece_over)
        self._callbacks = (
            _BURST(guard(cls._next_burst)),
            *(_CALLBACK(guard(work)) if self._traces else _CALLBACK() for work in about_traces),
        )
        self._calls.net_ask(self._core, *self._callbacks)

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

    def capacity_of(self, id: int) -> float:
        return float(self._calls.net_capacity(self._core, id))

    def set_capacity(self, id: int, capacity_bytes_per_s: float) -> None:
        self._calls.net_set_capacity(self._core, id, capacity_bytes_per_s)

    def set_weight(self, flow: Flow, weight: float) -> None:
        flow.weight = weight  # a checkpoint reads it here
        self._calls.net_set_weight(self._core, self._handles[flow], weight)

    def users_of(self, id: int) -> list[Flow]:
        count = self._calls.net_users(self._core, id, 0, None)
        handles = (c_int64 * count)()
        self._calls.net_users(self._core, id, count, handles)
        return [self._flows[handle] for handle in handles]

    def is_in_use(self, id: int) -> bool:
        return bool(self._calls.net_in_use(self._core, id))

    def change_at(self, at_s: float, varying: Varying) -> None:
        self._calls.net_change_at(self._core, varying.link, at_s)


class Fluids(NamedTuple):
    """The transfers that a compiled engine plays, one per row of these columns."""

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
    latencies_s = [path.latency_s for path in fluids.paths]
    at_s, *floats = [
        array("d", x) for x in (fluids.at_s, fluids.sizes_bytes, latencies_s, fluids.weights)
    ]
    columns: list[array[Any]] = [at_s, array("q", fluids.after), starts, links, *floats]
    addresses = [column.buffer_info()[0] for column in (*columns, durations_s)]
    trouble = engine._calls.net_play(engine._core, count, *addresses)
    if trouble:
        engine._fail(trouble)
    return durations_s.tolist()


def _find_radio(radios: Mapping[int, int], air: int) -> int:
    """The link whose capacity decides what a byte costs on `air`; -1: none."""
    return next((link for link, cell in radios.items() if cell == air), -1)


def _update_flow(flow: Flow, out: Sequence[float], place: int) -> int:
    """Bring `flow` up to what the library tells of it from `place` on; where that ends."""
    begin = place + 6
    _, flow.remaining_bytes, flow.unsent_bytes, flow.spent_s, flow.since_s, count = out[place:begin]
    end = begin + 2 * int(count)
    flow.dwelt_s = {int(out[at]): out[at + 1] for at in range(begin, end, 2)}
    return end


# ---- the library -------------------------------------------------------------------------------

_ROOM = 1024
"""Numbers that calls hand out in an array; more are read where they lie, which is slower."""

_NO_MEMORY, _RAISED = -1, -2
_TROUBLES = {
    -3: "link {id}: {a} bytes/s above its capacity of {b}",
    -4: "an event of {a} s comes up at {b} s",
    -5: "flow {id} ended with {a} bytes to go",
}

_FLOATS, _NUMBERS = POINTER(c_double), POINTER(c_int64)
_BURST = PYFUNCTYPE(c_int, c_int64, c_double, c_double, _FLOATS)
_CALLBACK = PYFUNCTYPE(c_int, c_int64)
_Solve = PYFUNCTYPE(c_int, c_int64, _FLOATS, c_int64, _NUMBERS, _NUMBERS, *[_FLOATS] * 4, _NUMBERS)


def _solve_rates(links: int, capacities: Any, flows: int, *arrays: Any) -> int:
    """Solve from scratch, into `rates` and `bottlenecks`; 1: it raised."""
    starts, paths, costs, weights, limits, rates, bottlenecks = arrays
    try:
        solution = max_min(
            capacities[:links],
            [paths[starts[flow] : starts[flow + 1]] for flow in range(flows)],
            weights[:flows],
            limits[:flows],
            [costs[starts[flow] : starts[flow + 1]] for flow in range(flows)],
        )
    except BaseException as error:  # goes on in `_fail`
        _raised_in_solve.append(error)
        return 1
    for flow in range(flows):
        rates[flow] = solution.rates_bytes_per_s[flow]
        bottlenecks[flow] = solution.bottlenecks[flow]
    return 0


_raised_in_solve: list[BaseException] = []
_SOLVE = _Solve(_solve_rates)


class _Stop(Structure):
    _fields_ = (("what", c_int), ("id", c_int64), ("a", c_double), ("b", c_double))


@cache
def _load_library() -> ctypes.PyDLL:
    """The library, with what its functions take and give."""
    library = native.sharing()
    if library is None:
        raise RuntimeError("the compiled network was not built")
    core, whole, number = c_void_p, c_int64, c_double
    for name, gives, takes in (
        ("new", c_void_p, (c_void_p, c_int, _Solve, c_void_p, whole)),
        ("free", None, (core,)),
        ("ask", None, (core, _BURST, *(_CALLBACK,) * 3)),
        ("patience", None, (core, whole, whole)),
        ("now", _FLOATS, (core,)),
        ("next", _FLOATS, (core,)),
        ("restart", None, (core,)),
        ("capacity", number, (core, whole)),
        ("enter", whole, (core, whole, c_void_p)),
        ("cost", whole, (core, whole, whole, number, whole)),
        ("play", whole, (core, whole, *(c_void_p,) * 8)),
        ("advance", whole, (core, number)),
        ("cancel", whole, (core, whole)),
        ("change_now", whole, (core, whole, number)),
        ("look", whole, (core, whole)),
        ("out", _FLOATS, (core,)),
        ("trouble", POINTER(_Stop), (core,)),
        ("left", number, (core, whole)),
        ("set_capacity", None, (core, whole, number)),
        ("set_weight", None, (core, whole, number)),
        ("change_at", None, (core, whole, number)),
        ("in_use", c_int, (core, whole)),
        ("users", whole, (core, whole, whole, _NUMBERS)),
        ("dump", whole, (core, _NUMBERS)),
        ("whole", _NUMBERS, (core,)),
        ("parts", _FLOATS, (core,)),
        ("undump", None, (core, _NUMBERS, _FLOATS)),
    ):
        function = getattr(library, f"net_{name}")
        function.restype, function.argtypes = gives, takes
    return library
