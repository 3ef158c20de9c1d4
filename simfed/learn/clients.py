"""Clients' work, cut from the server: orders in, results out, a state each.

`Bench.work` and `Bench.settle` are pure functions: what they give depends on their
arguments and on the scenario, on nothing else. So they can be called in any process,
and again. Where clients keep their states is one question (`Clients`), which process
works is another (`Pool`).

`Here` is the answer of a simulation: states in this process, work in any. A
deployment's is `simfed.learn.apart.Elsewhere`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from simfed.compress.choice import Choice
from simfed.compress.vectors import move_positions
from simfed.fleet.contract import Task
from simfed.ground.errors import RunFailed
from simfed.ground.method import Field, Method, State, Values, Who
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.attacks import Attack, poison_data
from simfed.learn.catalogue import model_facts
from simfed.learn.federation import Federation, load_federation
from simfed.learn.kit import Kit
from simfed.learn.orders import Order, Result
from simfed.learn.state import ClientState, Fate, Name, decode_state
from simfed.learn.store import Store
from simfed.learn.training import split_evenly
from simfed.learn.tree import Arrays, encode_tree
from simfed.learn.uploads import Encoder, make_divergence_error
from simfed.learn.vectors import ArrivedValues
from simfed.record.checkpoint import FiledArrays
from simfed.scenario import Scenario
from simfed.tasks.tasks import Tasks

Unit = tuple[str, tuple[Any, ...]]
"""`work`, or the name of a method of the kit's; its arguments."""

Units = tuple[list[Unit], list[float]]
"""Units of work, and the FLOPs of each."""

_COMPRESSION_FLOPS = 100
"""FLOPs that take as long as compression does for each parameter."""

_NEW = ClientState()


class Pool(Protocol):
    """Processes that do units of work.

    `simfed.learn.pools.ForkedPool` forks them; a Dask cluster is another one.
    """

    workers: int
    wall_s: dict[str, float]
    """Activity → host seconds so far."""

    def run(self, units: Sequence[Unit], costs: Sequence[float]) -> list[Any]:
        """Return what units come to, in their order.

        Args:
            units: each is pure, so any process may do it.
            costs: FLOPs of each, to balance processes by.
        """
        ...

    def parts(self, flops: float, groups: int) -> int:
        """Return the least number of parts in which clients are dealt.

        Args:
            flops: of all clients of a group, who could all step together.
            groups: how many such groups there are.
        """
        ...

    def close(self) -> None:
        """End processes that were begun; safe to call twice."""
        ...


