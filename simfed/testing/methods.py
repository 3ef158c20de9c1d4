"""The contract of methods: plans, training, merging and checkpoints."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from simfed.compress.choice import NO_COMPRESSION, Choice
from simfed.ground.errors import InputError
from simfed.ground.method import Arrival, Field, Method, Who
from simfed.ground.registry import import_part, registry
from simfed.ground.seeding import Streams
from simfed.ground.story import OwnStory
from simfed.scenario import Scenario
from simfed.tasks.tasks import Tasks
from simfed.testing.common import (
    no_global_randomness,
    put_through_json,
    read_bits,
    require,
)


def check_method(cls: Callable[..., Method], **options: object) -> None:
    """Check a method class, made as `cls(**options)`, in a small world.

    It has four clients and noise images.

    - its options are read from a scenario, and are what makes an equal method again;
    - plans and server work come from plain facts: equal whenever and in whatever order
      they are asked for, picklable, with sizes and kinds of work that exist; so do
      stories of its own, which can be played;
    - what is sent either way has the names and sizes of the plan;
    - `train` changes no argument, uses no global randomness, remembers nothing, and
      gives the same bits twice; `sent` changes no argument;
    - `merge` leaves alone what `send` handed out and the state it was given, takes any
      part of the cohort, late arrivals too, and measures finite losses that `losses`
      names;
    - states and values are trees that checkpoints and other processes get back bit for
      bit;
    - `model` gives weights and running statistics of the prototype's sizes, for clients
      that have never taken part as well;
    - a lost upload leaves no trace but in residuals; one and two processes, clients
      behind a socket, and a run resumed from a checkpoint with uploads under way, come
      to the same bits.

    Of a method that brings a workload of its own, its plans and that workload are
    checked. What it learns is not judged: noise images teach nothing.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """
    with no_global_randomness(), _make_method_world(cls, options) as scenario:
        method = scenario.method.made
        require(isinstance(method, Method), f"a Method, got {method!r}")
        again = cls(**method.options)
        require(again == method, "a frozen dataclass that its options make again")
        named = method.shared_loss is None or method.shared_loss in (
            *method.losses,
            "kd_loss",
        )
        require(named, f"`shared_loss` among `losses`, got {method.shared_loss!r}")
        option = method.weighs_staleness
        owns = not option or option in method.options
        require(owns, f"`weighs_staleness` among its options, got {option!r}")
        _check_plans(scenario, cls(**options))
        if method.workload == Method.workload:
            _check_learning(scenario, cls(**options))
        _check_workload(scenario)


@contextmanager
def _make_method_world(cls: Any, options: dict[str, Any]) -> Iterator[Scenario]:
    """Yield a scenario of the method, whose parts have names while it is checked.

    Args:
        cls: makes the method.
        options: keywords of it.
    """
    parts = {
        "method": cls,
        "dataset": _make_noise_images,
        "narrow": _make_normed_net(2),
        "wide": _make_normed_net(3),
    }
    names = {key: f"checked {key}" for key in parts}
    kinds = {key: key if key in ("method", "dataset") else "model" for key in parts}
    for key, part in parts.items():
        registry(kinds[key]).add(names[key], part)
    try:
        models = ("narrow", "wide") if cls.mixes_prototypes else ("narrow", "narrow")
        public = {"public": 12, "public_batch": 8} if cls.needs_public else {}
        yield Scenario.model_validate(
            {
                "name": "checked",
                "rounds": 3,
                "method": {"kind": names["method"], **options},
                "dataset": {"name": names["dataset"], **public},
                "prototypes": {model: {"model": names[model]} for model in models},
                "clients": [
                    {"count": 2, "prototype": model, "device": "any"}
                    for model in models
                ],
                "training": {"batch_size": 8, "local_steps": 2},
                "compression": {"k": 20},
                "policy": {"kind": "ascend", "reward": {"local_loss": {"samples": 16}}},
                "safeguard": {"rollback": None},
            }
        )
    finally:
        for key in parts:
            registry(kinds[key]).remove(names[key])


def _make_noise_images() -> Any:
    """Return ninety-six noise images of 6 × 6 pixels, in three classes."""
    from simfed.learn.data import Dataset

    rng = np.random.default_rng(8)
    images = rng.integers(0, 256, (108, 1, 6, 6), dtype=np.uint8)
    labels = np.arange(108) % 3
    return Dataset(
        images[:96],
        labels[:96],
        images[96:],
        labels[96:],
        classes=3,
        mean=(0.5,),
        sd=(0.3,),
    )


def _make_normed_net(width: int) -> Callable[..., Any]:
    """Return the factory of a convolution with batch norm and a linear layer.

    It is a model with running statistics.

    Args:
        width: channels of the convolution; two of them make two prototypes.
    """

    def build(input_shape: tuple[int, ...], classes: int) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2, 1),  # embeddings of one width, as some methods need
            nn.Flatten(),
            nn.Linear(2 * (input_shape[1] - 2) * (input_shape[2] - 2), classes),
        )

    return build


def _check_plans(scenario: Scenario, method: Method) -> None:
    """Check the plans of every client in three rounds, and the server's work.

    Args:
        scenario: of the method.
        method: a second object of it, which has seen nothing of the run.
    """
    from simfed.learn.catalogue import facts

    models = {
        name: facts(p, scenario.dataset) for name, p in scenario.prototypes.items()
    }
    tasks = Tasks(scenario, models, lambda client: 10 + client)
    asked = list(itertools.product(range(1, 4), range(scenario.client_count)))

    def plans(
        planner: Method, order: list[tuple[int, int]]
    ) -> dict[tuple[int, int], Any]:
        """Return each participation's (sent down, work, sent up, server's work).

        Args:
            planner: the object that is asked.
            order: (round, client) of each participation, in the order of asking.
        """
        plan_of = {}
        for round, client in order:
            everybody = [tasks.who(c) for c in range(client + 1)]
            plan = planner.plan(tasks.setting, everybody[-1], round)
            work = tuple(planner.server_work(tasks.setting, everybody, round))
            plan_of[round, client] = (
                dict(plan.down),
                tuple(plan.work),
                dict(plan.up),
                work,
            )
        return plan_of

    first = plans(method, asked)
    second = plans(type(method)(**method.options), asked[::-1])
    require(
        first == second == plans(method, asked),
        "equal plans, whenever they are asked for",
    )
    require(pickle.loads(pickle.dumps(first)) == first, "plans that can be pickled")
    if tasks.story is not None:
        for round, client in asked:
            _check_story(tasks.story, tasks, client, round)
    auxiliary = dict(method.auxiliary(tasks.setting))
    for (round, client), (down, work, up, at_server) in first.items():
        where = f"; client {client}, round {round}"
        for name, of_plan in {**down, **up}.items():
            sized = (
                isinstance(of_plan, Field)
                and of_plan.entries >= 0 < of_plan.value_bytes
            )
            require(sized, f"a Field with a size, got {name}: {of_plan}{where}")
        require(
            not any(f.compressed for f in down.values()),
            f"no compression downwards{where}",
        )
        for piece in (*work, *at_server):
            names: Iterable[str] = auxiliary
            if piece.quantity != "auxiliary":
                names = scenario.model_names.values()
            require(piece.quantity in _WORK, f"work of {_WORK}, got {piece}{where}")
            require(
                piece.model in names, f"work of {sorted(names)}, got {piece}{where}"
            )
            require(
                piece.size > 0 and piece.times >= 0,
                f"work of some size, got {piece}{where}",
            )
    require(
        all(flops > 0 for flops in auxiliary.values()),
        "FLOPs above 0 of auxiliary work",
    )


def _check_story(story: OwnStory, tasks: Tasks, client: int, round: int) -> None:
    """Check that a method's own story is told alike twice, and can be played."""
    who = tasks.who(client)
    plan = tasks.method.plan(tasks.setting, who, round)
    try:
        told, again = (story.rehearse(who, round, plan).verbs for _ in range(2))
    except InputError as error:
        raise AssertionError(f"expected a story that can be played; {error}") from None
    require(told == again, f"a story told alike twice; client {client}, round {round}")


