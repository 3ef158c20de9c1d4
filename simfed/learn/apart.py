"""A run's learning where clients and server are different machines.

Learning is that of a simulation: at the server its clients are `Elsewhere`, whose
orders go out as bytes and whose results come back so; at its end a client is a `Here`
of itself alone (`RealClient`). What a method is, stands in one place, and with equal
numbers on the wire both ends together come to the bits of the simulation.

What a message holds stands here, in pairs: `Elsewhere.outgoing` and `RealClient.work`
of an order, `RealClient.work` and `Elsewhere.deliver` of its result. How messages
travel is the caller's (`simfed.deploy`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.codec import Memory, Payload
from simfed.fleet.contract import Task
from simfed.ground.errors import InputError
from simfed.ground.method import Method, Size, Values, make_key
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn import apart_checks as checks
from simfed.learn.apart_changes import ChangesDown, ChangesHeld, find_part, read_tensor
from simfed.learn.changes import HeldModels, make_changes
from simfed.learn.clients import Bench, Here, Pool, Units, check_fields
from simfed.learn.hosted import HostedWorkload
from simfed.learn.mirrors import Mirrors, decode_mirrors, is_mirrored
from simfed.learn.orders import Order, Result
from simfed.learn.parcel import Parcel, Part, pack, unpack
from simfed.learn.pools import ForkedPool
from simfed.learn.precision import device_of, fix_bits
from simfed.learn.state import Fate, Name
from simfed.learn.tree import Arrays
from simfed.learn.uploads import choose_wire_code, read_payload
from simfed.learn.vectors import ArrivedValues, Change
from simfed.scenario import Scenario

Ask = Callable[[str, Sequence[tuple[int, Parcel]]], "Sequence[Parcel | None]"]
"""(what, clients and of what each is asked) → their answers; None: it is gone. All work
at the same time. `what`: `measure` or `test`."""

Tell = Callable[[int, str, Fate], object]
"""(client, label of a task, what became of its upload), for that client to know."""

_DOWN, _MODEL, _UP = "down/", "model/", "up/"


class TaskAnswer(NamedTuple):
    """The answer of a client's end to a task."""

    parcel: Parcel
    training_s: float
    compression_s: float
    packing_s: float
    """Seconds until what is sent was bytes."""
    training_busy_s: float
    """Processor seconds of training."""
    compression_busy_s: float


def make_server_workload(
    scenario: Scenario, streams: Streams, ask: Ask, tell: Tell, device: str = "cpu"
) -> HostedWorkload:
    """Return a workload whose clients are elsewhere.

    Args:
        scenario: the validated scenario.
        streams: keyed randomness of the run's seed.
        ask: asks clients for losses or tests, and waits for all answers.
        tell: tells a client the fate of its upload; it gets there before what is asked
            later.
        device: of what the server computes.

    Raises:
        InputError: for a method with learning of its own.
    """
    _refuse_own_learning(scenario)
    clients = partial(Elsewhere, ask=ask, tell=tell)
    return HostedWorkload(scenario, streams, device=device, clients=clients)


def _refuse_own_learning(scenario: Scenario) -> None:
    named = scenario.method.made.workload
    if named != Method.workload:
        raise InputError(
            "a method with simfed's own workload, whose clients can be elsewhere",
            where="method", got=named,
        )  # fmt: skip