class Clients(Protocol):
    """The clients of a run, wherever they are."""

    elsewhere: bool
    """True if they are other programs: nobody calls `work`, their results are handed
    over."""

    def work(self, orders: Sequence[Order]) -> list[Result]:
        """Carry out orders of different clients, whose states go on.

        Returns:
            A result for each, in the order given.
        """
        ...

    def settle(self, client: int, name: Name, fate: Fate) -> None:
        """Take note of what became of an upload.

        Args:
            client: its id.
            name: (round, turn) of the upload.
            fate: merged, lost or undone.
        """
        ...

    def measure(
        self, asked: Sequence[tuple[Order, Values]], beside: Units
    ) -> tuple[list[float | None], list[Any]]:
        """Return f_n of the clients of some orders, and the results of `beside`.

        Args:
            asked: an order and the model at which its client measures; empty: its own
                model.
            beside: units of work done in the same go.

        Returns:
            A loss for each, None where nobody knows; and what the units came to.
        """
        ...

    def test(self, sent: Mapping[str, Values]) -> dict[int, Tensor]:
        """Return the test results of clients' own models, of those that have one.

        Args:
            sent: prototype → what it would be sent now, where models are joined with
                that.

        Returns:
            Client → rows of `simfed.learn.mixes.join_tests`.
        """
        ...

    def values(self, order: Order) -> Mapping[str, Any] | None:
        """Return what was sent of an order under way; None: it is kept elsewhere."""
        ...

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """Return what a checkpoint keeps of them; vectors go to `arrays`."""
        ...

    def restore(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take up what `plain` gave."""
        ...


class Bench:
    """The tools of a process for clients' work, made of a scenario alone.

    It holds data, models and the method, and no state of any client: that comes in with
    the work. Attributes: `spent_s`, activity → (host seconds, those on processors) so
    far, of what is told apart from training.
    """

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        place: torch.device,
        data: Federation | None = None,
    ) -> None:
        """Load data and build models.

        Args:
            scenario: the validated scenario.
            streams: keyed randomness of the run's seed.
            place: the device of all tensors.
            data: in place of the scenario's data set.
        """
        self.data = (
            data if data is not None else load_federation(scenario, streams, place)
        )
        poison_data(self.data, scenario, streams)
        shape, classes, owned = (
            self.data.input_shape,
            self.data.classes,
            self.data.owned,
        )
        self.facts = {
            name: model_facts(p, shape, classes)
            for name, p in scenario.prototypes.items()
        }
        self.tasks = Tasks(
            scenario, self.facts, lambda client: len(owned[client]),
            test_samples=len(self.data.test_labels),
        )  # fmt: skip
        self.method: Method = scenario.method.made
        self.kit = Kit(scenario, streams, self.data, self.tasks.setting)
        self.encoder = Encoder(streams, self.tasks)
        self._residuals = scenario.safeguard.residuals
        self._steps_locally = type(self.method).train is Method.train
        self.spent_s: dict[str, list[float]] = {}

    def together(self, prototype: str) -> int:
        """Return how many clients of a prototype are trained in one pass, at most.

        1 for a method with a `train` of its own.
        """
        return self.kit.together(prototype) if self._steps_locally else 1

    def model_of(self, who: Who, own: State | None, sent: Values) -> Values:
        """Return a client's own model, joined with what it would be sent, perhaps.

        Args:
            who: the client.
            own: its state; None: as it was before its first participation.
            sent: of its prototype; empty where the method joins nothing.
        """
        return self.method.model(sent, self._get_own_state(who, own), who)

    def flops(self, orders: Sequence[Order]) -> float:
        """Return roughly the work of orders of one prototype, to balance processes."""
        facts, setting = self.facts[orders[0].task.prototype], self.tasks.setting
        steps = sum(setting.steps(order.task.who) for order in orders)
        flops = facts.train_flops * setting.batch_size * steps
        flops += _COMPRESSION_FLOPS * facts.parameters * len(orders)
        asked = [order.task.who for order in orders if order.measured is not None]
        return float(flops) + sum(map(self.kit.estimate_loss_flops, asked))

    # ---- work ------------------------------------------------------------------------

    def work(
        self, orders: Sequence[Order], states: Sequence[ClientState]
    ) -> list[tuple[Result, ClientState]]:
        """Return the results of orders for clients of one prototype, and their states.

        Args:
            orders: of different clients. Attackers who collude are all in one call.
            states: of their clients, before.

        Returns:
            For each what the server gets, and the state after it, in which the upload
            is under way.

        Raises:
            RunFailed: where the method sends other fields than its plan says, or values
                that are not finite.
        """
        method, kit = self.method, self.kit
        losses = self._measure_first(orders, states)
        begins = [self._prepare(*pair) for pair in zip(orders, states, strict=True)]
        trained: list[tuple[Any, State, Tensor | None]]
        if self._steps_locally:
            steps = [(who, round, method.local_steps(kit, who, round, down, own))
                     for who, round, down, own in begins]  # fmt: skip
            trained = [
                (*method.trained(kit, *begin, after), loss)
                for begin, (after, loss) in zip(
                    begins, kit.trained_each(steps), strict=True
                )
            ]
        else:
            trained = [(*method.train(kit, *begin), None) for begin in begins]
        sent = self._falsify(orders, [values for values, *_ in trained])
        for order, values in zip(orders, sent, strict=True):
            check_fields(kit.method, order.task, "up", values, order.task.plan.up)
        with self._account_for("compression"):
            encoded = [
                self.encoder.encode(order.task, order.choice, values, state)
                for order, values, state in zip(orders, sent, states, strict=True)
            ]
        done = []
        for (changes, sizes, state), (_, own, loss), before in zip(
            encoded, trained, losses, strict=True
        ):
            arrived = ArrivedValues(changes)
            own = method.sent(own, arrived)
            result = Result(arrived, sizes, loss, before)
            done.append((result, state._replace(own=own)))
        return done

    def _measure_first(
        self, orders: Sequence[Order], states: Sequence[ClientState]
    ) -> list[Tensor | None]:
        """Return f_n before each order; None where it is not asked for."""
        with self._account_for("local_losses"):
            return [
                None
                if order.measured is None
                else self.kit.own_loss(
                    *self.question(order.task, order.measured, state.own)
                )
                for order, state in zip(orders, states, strict=True)
            ]

    def question(
        self, task: Task, model: Values, own: State | None
    ) -> tuple[str, Values, int, int | str]:
        """Return the arguments of `Kit.own_loss` for a client.

        Args:
            task: of its participation.
            model: as `HostedWorkload.find_measured_model` returns it.
            own: the client's state, with which a personal method joins it.
        """
        if self.method.personal:
            model = self.model_of(task.who, own, model)
        return task.prototype, model, task.client, task.key

    def _prepare(
        self, order: Order, state: ClientState
    ) -> tuple[Who, int, Values, State]:
        """Return an order's client, round, fields, start and own state.

        The start is where the codec wants gradients to be taken.
        """
        task, down = order.task, order.down
        if self.method.moves_point:
            codec = self.encoder.player(order.choice).codec
            for name, field in task.plan.compressed.items():
                point = codec.point(state.memory(name, order.choice.strategy))
                if point is not None and field.kind == "update":
                    shift = (
                        np.float32(self.method.update_scale(self.kit, task.round))
                        * point
                    )
                    weights = down["weights"] + move_positions(shift, self.kit.device)
                    down = {**down, "weights": weights}
        return task.who, task.round, down, self._get_own_state(task.who, state.own)

    def _get_own_state(self, who: Who, own: State | None) -> State:
        """Return a client's state; the first one where it has none."""
        return self.method.begin_client(self.kit, who) if own is None else own

    def _falsify(
        self, orders: Sequence[Order], trained: Sequence[Values]
    ) -> list[Values]:
        """Return what clients send: what they trained, attackers something else.

        Colluders agree among those of the call, in the order of tasks; they are told
        how many clients of their prototype the round has.
        """
        sent = list(trained)
        bands: dict[tuple[int, str, Attack], list[int]] = {}
        for at in sorted(range(len(orders)), key=lambda at: orders[at].task.order):
            task = orders[at].task
            attack = self.kit.find_attack(task.client, task.round)
            if attack is None:
                continue
            rng = self.kit.generator("attack", task.client, task.key)
            sent[at] = {**sent[at], "update": attack.craft(sent[at]["update"], rng)}
            if attack.colludes:
                bands.setdefault((task.round, task.prototype, attack), []).append(at)
        for (_, _, attack), band in bands.items():
            updates = torch.stack([sent[at]["update"] for at in band])
            agreed = attack.agree(updates, orders[band[0]].cohort).expand_as(updates)
            for at, update in zip(band, agreed, strict=True):
                sent[at] = {**sent[at], "update": update.clone()}
        return sent

    @contextmanager
    def _account_for(self, activity: str) -> Iterator[None]:
        """Account for the block's time as an activity of its own."""
        begun_s, busy_s = time.perf_counter(), time.process_time()
        yield
        spent_s = self.spent_s.setdefault(activity, [0.0, 0.0])
        spent_s[0] += time.perf_counter() - begun_s
        spent_s[1] += time.process_time() - busy_s

    # ---- fates -----------------------------------------------------------------------

    def settle(
        self, client: int, state: ClientState, name: Name, fate: Fate
    ) -> ClientState:
        """Return the state of a client who knows what became of its upload.

        What was sent of one that is lost, or undone and to be restored, returns to the
        rests, or a share of it; codecs forget the play, and the client's own state is
        as before it took part. Where it has trained since, codecs and method say what
        becomes of what later uploads left.
        """
        place = [one.name for one in state.open].index(name)
        gone, later = state.open[place], list(state.open[place + 1 :])
        kind = self._residuals.kind
        if fate == "merged" or (fate == "undone" and kind == "as-sent"):
            return state._replace(open=(*state.open[:place], *later))
        damped = fate == "undone" and kind == "damped"
        share = self._residuals.factor if damped else 1.0
        choice, who = Choice.of(gone.choice), self.tasks.who(client, name[1])
        up = self.method.plan(self.tasks.setting, who, name[0]).up
        rests, memories = dict(state.rests), dict(state.memories)
        played = [Choice.of(one.choice).strategy == choice.strategy for one in later]
        for field, memory in gone.memories.items():
            rest = self.encoder.take_back(
                choice, up[field], gone.values[field], rests.get(field), share
            )
            if rest is not None:
                rests[field] = rest
            after = memory
            if any(played):
                sent = ArrivedValues(gone.values)[field]
                undo = partial(self.encoder.undo_earlier, choice, memory, sent)
                after = undo(state.memory(field, choice.strategy))
                for at, one in enumerate(later):
                    if played[at]:
                        of_one = {**one.memories, field: undo(one.memories[field])}
                        later[at] = one._replace(memories=of_one)
            memories[field] = {**memories[field], choice.strategy: after}
        own = gone.own
        if later:
            own, left = state.own, later[0].own
            later[0] = later[0]._replace(own=gone.own)
            if type(self.method).without is not Method.without:
                before = self._get_own_state(who, gone.own)

                def without(state: State | None) -> State:
                    assert state is not None
                    assert left is not None
                    return self.method.without(state, left, before)

                later[1:] = [one._replace(own=without(one.own)) for one in later[1:]]
                own = without(own)
        return ClientState(own, rests, memories, (*state.open[:place], *later))


class Here:
    """Clients whose states lie in this process, and whose work any process can do."""

    elsewhere = False

    def __init__(self, bench: Bench, pool: Pool, store: Store | None = None) -> None:
        """Take the tools, the processes and the memory of the clients.

        store: of states in bounded memory; None: all lie in a mapping.
        """
        self._bench, self._pool, self._store = bench, pool, store
        self.states: MutableMapping[int, ClientState] = {}
        if store is not None:
            store.device = bench.data.device
            self.states = store

    def work(self, orders: Sequence[Order]) -> list[Result]:
        """Do orders, in units over the pool, and keep the states.

        Raises:
            RunFailed: where a training loss is not finite.
        """
        bench = self._bench
        groups = self.groups(orders)
        units: list[Unit] = [
            ("work", (group, [self.state(order.task.client) for order in group]))
            for group in groups
        ]
        answers = self._pool.run(units, [bench.flops(group) for group in groups])
        done = {
            order: pair
            for group, answer in zip(groups, answers, strict=True)
            for order, pair in zip(group, answer, strict=True)
        }
        losses = [r.loss for r, _ in done.values() if r.loss is not None]
        losses += [r.before for r, _ in done.values() if r.before is not None]
        told = iter(torch.stack(losses).tolist() if losses else [])  # waits once
        for order, (result, _) in done.items():
            # here, as a codec would only say that it met a NaN
            if result.loss is not None and not math.isfinite(loss := next(told)):
                task = order.task
                raise make_divergence_error(
                    f"client {task.client}'s training loss is {loss} in round "
                    f"{task.round}"
                )
        for order, (result, state) in done.items():
            if result.before is not None:
                done[order] = result._replace(before=next(told)), state
            self.states[order.task.client] = state
        return [done[order][0] for order in orders]

    def settle(self, client: int, name: Name, fate: Fate) -> None:
        """Settle an upload in its client's state."""
        self.states[client] = self._bench.settle(client, self.state(client), name, fate)

    def measure(
        self, asked: Sequence[tuple[Order, Values]], beside: Units
    ) -> tuple[list[float | None], list[Any]]:
        """Measure losses of clients at models, beside other units."""
        bench = self._bench
        units: list[Unit] = [
            (
                "own_loss",
                bench.question(order.task, model, self.state(order.task.client).own),
            )
            for order, model in asked
        ]
        costs = [bench.kit.estimate_loss_flops(order.task.who) for order, _ in asked]
        answers = self._pool.run([*units, *beside[0]], [*costs, *beside[1]])
        losses = answers[: len(units)]
        return torch.stack(losses).tolist() if losses else [], answers[len(units) :]

    def test(self, sent: Mapping[str, Values]) -> dict[int, Tensor]:
        """Test clients' own models, of those that have taken part."""
        bench = self._bench
        samples = len(bench.data.test_labels)
        clients: list[int] = []
        units: list[Unit] = []
        costs: list[float] = []
        for client in sorted(self.states):
            state = self.states[client].arrived
            if state is not None:
                who = bench.tasks.who(client)
                name = who.prototype
                model = bench.model_of(who, state, sent.get(name, {}))
                clients.append(client)
                units.append(("test_own", (name, model)))
                costs.append(bench.kit.flops[name] * samples)
        return dict(zip(clients, self._pool.run(units, costs), strict=True))

    def state(self, client: int) -> ClientState:
        """Return what a client keeps."""
        return self.states.get(client, _NEW)

    def values(self, order: Order) -> Mapping[str, Any] | None:
        """Return an order's values, after its work."""
        under_way = self.state(order.task.client).open
        return next((one.values for one in under_way if one.name == order.name), None)

    def plain(self, arrays: Arrays) -> dict[str, Plain]:
        """Return what a checkpoint keeps of all states."""
        clients = {}
        for client in sorted(self.states):
            name = f"clients/{client}"
            if self._store is None:
                clients[str(client)] = encode_tree(self.states[client], name, arrays)
            else:
                clients[str(client)] = self._store.encode(client, name, arrays)
        return {"clients": clients}

    def restore(
        self, facts: Mapping[str, Plain], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take up what `plain` returned."""
        self.states.clear()
        files = arrays.files if isinstance(arrays, FiledArrays) else {}
        for client, plain in facts["clients"].items():
            if self._store is not None and (file := files.get(f"clients/{client}")):
                self._store.adopt(int(client), plain, file)
                continue
            state = decode_state(plain, arrays, self._bench.data.device)
            self.states[int(client)] = state

    def groups(self, orders: Sequence[Order]) -> list[list[Order]]:
        """Return who is trained with whom.

        Clients of a prototype are together as far as that is faster, and so are
        attackers who collude.
        """
        bench, setting = self._bench, self._bench.tasks.setting
        alike: dict[str, list[Order]] = {}
        bands: dict[object, list[Order]] = {}
        for order in sorted(orders, key=lambda one: -setting.steps(one.task.who)):
            task = order.task
            attack = bench.kit.find_attack(task.client, task.round)
            if attack is not None and attack.colludes:
                bands.setdefault((task.round, task.prototype, attack), []).append(order)
            else:
                alike.setdefault(task.prototype, []).append(order)
        groups = list(bands.values())
        for name, mine in alike.items():
            parts = self._pool.parts(bench.flops(mine), len(alike))
            groups += split_evenly(mine, bench.together(name), parts)
        return groups


def check_fields(
    kind: str, task: Task, way: str, values: Values, planned: Mapping[str, Field]
) -> None:
    """Refuse values that are not what a plan says.

    Args:
        kind: the method's name, for the error.
        task: whose plan it is.
        way: `down` or `up`.
        values: field → vector.
        planned: the plan's fields that way.

    Raises:
        RunFailed: for other names, no tensors, or other lengths.
    """
    where = f"method {kind}, client {task.client}, round {task.round}"
    if values.keys() != planned.keys():
        raise RunFailed(
            f"{where}: fields {', '.join(planned) or 'none'} travel {way} by its plan, "
            f"got {', '.join(values) or 'none'}"
        )
    for name, of_plan in planned.items():
        value = values[name]
        tensor = isinstance(value, Tensor)
        got = value.numel() if tensor else type(value)
        if not tensor or (
            got > of_plan.entries if of_plan.bounded else got != of_plan.entries
        ):
            most = "at most " if of_plan.bounded else ""
            raise RunFailed(
                f"{where}: field {name!r} has {most}{of_plan.entries} entries by its "
                f"plan, got {got}"
            )