_CHOICES = tuple(map(Choice, ("top-k", "random-k", "periodic-k")))
_WORK = ("training", "inference", "distillation", "auxiliary")


def _check_learning(scenario: Scenario, method: Method) -> None:
    """Check the steps of a method, one by one, as no server would play them.

    All clients, one, and two whose uploads come late are merged in turn.

    Args:
        scenario: of the method.
        method: a second object of it, which knows nothing of the first.
    """
    from simfed.learn.hosted import HostedWorkload

    streams = Streams(scenario.seed)
    workload = HostedWorkload(scenario, streams)
    try:
        kit, tasks = workload.kit, workload.tasks
        everybody = [tasks.who(client) for client in range(scenario.client_count)]
        # what one object knew, the other does not
        other = type(method)(**method.options)
        server = _put_through_checkpoint(method.begin(kit), "the server's state")
        require(
            read_bits(server) == read_bits(other.begin(kit)), "the same beginning twice"
        )
        states = {who.client: method.begin_client(kit, who) for who in everybody}
        for round, cohort, staleness in (
            (1, [0, 1, 2, 3], 0),
            (2, [3], 0),
            (3, [1, 2], 1),
        ):
            turns: list[tuple[Who, Any, Any]] = []
            for who in (everybody[client] for client in cohort):
                down = method.send(server, who, round)
                plan = method.plan(tasks.setting, who, round)
                where = f"what travels down; {who!r}, round {round}"
                _check_sizes(method, down, plan.down, where)
                turns.append((who, down, states[who.client]))
            before = read_bits([server, [turn[1:] for turn in turns]])
            came = {
                who.client: _train_client(method, kit, who, round, down, state)
                for who, down, state in turns
            }
            for who, down, state in reversed(turns):
                same = read_bits(
                    _train_client(other, kit, who, round, down, state)
                ) == read_bits(came[who.client])
                require(
                    same, f"the same bits from training twice; {who!r}, round {round}"
                )
            arrivals = []
            for who, _, _ in turns:
                values, state = came[who.client]
                plan = method.plan(tasks.setting, who, round)
                where = f"what travels up; {who!r}, round {round}"
                _check_sizes(method, values, plan.up, where)
                values = _put_through_checkpoint(values, f"what {who!r} sends")
                before_sent = read_bits(state)
                states[who.client] = _put_through_checkpoint(
                    method.sent(state, values), f"what {who!r} keeps"
                )
                require(
                    read_bits(state) == before_sent,
                    "`sent` to change none of its arguments",
                )
                arrivals.append(Arrival(who, staleness, values, 1.0 - staleness / 4))
            sent = read_bits([arrival.values for arrival in arrivals])
            try:
                after, losses = method.merge(kit, server, arrivals, round + staleness)
            except (KeyError, IndexError) as error:
                raise AssertionError(
                    "expected a merge that takes any part of the cohort; clients "
                    f"{cohort}: {error!r}"
                ) from error
            untouched = read_bits([server, [turn[1:] for turn in turns]]) == before
            require(
                untouched,
                "merge to leave alone what was sent, and the state it was given",
            )
            require(
                read_bits([a.values for a in arrivals]) == sent,
                "merge to leave its arrivals alone",
            )
            _check_losses(method, losses, scenario)
            server = _put_through_checkpoint(after, "the server's state")
            for who in everybody:
                seen = method.send(server, who, 3) if method.joins_sent else server
                _check_model(method.model(seen, states[who.client], who), who)
    finally:
        workload.close()