class Elsewhere:
    """Clients that are other programs, as the server has them. A `Clients`.

    It knows of each what both ends must agree on: the version that it has, what codecs
    have at both ends (`Mirrors`), and whether it has a model of its own. What a client
    alone needs never comes here.
    """

    elsewhere = True

    def __init__(
        self, bench: Bench, pool: Pool, held: HeldModels, *, ask: Ask, tell: Tell
    ) -> None:
        """Begin with clients of whom nothing is known.

        Args:
            bench: the server's tools; its data are used for tests of its own.
            pool: of the server's work.
            held: models as clients hold them, where changes travel down.
            ask: see `make_server_workload`.
            tell: see `make_server_workload`.
        """
        self._bench, self._pool, self._held = bench, pool, held
        self._ask, self._tell = ask, tell
        self._mirrors = Mirrors(bench.tasks.index_code)
        self._known: set[int] = set()
        """Clients of whom an upload was merged, who so have a model of their own."""
        prototypes = bench.tasks.scenario.prototypes
        self._changes = {
            name: ChangesDown(held.of_prototype(name)) for name in prototypes
        }
        held.watchers += self._changes.values()
        self._has: dict[int, int] = {}
        """Client → version of the last task that it was sent."""

    # ---- orders out, results in ------------------------------------------------------

    def outgoing(self, order: Order) -> Parcel:
        """Return what the client of an order is sent.

        Fields of the model as it lacks them (whole, or the changes since its version),
        the model at which it measures a loss first, and what its codec is to do.
        """
        task, measured = order.task, order.measured
        self._has[task.client] = task.model_version
        said, parts = self._changes[task.prototype].parts(
            task.held, task.model_version, order.down, _list_buffers(task)
        )
        parts = _add_prefix(_DOWN, parts)
        if measured:
            unsent = {
                name: value
                for name, value in measured.items()
                if name not in order.down or not torch.equal(order.down[name], value)
            }
            parts |= _name_parts(_MODEL, unsent)
        self._mirrors.ask(task)
        facts = {
            "label": task.label,
            "task": list(task.name),
            "choice": order.choice.label,
            "down": said,
            "measured": measured is not None,
        }
        return pack(facts, parts)

    def most_bytes(self, order: Order) -> int:
        """Return a bound of any upload of this task.

        It is raw values and 64-bit indices of all entries, and room for the codec's own
        numbers.
        """
        entries = sum(field.entries for field in order.task.plan.up.values())
        return 24 * entries + 2**20

    def deliver(self, order: Order, parcel: Parcel) -> None:
        """Take the result of an order, once all of it was checked.

        Args:
            order: of `HostedWorkload.execute`.
            parcel: what `RealClient.work` answered, or a stranger's bytes.

        Raises:
            InputError: for one that no client's end makes; its order has no result
                then.
        """
        task, setting = order.task, self._bench.tasks.setting
        facts, parts = unpack(parcel)
        checks.check_label(facts, task)
        if task.plan.up and not parts:  # see `_answer_nothing`
            raise InputError(
                problem="its client lacks the model whose changes it was sent"
            )
        before = checks.read_loss(facts.get("before"))
        coded = checks.read_coded(
            facts.get("coded"), task.plan.compressed, setting.classes
        )
        values: dict[str, Change] = {}
        sizes: dict[str, tuple[float, int]] = {}
        for name, of_plan in task.plan.up.items():
            part = find_part(parts, _UP + name)
            if name not in coded:
                values[name] = checks.read_values(name, part, of_plan, setting.classes)
                continue
            shape, state = coded[name]
            payload = self._mirrors.read(task, name, of_plan, order.choice, part, state)
            values[name] = read_payload(payload, shape)
            sizes[name] = float(len(part)), payload.k
        arrived = ArrivedValues(values)
        entries = sum(of_plan.entries for of_plan in task.plan.up.values())
        most = checks.find_largest(entries, setting.participants)
        variances = self._bench.kit.variances(_find_prototype(task, setting.prototypes))
        checks.check_magnitude(task, arrived, most, variances)
        assert order.host is not None
        asked = order.measured is not None
        order.host.take(order, Result(arrived, sizes, None, before if asked else None))

    def forget(self, client: int) -> None:
        """Drop the record of the client's model version: nobody knows it any longer."""
        self._has.pop(client, None)

    def hand_over(self, client: int) -> Parcel:
        """Return what codecs have agreed on with this client so far.

        It is for another process that goes on in its place. What the one before it
        still has under way is not built upon. Any thread may call it.
        """
        return self._mirrors.hand_over(client)

    # ---- `Clients` -------------------------------------------------------------------

    def work(self, orders: Sequence[Order]) -> list[Result]:
        """Raise: real clients work where they are."""
        raise NotImplementedError

    def settle(self, client: int, name: Name, fate: Fate) -> None:
        """Tell a client the fate of its upload; it does what follows from it."""
        label = f"{client}/{make_key(*name)}"
        if fate != "lost":
            self._known.add(client)
        as_sent = self._bench.tasks.scenario.safeguard.residuals.kind == "as-sent"
        stands = fate == "merged" or (fate == "undone" and as_sent)
        self._mirrors.settle(label, stands=stands)
        self._tell(client, label, fate)

    def measure(
        self, asked: Sequence[tuple[Order, Values]], beside: Units
    ) -> tuple[list[float | None], list[Any]]:
        """Ask everybody at once for losses."""
        begun_s = time.perf_counter()
        questions = [
            self._make_question(order.task, model, {"key": order.task.key})
            for order, model in asked
        ]
        answers = self._ask("measure", questions) if questions else []
        self._pool.wall_s["local_losses"] += time.perf_counter() - begun_s
        return [read_answer(answer) for answer in answers], self._pool.run(*beside)

    def _make_question(
        self, task: Task, model: Values, facts: Mapping[str, Plain]
    ) -> tuple[int, Parcel]:
        """Return a client, and a question about a model.

        Args:
            task: of the client.
            model: its fields; empty: the question is about the client's own.
            facts: what is said beside.
        """
        if not model:
            return task.client, pack(facts, {})
        said, parts = self._changes[task.prototype].parts(
            self._has.get(task.client), self._held.version, model, _list_buffers(task)
        )
        return task.client, pack({**facts, "down": said}, _add_prefix(_DOWN, parts))

    def test(self, sent: Mapping[str, Values]) -> dict[int, Tensor]:
        """Ask each client to test its own model, over its connection."""
        clients, data = sorted(self._known), self._bench.data
        tasks = [self._bench.tasks.task(1, client, 0) for client in clients]
        questions = [
            self._make_question(task, sent[task.prototype], {}) for task in tasks
        ]
        parcels = self._ask("test", questions)
        rows = {}
        for client, answer in zip(clients, parcels, strict=True):
            if answer is None or not answer.facts.get("tested"):
                continue
            # no test at all, as of one that is gone
            with contextlib.suppress(InputError):
                _, parts = unpack(answer)
                rows[client] = checks.read_rows(find_part(parts, "rows"), data)
        return rows

    def values(self, order: Order) -> None:
        """Return the values that the order has."""

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """Return what a checkpoint keeps."""
        return {"mirrors": self._mirrors.plain(arrays), "known": sorted(self._known)}

    def restore(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take up what `plain` returned."""
        self._mirrors.restore(facts["mirrors"], arrays)
        self._known = set(facts["known"])


class RealClient:
    """One client of a deployment, at its end: its state, its residuals, its data.

    It does what a simulation does in `Here`, for one client, and speaks in parcels.
    While it lives, PyTorch's settings are those of a run (`close` sets them back).
    """

    def __init__(
        self, scenario: Scenario, streams: Streams, client: int, device: str = "cpu"
    ) -> None:
        """Load the client's data and models.

        Args:
            scenario: the run's, as the server has it.
            streams: of the run's seed, so that draws are those of the simulation.
            client: its id.
            device: where it trains.
        """
        _refuse_own_learning(scenario)
        place = device_of(device)
        with contextlib.ExitStack() as settings:
            settings.enter_context(fix_bits(place))
            self._bench = Bench(scenario, streams, place)
            self._settings = settings.pop_all()
        self._payloads: dict[str, Payload] = {}
        self._bench.encoder.payloads = self._payloads
        self._pool = ForkedPool(self._bench, 1)
        self._here = Here(self._bench, self._pool)
        self._who = self._bench.tasks.who(client)
        self._has = ChangesHeld(make_changes(self._bench.tasks, self._who))

    def work(self, parcel: Parcel) -> TaskAnswer:
        """Train and compress.

        Returns:
            The upload and the seconds that it took; an empty one where the client lacks
            the version whose changes it was sent.

        Raises:
            RunFailed: where the learning has diverged.
        """
        facts, parts = unpack(parcel)
        round, client, version, turn = facts["task"]
        task = self._bench.tasks.task(round, client, version, turn)
        down = self._collect_arrived(facts["down"], parts, to_keep=True)
        if down is None:
            return _answer_nothing(task.label)
        check_fields(self._bench.kit.method, task, "down", down, task.plan.down)
        order = Order(task, Choice.of(facts["choice"]), down)
        if facts["measured"]:
            method = self._bench.method
            alone = method.personal and not method.joins_sent
            own = {
                name: read_tensor(part, name)
                for name, part in _pick_parts(_MODEL, parts).items()
            }
            order.measured = {} if alone else {**down, **own}
        self._payloads.clear()
        before_s = self._read_spent_s()
        [result] = self._here.work([order])
        training_s, compression_s, *busy_s = (
            after - begun
            for begun, after in zip(before_s, self._read_spent_s(), strict=True)
        )
        made_s = time.perf_counter()
        parcel = self._pack(task, result)
        return TaskAnswer(
            parcel, training_s, compression_s, time.perf_counter() - made_s, *busy_s
        )

    def _read_spent_s(self) -> list[float]:
        """Return host seconds so far of training and of compression.

        Those on processors come with them.
        """
        spent_s = self._pool.wall_s, self._pool.busy_s
        return [
            seconds[activity]
            for seconds in spent_s
            for activity in ("training", "compression")
        ]

    def _pack(self, task: Task, result: Result) -> Parcel:
        """Return a result as it travels: coded fields as bytes, others as arrays."""
        code, coded = choose_wire_code(self._bench.tasks.index_code), {}
        parts: dict[str, Part] = {}
        for name in result.values:
            if name not in self._payloads:
                parts |= _name_parts(_UP, {name: result.values[name]})
                continue
            payload = self._payloads[name]
            parts[_UP + name] = payload.encoded(code)
            coded[name] = {
                "shape": list(result.values[name].shape),
                "state": payload.codec.tell(payload.state_before),
            }
        self._payloads.clear()
        return pack(
            {"label": task.label, "coded": coded, "before": result.before}, parts
        )

    def settle(self, label: str, fate: Fate) -> None:
        """Take note of what became of an upload.

        One that this client knows nothing of is none of its own.
        """
        client = self._who.client
        for one in self._here.state(client).open:
            if self._label(one.name) == label:
                self._here.settle(client, one.name, fate)

    def answer(self, what: str, parcel: Parcel) -> Parcel:
        """Return what the server cannot know: a measured loss, or a test.

        Args:
            what: `measure`, or a test of the client's own model.
            parcel: what `Elsewhere` asks, with a model or without.
        """
        facts, parts = unpack(parcel)
        who, bench = self._who, self._bench
        model: Values | None = {}
        if "down" in facts:
            model = self._collect_arrived(facts["down"], parts, to_keep=False)
        if what == "measure":
            if model is None:
                return pack({"loss": None}, {})
            if bench.method.personal:
                model = bench.model_of(who, self._here.state(who.client).own, model)
            loss = bench.kit.own_loss(who.prototype, model, who.client, facts["key"])
            return pack({"loss": loss.item()}, {})
        tested = {} if model is None else self._here.test({who.prototype: model})
        rows = tested.get(who.client)
        if rows is None:
            return pack({"tested": False}, {})
        return pack({"tested": True}, {"rows": rows.numpy()})

    def keep(self) -> Parcel:
        """Return all that this client needs to go on from here, on any machine.

        `under_way` names the uploads of which it does not know the fate.
        """
        arrays: Arrays = {}
        facts = self._here.plain(arrays)
        under_way = [
            self._label(one.name) for one in self._here.state(self._who.client).open
        ]
        return pack({"kept": facts, "under_way": under_way}, arrays)

    def take_up(self, parcel: Parcel) -> None:
        """Go on from what `keep` gave, perhaps in another process."""
        facts, parts = unpack(parcel)
        self._here.restore(facts["kept"], _pick_arrays(parts))

    def begin_anew(self) -> None:
        """Forget all that was learned: the server knows nothing of it."""
        self._here.states.clear()

    def agree(self, parcel: Parcel) -> None:
        """Take the server's side of what codecs hold at both ends.

        See `Elsewhere.hand_over`.
        """
        facts, parts = unpack(parcel)
        state = self._here.state(self._who.client)
        memories = {
            field: {
                arm: one for arm, one in of.items() if not is_mirrored(Choice.of(arm))
            }
            for field, of in state.memories.items()
        }
        for (_, field, arm), mirror in decode_mirrors(
            facts["mirrors"], _pick_arrays(parts)
        ).items():
            memory = state.memory(field, arm)  # the selection's state is the client's
            told = memory.facts if memory else None
            memories.setdefault(field, {})[arm] = Memory(told, mirror.arrays)
        if memories:
            self._here.states[self._who.client] = state._replace(memories=memories)

    def close(self) -> None:
        """Set back what was set for the learning."""
        self._settings.close()

    def _label(self, name: Name) -> str:
        return f"{self._who.client}/{make_key(*name)}"

    def _collect_arrived(
        self, said: Mapping[str, Any], parts: Mapping[str, Part], *, to_keep: bool
    ) -> dict[str, Tensor] | None:
        """Return the fields of the model that came; see `ChangesHeld.arrived`."""
        return self._has.arrived(said, _pick_parts(_DOWN, parts), to_keep=to_keep)


def _answer_nothing(label: str) -> TaskAnswer:
    """Return the answer of a client who was sent changes of a model it has not.

    It took the place of another one that very moment: its participation fails, and it
    is sent a whole model next.
    """
    return TaskAnswer(pack({"label": label}, {}), 0.0, 0.0, 0.0, 0.0, 0.0)


def read_answer(answer: Parcel | None) -> float | None:
    """Return what a client measured.

    None of one that is gone, does not know, or says no number.
    """
    with contextlib.suppress(InputError):
        loss = None if answer is None else checks.read_loss(answer.facts.get("loss"))
        return loss if loss is not None and math.isfinite(loss) else None
    return None


def _find_prototype(task: Task, prototypes: Mapping[str, Size]) -> str:
    """Return the prototype of an upload: its client's, or one with its layers."""
    layouts = [tuple(field.layout) for field in task.plan.up.values() if field.layout]
    sizes = {task.prototype: task.who.size, **prototypes}
    found = (name for name, size in sizes.items() if tuple(size.shapes) in layouts)
    return next(found, task.prototype)


def _list_buffers(task: Task) -> list[str]:
    """Return the fields that change with the weights alone."""
    return [
        name for name, of_plan in task.plan.down.items() if of_plan.kind == "buffers"
    ]


def _name_parts(prefix: str, values: Values) -> dict[str, Part]:
    """Return tensors as parts of a parcel, their names behind a prefix."""
    return _add_prefix(
        prefix, {name: value.detach().cpu().numpy() for name, value in values.items()}
    )


def _add_prefix(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    return {prefix + name: part for name, part in parts.items()}


def _pick_parts(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    return {n[len(prefix) :]: part for n, part in parts.items() if n.startswith(prefix)}


def _pick_arrays(parts: Mapping[str, Part]) -> dict[str, np.ndarray]:
    return {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
