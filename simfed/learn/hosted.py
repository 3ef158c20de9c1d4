"""The learning side of every method: `Workload`, from a method's steps.

The host does what is the same for all: it trains lazily and in many processes,
compresses fields that say so and keeps what was left out, counts bytes, undoes lost
uploads and rounds that are rejected, keeps the states of those clients alone that have
taken part, measures gains, evaluates, and saves. The method says the rest
(`simfed.ground.method`).

A round from here: `execute` makes an `Order` for each participation; `merge` has all of
them worked off (`simfed.learn.clients`), hands the arrivals to the method, asks the
safeguard, measures losses and tests models in one go, and tells clients what became of
their uploads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from torch import Tensor

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.fleet.contract import Contribution, Outcome, Task
from simfed.ground.errors import RunFailed
from simfed.ground.method import Arrival, Losses, Method, State, Values, Who, Work
from simfed.ground.plain import Plain
from simfed.ground.seeding import Streams
from simfed.learn.changes import HeldModels
from simfed.learn.clients import Bench, Clients, Here, Pool, Units, check_fields
from simfed.learn.evaluating import Evaluating, Evaluations
from simfed.learn.federation import Federation
from simfed.learn.methods import by_prototype
from simfed.learn.orders import EdgeUpload, Order, Result
from simfed.learn.own_losses import OwnLosses
from simfed.learn.pools import ForkedPool
from simfed.learn.precision import device_of, fix_bits
from simfed.learn.privacy import NoisyMeans
from simfed.learn.rules import apply_rule
from simfed.learn.safeguard import Safeguard
from simfed.learn.state import Fate
from simfed.learn.store import Store
from simfed.learn.tree import Arrays, Tree, decode_tree, encode_tree
from simfed.learn.vectors import ArrivedValues, as_received
from simfed.scenario import Scenario
from simfed.tasks.privacy import make_account

_NOTHING: Units = ([], [])


class HostedWorkload:
    """Learning by a method's own steps, with real models.

    `workers` processes share the work; results do not depend on their number. With
    `device` `cuda` everything is done on the GPU by this process alone. `learns` says
    whether a policy learns from rewards, in which case local losses are computed.
    `data`: in place of the scenario's data set.

    Work is lazy: `execute` notes what is to be done; it is done, for all clients at
    once, when a merge, a loss of an upload, a saved state or a size that depends on the
    data needs it. A merge changes weights, so everything pending is computed before it.

    What is modelled: what a client's state is after an upload that was lost is what it
    was before the participation, and what the upload would have changed returns to the
    residuals of its fields. A client that has begun again before it was known (its edge
    server's upload was lost, its round was undone) has gone on from what is lost: that
    is taken out of sums that it keeps (`Method.without`, `Codec.undo_earlier`), and
    nothing else of what it did since is changed. A round that the safeguard rejects
    leaves the server as it was; what becomes of its clients' residuals, the scenario
    says.
    """

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        *,
        workers: int = 1,
        device: str = "cpu",
        learns: bool = True,
        data: Federation | None = None,
        store: Store | None = None,
        clients: Callable[[Bench, Pool, HeldModels], Clients] | None = None,
        pool: Callable[[Bench], Pool] | None = None,
    ) -> None:
        """Build data, models and the first state of the server.

        Args:
            scenario: the validated scenario.
            streams: keyed randomness of the run's seed.
            workers: processes that share the work, this one included.
            device: `cpu` or `cuda`.
            learns: whether a policy learns from rewards; without, no f_n is measured.
            data: in place of the scenario's data set; on the same device.
            store: of clients' states in bounded memory; it is closed in the end.
            clients: makes those that are elsewhere, in place of clients in this
                process.
            pool: makes that of other processes, in place of `workers` forked ones.

        Raises:
            InputError: for data, models or a device that are not here.
            ValueError: for `data` on another device.
        """
        place = device_of(device)
        if data is not None and data.device.type != place.type:
            raise ValueError(
                f"data on {place.type}, where it is to be learned; got it on "
                f"{data.device}"
            )
        self.scenario = scenario
        self.method: Method = scenario.method.made
        self.version = 0
        self._settings = ExitStack()
        with ExitStack() as settings:  # of a refused run nothing stays set
            settings.enter_context(fix_bits(place))
            if store is not None:
                settings.callback(store.close)
            bench = Bench(scenario, streams, place, data)
            self.data, self.tasks, self.kit = bench.data, bench.tasks, bench.kit
            self._encoder = bench.encoder
            self._noisy = self._make_noisy()
            self._pool = ForkedPool(bench, workers) if pool is None else pool(bench)
            settings.callback(self._pool.close)
            self.safeguard = Safeguard(scenario, self.method.shared_loss)
            self._evaluating = Evaluating(bench)
            self._losses = OwnLosses(scenario, self.method, learns=learns)
            self._open: dict[tuple[int, int, int], Order] = {}
            """Orders whose uploads are under way, in the order in which they were
            started."""
            self._pending: dict[int, Order] = {}
            """Client → the one whose work is not done."""
            self._lost_pending = 0
            """How many of them are lost and wait for their work."""
            self._measured_at: dict[str, tuple[State, Tensor | None, Values]] = {}
            """Prototype → the last model that losses were measured at, and what it is
            made of."""
            self._lent: dict[tuple[int, int | str], EdgeUpload] = {}
            self._gathers = 0
            """Merges of edge servers so far."""
            self._server: State = self.method.begin(self.kit)
            self.held_models = HeldModels(streams, self.tasks, self._server)
            make_clients = clients or (
                lambda bench, pool, held: Here(bench, pool, store)
            )
            self.clients: Clients = make_clients(bench, self._pool, self.held_models)
            self._settings = settings.pop_all()

    def _make_noisy(self) -> NoisyMeans | None:
        """Return the noisy means between arrivals and the method; None without privacy.

        They stand there under client-level privacy.
        """
        scenario, privacy = self.scenario, self.scenario.privacy
        if privacy is None or privacy.level != "client":
            return None
        account = make_account(scenario, lambda client: len(self.data.owned[client]))
        assert account is not None
        entries = self._encoder.shared_entries
        return NoisyMeans(
            scenario, privacy, self.method, self.tasks, account.noise, entries
        )

    # ---- the contract ----------------------------------------------------------------

    def task(
        self, round: int, client: int, turn: int = 0, held: int | None = None
    ) -> Task:
        """Return the work of `client` in `round`, from today's version of the model."""
        return self.tasks.task(round, client, self.version, turn, held)

    def place(self, edges: Sequence[Sequence[int]]) -> None:
        """Note which clients stand below which edge server."""
        self.tasks.place(edges)

    def lend(self, task: Task) -> EdgeUpload:
        """Return the upload that an edge server will send.

        It begins at the server's state now, from which the edge server sends its own
        clients models.
        """
        size_bytes = self.tasks.uplink_bytes(task, NO_COMPRESSION)
        assert size_bytes is not None
        edge = EdgeUpload(task, size_bytes, self._server, self.version)
        self._lent[task.client, task.key] = edge
        return edge

    def gather(
        self, edge: EdgeUpload, contributions: Sequence[Order], weights: Sequence[float]
    ) -> None:
        """Make one merge of an edge server's own.

        Args:
            edge: what `lend` returned; its server state moves by the method's `shift`.
            contributions: uploads of its clients.
            weights: of each, by the server mode.
        """
        self.work_off()
        weighed = sorted(
            zip(contributions, weights, strict=True), key=lambda one: one[0].task.order
        )
        arrived = by_prototype(
            [
                Arrival(self._get_order(upload).task.who, 0, upload.sent, weight)
                for upload, weight in weighed
            ]
        )
        edge.merged.append([upload for upload, _ in weighed])
        edge.shares.append(
            {name: self.method.shares(mine) for name, mine in arrived.items()}
        )
        for name, mine in arrived.items():
            merged = Arrival(mine[0].who, 0, edge.change(name))
            edge.server = self.method.shift(self.kit, edge.server, merged)
        self._gathers += 1
        edge.version = -self._gathers

    def execute(
        self, task: Task, choice: Choice, edge: EdgeUpload | None = None
    ) -> Order:
        """Note the client's work, with what it is sent now.

        Args:
            task: of the participation.
            choice: codec and K of its upload; a K that is a level becomes entries here.
            edge: the edge server that sends the model; None: the server does.

        Returns:
            The order, which is the contract's contribution. Its result is there when
            somebody needed it.

        Raises:
            RunFailed: where the method sends other fields than its plan says.
        """
        client = task.client
        if client in self._pending:
            # its state goes on from what an earlier upload under way left it
            self.work_off()
        server = self._server if edge is None else edge.server
        down = self.method.send(server, task.who, task.round)
        # what is sent must be what the plan says: the clock has charged for that
        check_fields(self.scenario.method.kind, task, "down", down, task.plan.down)
        if self.tasks.downlink_varies(task):
            sent = {name: value.numel() for name, value in down.items()}
            task = self.tasks.as_sent(
                task, sent, self.held_models.sizes(task.prototype)
            )
        down = self.held_models.arrived(task, down)
        if choice.level is not None:
            choice = choice.at(choice.entries(task.plan.longest))
        order = Order(task, choice, down, host=self, edge=edge)
        self._open[task.order] = order
        if not self.clients.elsewhere:
            self._pending[client] = order
        elif self._losses.asks(order):
            order.measured = self.find_measured_model(order)
        return order

    def uplink_bytes(self, order: Order) -> float:
        """Return the bytes of an upload on the wire.

        Where they depend on data, pending work is done first.
        """
        size_bytes = self.tasks.uplink_bytes(order.task, order.choice)
        if size_bytes is not None:
            return size_bytes
        self.work_off()
        assert order.result is not None
        total = 0.0
        for name, of_plan in order.task.plan.up.items():
            size = self.tasks.field_bytes(order.task, of_plan, order.choice)
            if of_plan.bounded:
                size = of_plan.value_bytes * order.sent[name].numel()
            elif size is None:
                size, _ = order.result.sizes[name]
            total += size
        return total

    def server_work(
        self, round: int, contributions: Sequence[Contribution]
    ) -> Sequence[Work]:
        """Return the method's work at the merge of these contributions."""
        return self.tasks.server_work([c.task.who for c in contributions], round)

    def merge(
        self,
        round: int,
        contributions: Sequence[Contribution],
        weights: Sequence[float] = (),
    ) -> Outcome:
        """Merge arrivals by the method, unless the safeguard rejects it.

        Then come losses and the evaluation that is due.

        Args:
            round: from 1.
            contributions: orders or edge uploads under way; none: nothing is learned,
                but for noise under privacy of clients.
            weights: of each, by the server mode; empty: 1.

        Returns:
            What came of it; `rolled_back` where the safeguard rejected it, and the
            server then is as before.

        Raises:
            RunFailed: where models or losses are not finite.
        """
        self.work_off()
        uploads, arrivals = self._collect_arrivals(round, contributions, weights)
        if not uploads and self._noisy is None:
            answers = self._pool.run(*self._list_tests(round))
            evaluation, clients = self._evaluate(round, answers)
            before = self.safeguard.before()
            return Outcome(
                round, self.version, losses=self._evaluating.successes(answers),
                shared_loss_before=before, evaluation=evaluation, clients=clients,
            )  # fmt: skip
        before = self.safeguard.before(
            lambda: self.method.measure_first_losses(self.kit, self._server)
        )
        server, held = self._server, dict(self.held_models.held)
        losses = self._merge_by_method(arrivals, round)
        after = self.safeguard.shared(losses)
        rejected = self.safeguard.rejects(before, after)
        self._check_merge(losses, round, rejected=rejected)
        # losses and tests in one go, as processes wait for each other after each
        answers = self._measure(
            uploads, _NOTHING if rejected else self._list_tests(round)
        )
        local = self._losses.note_around_merge(uploads)
        if rejected:
            self.safeguard.reject()
            self._server, self.held_models.held = server, held
            self.held_models.note(server, round + 1)
        else:
            self.safeguard.accept(before, after)
            self.version += 1
            self._losses.accept(uploads, self.version)
        self.held_models.settle(stands=not rejected)
        self._settle(uploads, "undone" if rejected else "merged")
        if rejected:
            answers = self._pool.run(*self._list_tests(round))
        evaluation, clients = self._evaluate(round, answers)
        for name, success in self._evaluating.successes(answers).items():
            losses[name] = {**losses.get(name, {}), **success}
        return Outcome(
            round=round,
            model_version=self.version,
            rolled_back=rejected,
            forced_arm=self.scenario.safeguard.forced if rejected else None,
            losses=losses,
            shared_loss=after,
            shared_loss_before=before,
            local_loss=local,
            evaluation=evaluation,
            clients=clients,
        )

    def discard(self, contribution: Contribution) -> None:
        """Take back an upload that was lost: its client's state is as before.

        What it carried returns to the client. With what an edge server sends, all that
        it merged is lost.
        """
        if isinstance(contribution, EdgeUpload):
            del self._lent[contribution.task.client, contribution.task.key]
            merged = {order for merge in contribution.merged for order in merge}
            for order in reversed(
                [one for one in self._open.values() if one in merged]
            ):
                self.discard(order)
            return
        order = self._get_order(contribution)
        if self._pending.get(order.task.client) is not order:
            self._take_back(order)
            return
        order.lost = True
        # It is taken back where its client's state is needed next: trained with others,
        # not alone. What waits for that is as much as a cohort, however many are lost
        # in a row.
        self._lost_pending += 1
        if self._lost_pending >= self.tasks.setting.participants:
            self.work_off()

    def _take_back(self, order: Order) -> None:
        del self._open[order.task.order]
        self._settle([order], "lost")

    def _settle(self, orders: Sequence[Order], fate: Fate) -> None:
        """Tell clients what became of uploads.

        Of one client's several the last one comes first: each is undone to what was
        before it.
        """
        for order in sorted(orders, key=lambda one: one.name, reverse=True):
            client = order.task.client
            if fate != "merged" and client in self._pending:
                self.work_off()  # it went on from what this one left
            self.clients.settle(client, order.name, fate)

    def timings(self) -> dict[str, float]:
        """Return activity → host seconds that it has taken so far."""
        return dict(self._pool.wall_s)

    def close(self) -> None:
        """End worker processes; safe to call twice."""
        self._settings.close()

    def contribution(self, task: Task) -> Order | EdgeUpload:
        """Return the upload of a task that is under way, for a resumed run."""
        lent = self._lent.get((task.client, task.key))
        return self._open[task.order] if lent is None else lent

    def state(self) -> tuple[dict[str, Plain], Arrays]:
        """Return all that a resumed run needs. Pending work is done first."""
        self.work_off()
        arrays: Arrays = {}
        under_way = [
            order.plain(
                f"open/{order.task.client}/{order.task.key}", arrays,
                with_values=self.clients.elsewhere,
            )
            for order in self._open.values()
        ]  # fmt: skip
        plain = {
            "version": self.version,
            **self.safeguard.plain(),
            "losses": [
                [client, *loss]
                for client, loss in sorted(self._losses.measured.items())
            ],
            "server": encode_tree(self._server, "server", arrays),
            **self.clients.plain(arrays),
            "open": under_way,
            "lent": [
                self._gathers,
                [edge.plain(arrays) for edge in self._lent.values()],
            ],
            **({} if self._noisy is None else {"privacy": self._noisy.plain()}),
            **self.held_models.plain(arrays),
        }
        return plain, arrays

    def restore(self, facts: Mapping[str, Plain], arrays: Mapping[str, Plain]) -> None:
        """Take up what `state` returned, on a workload of the same scenario.

        What it did before is forgotten. Uploads under way are orders again, and those
        of edge servers know which of them they have merged.
        """

        def tree(plain: Plain) -> Tree:
            return decode_tree(plain, arrays, self.data.device)

        self._open.clear()
        self._pending.clear()
        self.version = int(facts["version"])
        self.safeguard.restore(facts)
        if self._noisy is not None:
            self._noisy.restore(facts["privacy"])
        self._losses.measured = {
            client: (version, loss) for client, version, loss in facts["losses"]
        }
        self._server = tree(facts["server"])
        self.clients.restore(facts, arrays)
        self.held_models.restore(facts, arrays, self._server)
        for plain in facts["open"]:
            *of_task, downlink_bytes = plain["task"]
            task = self.tasks.task(*of_task)
            if self.tasks.changes_vary(task):
                task = self.tasks.as_sent(
                    task, None, self.held_models.sizes(task.prototype)
                )
            task = task._replace(downlink_bytes=downlink_bytes)
            order = Order(task, Choice.of(plain["choice"]), {}, host=self)
            order.loss_before, order.loss_after = plain["losses"]
            values = self.clients.values(order)
            values = tree(plain["values"]) if values is None else values
            if values is not None:
                changes = {name: as_received(value) for name, value in values.items()}
                order.result = Result(ArrivedValues(changes), plain["sizes"])
            self._open[task.order] = order

        self._gathers, lent = facts["lent"]
        by_key = {
            (order.task.client, order.task.key): order for order in self._open.values()
        }
        for plain in lent:
            task = self.tasks.task(*plain["task"])
            self._lent[task.client, task.key] = EdgeUpload(
                task, plain["bytes"], tree(plain["server"]), plain["version"],
                merged=[
                    [by_key[c, key] for c, key in merge] for merge in plain["merged"]
                ],
                shares=plain["shares"],
            )  # fmt: skip

    # ---- clients ---------------------------------------------------------------------

    def work_off(self) -> None:
        """Train all who are pending, and compress what they send.

        Losses that somebody learns from are measured in the same units of work. Orders
        that were lost meanwhile are taken back afterwards.
        """
        if not self._pending:
            return
        orders, self._pending = list(self._pending.values()), {}
        for order in orders:
            task = order.task
            if self._losses.asks(order):
                order.measured = self.find_measured_model(order)
            attack = self.kit.find_attack(task.client, task.round)
            if attack is not None and attack.colludes:
                order.cohort = sum(
                    (one.task.round, one.task.prototype) == (task.round, task.prototype)
                    for one in self._open.values()
                )
        for order, result in zip(orders, self.clients.work(orders), strict=True):
            self.take(order, result)
        for order in orders:
            if order.lost:
                self._take_back(order)
        self._lost_pending = 0

    def take(self, order: Order, result: Result) -> None:
        """Take note that an order's work is done; what it was sent is let go."""
        if result.before is not None:
            self._losses.note(order, float(result.before))
        order.result, order.down = result, {}
        order.measured = order.edge = None

    def _measure(self, orders: Sequence[Order], beside: Units) -> list[Tensor]:
        """Measure f_n after a merge, where somebody learns from it.

        Args:
            orders: that were merged, or whose merge was rejected.
            beside: units that are done in the same go.

        Returns:
            What the units beside come to.
        """
        asked = [
            order
            for order in orders
            if order.loss_before is not None and order.loss_after is None
        ]
        models = [self.find_measured_model(order) for order in asked]
        pairs = list(zip(asked, models, strict=True))
        losses, answers = self.clients.measure(pairs, beside)
        for order, loss in zip(asked, losses, strict=True):
            order.loss_after = loss
            if loss is None:  # its client is gone: nobody knows
                order.loss_before = None
        return answers

    def find_measured_model(self, order: Order) -> Values:
        """Return the model at which a client's loss is measured, as clients hold it.

        It is one object for all who are measured at the same. Of a client with a model
        of its own it is what that is joined with; empty: nothing.
        """
        server = self._server if order.edge is None else order.edge.server
        return self._get_held_model(server, order.task.who, order.task.round)

    def _get_held_model(self, server: State, who: Who, round: int) -> Values:
        """Return the model that clients of a prototype hold, of a state of the server.

        It is made once per state, and is then the same object: units that are told
        apart by objects share it. Empty: they have models of their own that are joined
        with nothing.
        """
        method = self.method
        if method.personal and not method.joins_sent:
            return {}
        held = self.held_models.held.get((who.prototype, "weights"))
        known = self._measured_at.get(who.prototype)
        if known is None or known[0] is not server or known[1] is not held:
            model = (
                method.send(server, who, round)
                if method.joins_sent
                else method.model(server, {}, who)
            )
            model = model if held is None else {**model, "weights": held}
            known = self._measured_at[who.prototype] = server, held, model
        return known[2]

    # ---- the server ------------------------------------------------------------------

    def _collect_arrivals(
        self,
        round: int,
        contributions: Sequence[Contribution],
        weights: Sequence[float],
    ) -> tuple[list[Order], list[Arrival]]:
        """Return what is merged, in its order; it is not under way any more.

        Arrivals go by client, turn and round whatever their order in time, so that sums
        round alike over any network.

        Returns:
            The orders, those that edge servers merged included, and what the method is
            shown.
        """
        weights = weights or [1.0] * len(contributions)
        weighed = sorted(
            zip(contributions, weights, strict=True),
            key=lambda pair: pair[0].task.order,
        )
        uploads: list[Order] = []
        arrivals: list[Arrival] = []
        for one, weight in weighed:
            staleness = round - one.task.round
            if isinstance(one, EdgeUpload):
                del self._lent[one.task.client, one.task.key]
                uploads += [order for merge in one.merged for order in merge]
                arrivals += self._list_forwarded(one, staleness, weight)
            else:
                order = self._get_order(one)
                uploads.append(order)
                arrivals.append(Arrival(one.task.who, staleness, order.sent, weight))
        for order in uploads:
            del self._open[order.task.order]
        return uploads, arrivals

    def _list_forwarded(
        self, edge: EdgeUpload, staleness: int, weight: float
    ) -> Iterator[Arrival]:
        """Return what an edge server sends of each prototype.

        It is as one client with the samples of all.
        """
        for name, size in self.tasks.setting.prototypes.items():
            mine = [
                u for n in range(len(edge.merged)) for u in edge.list_uploads(name, n)
            ]
            if mine:
                samples = sum(upload.task.who.samples for upload in mine)
                who = Who(edge.task.client, name, size, samples, edge.task.who.turn)
                yield Arrival(who, staleness, edge.forwarded(name), weight, len(mine))

    def _merge_by_method(
        self, arrivals: Sequence[Arrival], round: int
    ) -> dict[str, dict[str, float]]:
        """Let the server take the method's next step.

        Noise and the merging rule come before it. The time of it, less what the pool
        accounted for, is the server's.

        Returns:
            Prototype → name of a loss → its value.
        """
        wall_s = self._pool.wall_s
        begun, elsewhere_s = time.perf_counter(), sum(wall_s.values())
        if self._noisy is not None:
            arrivals = self._noisy.arrivals(self.kit, arrivals, round)
        losses: Losses = {}
        if arrivals := apply_rule(self.scenario.aggregation.rule.made, arrivals):
            self._server, losses = self.method.merge(
                self.kit, self._server, arrivals, round
            )
        spent_s = time.perf_counter() - begun
        wall_s["server"] += spent_s - (sum(wall_s.values()) - elsewhere_s)
        return {name: dict(by_name) for name, by_name in losses.items()}

    def _check_merge(self, losses: Losses, round: int, *, rejected: bool) -> None:
        """Raises: `RunFailed` for models or losses that are not finite.

        A rejected merge may have some, and is undone.
        """
        try:
            self.held_models.advance(self._server, round, self.version + 1)
        except RunFailed:
            if not rejected:
                raise
        if rejected:
            return
        for prototype, named in losses.items():
            for name, value in named.items():
                if name not in self.method.losses and name != "kd_loss":
                    raise RunFailed(
                        f"method {self.scenario.method.kind}: measures a loss {name!r} "
                        "that it does not name in `losses`"
                    )
                if not math.isfinite(value):
                    raise RunFailed(
                        f"{name} of {prototype} is {value} in round {round}: the "
                        "learning has diverged"
                    )

    def _list_tests(self, round: int) -> Units:
        """Return what evaluates the models, where that is due.

        Clients test their own.
        """
        due = self.tasks.is_evaluated(round) and not self.method.personal
        return self._evaluating.units(self._server) if due else _NOTHING

    def _evaluate(self, round: int, answers: Sequence[Tensor]) -> Evaluations:
        """Return the evaluations that are due, of prototypes and of clients.

        answers: what the units of `_list_tests` came to.
        """
        if not self.tasks.is_evaluated(round):
            return {}, {}
        if self.method.personal:
            sent = {
                name: self._get_held_model(
                    self._server, self.tasks.first_of(name), round
                )
                for name in self.scenario.prototypes
            }
            return self._evaluating.of_clients(self.clients.test(sent))
        return self._evaluating.spread_over_clients(answers)

    def _get_order(self, contribution: Contribution) -> Order:
        """Return a contribution as the order under way that it must be."""
        order = self._open.get(contribution.task.order)
        if order is None or order is not contribution:
            raise ValueError(
                f"a contribution that is under way, got that of client "
                f"{contribution.task.client}"
            )
        return order