def _train_client(
    method: Method, kit: Any, who: Who, round: int, down: Any, state: Any
) -> tuple[Any, Any]:
    """Return what a client sends and keeps, and check what training left alone."""
    import torch

    before, generator = read_bits([down, state]), torch.get_rng_state()
    came: tuple[Any, Any] = method.train(kit, who, round, down, state)
    require(
        read_bits([down, state]) == before,
        f"train to change none of its arguments; {who!r}",
    )
    untouched = torch.equal(torch.get_rng_state(), generator)
    require(untouched, "no use of PyTorch's global generator: the kit has keyed ones")
    return came


def _check_sizes(method: Method, values: Any, planned: Any, where: str) -> None:
    """Check that values have the names and the sizes of their plan.

    Args:
        method: may send fewer entries where its sizes vary.
        values: name → tensor.
        planned: name → field.
        where: the end of the sentence.
    """
    require(
        set(values) == set(planned),
        f"fields {sorted(planned)}, got {sorted(values)}: {where}",
    )
    for name, of_plan in planned.items():
        entries = values[name].numel()
        require(
            entries == of_plan.entries
            or (method.sizes_vary and entries < of_plan.entries),
            f"{of_plan.entries} entries of {name}, got {entries}: {where}",
        )


def _check_losses(method: Method, losses: Any, scenario: Scenario) -> None:
    """Check that a merge measures finite losses that the method names, by prototype."""
    for prototype, measured in losses.items():
        require(
            prototype in scenario.prototypes, f"losses by prototype, got {prototype!r}"
        )
        for name, value in measured.items():
            declared = name in (*method.losses, "kd_loss") and math.isfinite(value)
            require(
                declared, f"finite losses out of {method.losses}, got {name}: {value}"
            )


def _check_model(model: Any, who: Who) -> None:
    """Check that an evaluated model has its prototype's weights and buffers."""
    for name, entries in (("weights", who.parameters), ("buffers", who.size.buffers)):
        got = model[name].numel() if name in model else "none"
        require(got == entries, f"{entries} {name} in the model of {who!r}, got {got}")


def _put_through_checkpoint(tree: Any, what: str) -> Any:
    """Return the tree, read back from a checkpoint.

    It must be what came through a pipe as well.

    Args:
        tree: mappings, lists, tensors and plain values.
        what: it is, for the sentence.
    """
    import torch

    from simfed.learn.shelf import Shelf
    from simfed.learn.tree import decode_tree, encode_tree

    arrays: dict[str, Any] = {}
    device = torch.device("cpu")
    try:
        plain = put_through_json(encode_tree(tree, "tree", arrays))
    except TypeError as error:
        raise AssertionError(
            f"expected {what} to go into a checkpoint: {error}"
        ) from None
    read = decode_tree(plain, arrays, device)
    shelf = Shelf([1 << 22, 0])
    piped = shelf.end(1).unpack(shelf.pack(tree))
    same = read_bits(read) == read_bits(tree) == read_bits(piped)
    require(same, f"{what} to come back from a checkpoint and from another process")
    return read


def _check_workload(scenario: Scenario) -> None:
    """Check the method as a clock plays it: uploads are lost and late.

    It must come to the same bits from one process and from two, from clients behind a
    socket, and where it is stopped and goes on from its state.
    """
    once = _play_workload(scenario)
    require(
        _play_workload(scenario, workers=2) == once,
        "the same bits from one process and from two",
    )
    require(
        _play_workload(scenario, resumed=True) == once,
        "to go on alike from a checkpoint",
    )
    if scenario.method.made.workload == Method.workload:
        apart = _play_workload(
            scenario, make=import_part("simfed.testing.loopback:LoopbackWorkload")
        )
        require(apart == once, "the same bits from clients behind a socket")


def _play_workload(
    scenario: Scenario,
    *,
    workers: int = 1,
    resumed: bool = False,
    make: Callable[..., Any] | None = None,
) -> Any:
    """Return outcomes and the last state of three rounds.

    In the first all arrive; in the second two are lost and one is late; in the third
    two arrive, and the late one.

    Args:
        scenario: of the method.
        workers: learning processes.
        resumed: True: it is stopped with uploads under way, and goes on from its state.
        make: makes the learning side; None: that of the method.
    """
    make = make or import_part(scenario.method.made.workload)
    streams = Streams(scenario.seed)
    workload = make(scenario, streams, workers=workers)
    try:
        outcomes = []

        def begun(round: int, clients: Sequence[int]) -> dict[int, Any]:
            """Return what each client has begun, its upload still to be merged."""
            started = {}
            for client in clients:
                task = workload.task(round, client)
                k = min(scenario.compression.k, task.plan.longest)
                choice = _CHOICES[client % 3] if task.plan.longest else NO_COMPRESSION
                started[client] = workload.execute(task, choice.at(k))
            return started

        outcomes.append(workload.merge(1, list(begun(1, [0, 1, 2, 3]).values())))
        states, server = _split_state(workload.state())
        flying = begun(2, [0, 1, 2, 3])
        if resumed:
            facts, arrays = workload.state()
            facts = put_through_json(facts)
            arrays = {k: v.copy() for k, v in arrays.items()}
            workload.close()
            workload = make(scenario, Streams(scenario.seed), workers=workers)
            workload.restore(facts, arrays)
            flying = {
                client: workload.contribution(one.task)
                for client, one in flying.items()
            }
        for client in (0, 3):
            workload.discard(flying.pop(client))
        lost_own, lost_server = _split_state(workload.state())
        clean = all(lost_own.get(one) == states.get(one) for one in ("0", "3"))
        require(
            clean and lost_server == server,
            "lost uploads to leave no trace in the states of server and clients",
        )
        outcomes.append(workload.merge(2, [flying.pop(1)]))
        flying |= begun(3, [0, 1])
        outcomes.append(workload.merge(3, list(flying.values())))
        return repr(outcomes), read_bits(workload.state())
    finally:
        workload.close()


def _split_state(
    state: tuple[dict[str, Any], dict[str, Any]],
) -> tuple[dict[str, Any], Any]:
    """Return the states of clients, by their numbers, and that of the server.

    Args:
        state: of a workload, as (facts, arrays).
    """
    facts, arrays = state

    def named(prefix: str) -> dict[str, Any]:
        return {
            key: read_bits(value)
            for key, value in arrays.items()
            if key.startswith(prefix)
        }

    clients = {
        client: (own, named(f"clients/{client}/own/"))
        for client, (own, *_) in facts.get("clients", {}).items()
        if own is not None
    }
    return clients, (facts.get("server"), named("server/"))
