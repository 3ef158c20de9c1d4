"""What holds of every world, whatever its features: a run that is stopped, carried,
answered, replayed, spread over processes or deployed comes to the same; and changes
whose effect is known.

    python tests/laws/laws.py resumed '{"name": "law", …}'   # one law of one world
    python tests/laws/laws.py resumed '{"name": "law", …}' --shrink   # of a smaller too
    python tests/laws/laws.py --draw 0:2000 [--of resumed,verified]   # of many, by seed
    python tests/laws/laws.py --fresh 180   # of others each time, for so many seconds
    python tests/laws/laws.py --fresh 180 --of apps   # of apps, where Flower is there

It ends with 1 where a law is broken, and again when the same world is played again.
"""

from __future__ import annotations

import argparse
import builtins
import copy
import errno
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import laws_worlds as worlds
import numpy as np
import yaml
from laws_files import write_files

import simfed
from simfed import InputError, InputErrors, Interrupted, RunFailed
from simfed.experiment import check_parts
from simfed.ground import Streams, Who
from simfed.record import TABLES
from simfed.replay import TrajectoryStore
from simfed.scenario import (
    APP,
    FleetFile,
    Scenario,
    dump_scenario,
    load_fleet,
    load_scenario,
    validate_scenario,
)
from simfed.schema.section import drop_unused
from simfed.verify import verify

LONGEST_S = 60
"""Processor seconds after which a play that has not ended counts as one that never
does."""
LONGEST_BUSY_S = 300
"""Seconds on the wall after which this machine is too busy to tell."""
SHRUNK_S = 60
"""Seconds in which a smaller world that breaks the same law is sought."""


@dataclass
class World:
    """A world that somebody drew, and a folder to play it in."""

    plain: dict[str, Any]
    """As its file says it."""
    scenario: Scenario
    folder: Path
    learns: bool = True

    @cached_property
    def rng(self):
        """For what a law draws itself: where a run stops, which rate is another."""
        return random.Random(self.plain["seed"])

    def play(self, scenario=None, out=None, **options):
        """A run of it, or of another scenario.

        Raises: `Fails` where the run says why it cannot be.
        """
        options = {
            "progress": False,
            "workers": 1,
            "source": files() / "world.yaml",
            **options,
        }
        path = None if out is None else self.folder / out
        try:
            return self.run(scenario or self.scenario, path, **options)
        except RunFailed as error:
            raise Fails(str(error)) from None

    def run(self, scenario, path, **options):
        return simfed.run(scenario, path, **options)

    def load(self, path):
        """The scenario that a run directory keeps."""
        return load_scenario(path, allow_plugins=True)

    def changed(self, change):
        """The scenario of its file after a change."""
        plain = copy.deepcopy(self.plain)
        change(plain)
        return self.read(plain)

    def resolved(self):
        """The whole scenario in base units."""
        return yaml.safe_load(dump_scenario(self.scenario))

    def read(self, plain):
        """The scenario of a world. Raises: `Unfit` where that is none."""
        try:
            return worlds.read_world(plain, files(), learns=self.learns)
        except (InputError, InputErrors) as error:
            raise Unfit(str(error)) from None


@dataclass
class AppWorld(World):
    """One for a Flower app, whose server asks everybody twice."""

    scenario: FleetFile  # type: ignore[assignment]

    def run(self, fleet, path, *, time_only=False, **options):
        """Of the app, whose clock is never alone."""
        _reach("flower")
        from flower_worlds import ask_everybody_twice, client, server

        return simfed.flower.run(
            server(ask_everybody_twice), client(), fleet, path, **options
        )

    def load(self, path):
        return load_fleet(path)

    def read(self, plain):
        try:
            return worlds.read_fleet(plain, files())
        except (InputError, InputErrors) as error:
            raise Unfit(str(error)) from None


class Fails(Exception):
    """A run that ends with a sentence: nobody stays for as long as it takes, a trace
    ends.
    """


class Unfit(Exception):
    """The law says nothing of this world."""


class Busy(Unfit):
    """This machine has no time or no memory to tell."""


class Endless(Exception):
    """A play that takes more work than any does that ends."""


def _reach(*rooms):
    """Have modules of other rooms of tests to import."""
    sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in rooms]


@cache
def files():
    """The folder with all files that worlds name."""
    return write_files(Path(tempfile.mkdtemp(prefix="simfed-laws-")) / "files")


def refuse(where, why="no law here"):
    """Have the generator take out what stands there."""
    raise InputError(where=where, problem=why)


# ---- what is compared ----------------------------------------------------------------


def assert_same(one, other, tables=None):
    """Two runs have the same tables to the bit. Says where they differ first."""
    for name, columns in (tables or dict.fromkeys(TABLES)).items():
        a, b = (_frame(run, name, columns) for run in (one, other))
        if a.equals(b) or len(a) == len(b) == 0:
            continue
        assert list(a) == list(b), f"{name}: {sorted(set(a) ^ set(b))}"
        assert len(a) == len(b), f"{name}: {len(a)} rows, then {len(b)}"
        for column in a:
            differ = ~((a[column] == b[column]) | (a[column].isna() & b[column].isna()))
            row = int(np.flatnonzero(differ)[0]) if differ.any() else None
            if row is not None:
                was, now = a[column].iloc[row], b[column].iloc[row]
                raise AssertionError(
                    f"{name}.{column}, row {row}: {was!r}, then {now!r}"
                )
        raise AssertionError(f"{name}: types differ")


def assert_near(one, other, factor=1.0, spans=True):
    """The instants of `other` are `factor` × those of `one`; all else is the same."""
    for name in ("rounds", "participations", *(["spans"] if spans else [])):
        a, b = _frame(one, name, None), _frame(other, name, None)
        assert len(a) == len(b), f"{name}: {len(a)} rows, then {len(b)}"
        for column in (c for c in a if a[c].dtype.kind in "fi"):
            if column.endswith("_s"):
                got, due = b[column].to_numpy(), a[column].to_numpy() * factor
                np.testing.assert_allclose(
                    got, due, 1e-9, 1e-9, err_msg=f"{name}.{column}"
                )
    same = ["round", "client", "outcome", "arm", "staleness", "merge"]
    assert_same(one, other, {"participations": same})


def _frame(run, name, columns):
    frame = run.table(name).to_pandas()
    return (
        frame if columns is None else frame[[name for name in columns if name in frame]]
    )


TIMES = {
    "participations": [
        "round", "client", "turn", "prototype", "model_version", "arm", "k", "outcome",
        "started_at_s", "finished_at_s", "downlink_s", "training_s", "compression_s",
        "uplink_s", "waiting_s", "offline_s", "uplink_bytes", "downlink_bytes",
        "energy_j", "staleness", "merge",
    ],
    "rounds": [
        "started_at_s", "finished_at_s", "participants", "late", "dropped",
        "uplink_bytes", "downlink_bytes",
    ],
    "links": None, "spans": None, "merges": None,
}  # fmt: skip
"""What the clock says."""
LEARNED = {
    "prototypes": None,
    "participations": [
        "round", "client", "prototype", "model_version", "arm", "k", "choice",
        "outcome", "staleness", "merge",
    ],
    "clients": None,
}  # fmt: skip


# ---- nine laws -----------------------------------------------------------------------


def verified(world):
    """`verify` has nothing against it."""
    run = world.play(out="run")
    assert not (broken := verify(run.path)), broken


def resumed(world):
    """Stopped after every round, and killed in between, it comes to what it is in one
    go.
    """
    whole = world.play()
    for round in range(1, world.scenario.rounds):
        with suppress(Interrupted):
            world.play(out="run", resume=True, progress=_stop_after(round))
    again = world.play(out="run", resume=True)
    assert_same(whole, again)
    assert not (broken := verify(again.path)), broken


def killed(world):
    """Killed at one of its file operations, it comes to what it is in one go."""
    out, left = world.folder / "run", world.folder / "left"

    with _at_operation(world.rng.randint(1, 80), out, lambda _: _copy(out, left)):
        whole = world.play(out="run")
    assert_same(whole, world.play(out="left", resume=True))


def replaced(world):
    """Killed while it takes another run's place, there is the one or the other, whole,
    and overwriting again comes to the one. The user's own files stay.
    """
    out, left, again = (world.folder / name for name in ("run", "left", "again"))
    other = world.changed(lambda plain: plain.update(seed=plain["seed"] + 1))
    old = world.play(other, out="run").fingerprint
    (out / "notes.txt").write_text("mine")
    with _at_operation(world.rng.randint(1, 40), out, lambda _: _copy(out, left)):
        whole = world.play(out="run", overwrite=True)
    if not left.exists():
        _copy(out, left)
    _copy(left, again)
    try:
        assert_same(whole, world.play(out="left", resume=True))
    except InputError:
        assert simfed.load_run(left).fingerprint == old
    assert_same(whole, world.play(out="again", overwrite=True))
    assert {(folder / "notes.txt").read_text() for folder in (out, left, again)} == {
        "mine"
    }


def filled(world):
    """On a disk that is full from one of its file operations on it ends in a sentence,
    and goes on to what it is in one go.
    """
    whole = world.play()

    def refuse_space(event):
        if event not in ("os.rename", "os.remove"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    at = world.rng.randint(1, 40)
    full = _at_operation(at, world.folder / "run", refuse_space, often=True)
    with suppress(InputError, Fails), full:
        world.play(out="run")
    assert_same(whole, world.play(out="run", resume=True))


def resolved(world):
    """What a run says it played is what was written, spelled out; it plays the same."""
    run = world.play(out="run")
    again = world.load(run.path / "scenario.yaml")
    assert_same(run, world.play(again, source=run.path / "scenario.yaml"))


def in_memory(world):
    """What nobody wrote is what was written."""
    disk, memory = world.play(out="run"), world.play()
    assert_same(disk, memory)
    assert disk.fingerprint == memory.fingerprint
    assert disk.summary == memory.summary


def answered(world):
    """Answered from the cache it is as played, over its own links and over others."""
    store = TrajectoryStore(world.folder / "cache")
    rate = world.rng.choice(("40 kbps", "250 kbps", "900 kbps"))

    def change(plain):
        for group in plain["clients"]:
            link = group.setdefault("link", {})
            if isinstance(link.get("up", ""), str) and "cell" not in link:
                link["up"] = rate
            else:
                link["latency"] = "70 ms"

    for scenario in (world.scenario, world.changed(change)):
        played = world.play(scenario)
        assert_same(played, world.play(scenario, trajectories=store))
        assert_same(played, world.play(scenario, trajectories=store))


def recorded(world):
    """A run without learning over another's arms has its instants, arms and bytes."""
    run = world.play(out="run")
    resolved = world.resolved()
    for policy in (
        resolved["policy"],
        *(group["policy"] for group in resolved["clients"]),
    ):
        if policy is not None:
            policy["arms_from"] = str(run.path)
    world.learns = False
    assert_same(run, world.play(world.read(resolved), time_only=True), TIMES)


def recorded_fits(scenario):
    if scenario.privacy is not None:
        refuse("privacy", "no theorem covers recorded arms")


def spread(world):
    """How many processes learn, and where clients' states lie, decides no bit."""
    bound = {} if isinstance(world, AppWorld) else {"memory": 1}
    assert_same(world.play(), world.play(workers=world.rng.choice((2, 3)), **bound))


def looked(world):
    """When somebody looks decides no bit: work is done at once, or when needed."""
    from simfed.learn import HostedWorkload

    execute = HostedWorkload.execute

    def look(self, *given, **named):
        upload = execute(self, *given, **named)
        self.work_off()
        return upload

    whole = world.play()
    with mock.patch.object(HostedWorkload, "execute", look):
        assert_same(whole, world.play())


def looked_fits(scenario):
    for i, group in enumerate(scenario.clients):
        if group.attack is not None and group.attack.kind in ("alie", "ipm"):
            refuse(f"clients[{i}].attack", "attackers agree on what all of them have")


def timed(world):
    """Where sizes are known before, the clock alone has the instants of a full run."""
    assert_same(world.play(), world.play(time_only=True), TIMES)


def timed_fits(scenario):
    clock_fits(scenario)
    if scenario.safeguard.rollback is not None:
        refuse("safeguard.rollback", "who is forced depends on what is learned")


def deployed(world):
    """Real clients on the loopback learn the bits of the simulation."""
    _reach("deploy")
    import deploy_worlds

    simulated = world.play()
    clients = range(world.scenario.client_count)
    real = deploy_worlds.deployed(
        world.scenario,
        source=files() / "world.yaml",
        crowd=deploy_worlds.Crowd(clients),
    )
    assert_same(simulated, real, LEARNED)


def deployed_fits(scenario):
    from simfed.deploy import serving

    loop_only_fits(scenario)
    serving._refuse_undeployable(scenario)
    serving._refuse_unknown(
        check_parts(scenario, files() / "world.yaml", time_only=False)
    )


def explored(world):
    """What an answer to "what if" plays is the run with that setting."""
    _reach("", "explore")
    from test_explore_exact import draw_setting

    from simfed.explore import ExploredWorld, play

    base = world.play(out="run", time_only=True)
    asked = ExploredWorld(base.path, allow_plugins=True)
    rng = np.random.default_rng(world.plain["seed"])
    setting = draw_setting(asked, rng)
    try:
        turned = asked.apply(setting)
        asked.check(turned)
    except (InputError, InputErrors) as error:
        raise Unfit(str(error)) from None
    run = world.play(turned, time_only=True, source=asked.source)
    question = {"setting": setting, "shown": (1, world.scenario.rounds)}
    told = play(asked, question, lambda part: None)
    tables = "rounds", "participations", "spans", "links"
    assert_same(run, told, dict.fromkeys(tables))


# ---- changes whose effect is known ---------------------------------------------------


def twice_as_fast(world):
    """Speeds and rates doubled, times halved: all happens at half its instant."""
    slow = world.resolved()
    fast = _scaled(slow, {"duration": 0.5, "rate": 2.0})
    one = world.play(time_only=True)
    assert_near(one, world.play(world.read(fast), time_only=True), 0.5)
    assert slow != fast


def fast_fits(scenario):
    """Without what knows seconds of its own: radio, days, joules, files."""
    timed_fits(scenario)
    _refuse_files(scenario)
    if scenario.network.cells:
        refuse("network.cells")
    if getattr(scenario.method, "stays_s", 1e9) < 1e9:
        refuse("method.stays_s")
    for i, group in enumerate(scenario.clients):
        if (
            group.availability != "always"
            and getattr(group.availability, "markov", None) is None
        ):
            refuse(f"clients[{i}].availability")


def twice_the_bytes(world):
    """Sizes and rates doubled: everything happens when it did."""
    one = world.resolved()
    one["policy"] = {"kind": "uniform", "strategy": "top-k"}
    one["compression"] |= {"k": 1, "index_code": "ideal"}
    one["downlink"]["payload"] = "fp16"
    one["charge"]["buffers"] = False
    for group in one["clients"]:
        group |= {"policy": None, "k": None}
    other = _scaled(one, {"rate": 2.0, "size": 2.0})
    other["compression"]["k"] = 2  # of the parameters of the smallest model
    other["downlink"]["payload"] = "fp32"
    one, other = (
        world.play(world.read(plain), time_only=True) for plain in (one, other)
    )
    assert_near(one, other, spans=False)


def bytes_fits(scenario):
    """Of methods that send only models and updates, on devices whose times are said."""
    timed_fits(scenario)
    _refuse_files(scenario)
    averaging = "fedavg", "fedprox", "fedopt", "fedbuff", "fedasync", "ditto"
    for where, unfit in (
        ("method", scenario.method.kind not in averaging),
        ("charge.downlink", not scenario.charge.downlink),
        ("downlink.compression", scenario.downlink.compression is not None),
        ("network.cells", scenario.network.cells),
        # segments and first windows have sizes of their own
        ("network.model", scenario.network.model == "tcp"),
        # a profile knows what K takes
        ("server.device", getattr(scenario.server.device, "profile", None)),
    ):
        if unfit:
            refuse(where)
    for i, group in enumerate(scenario.clients):
        if group.overlap is not None:
            refuse(f"clients[{i}].overlap")
        if group.device.profile is not None:
            refuse(f"clients[{i}].device", "which knows what K takes")


def never_there(world):
    """A client who never takes part changes nobody."""

    def change(plain):
        group = copy.deepcopy(plain["clients"][0])
        group.pop("attack", None)  # rules refuse too many attackers
        never = {"daily": {"from": "23:58", "to": "23:59"}}
        plain["clients"].append({**group, "count": 1, "availability": never})

    one = world.play(time_only=True)
    other = world.play(world.changed(change), time_only=True)
    alone = {"links", "spans"}
    assert_same(one, other, {key: TIMES[key] for key in TIMES.keys() - alone})
    # a link that all clients together could not fill has no rows
    links = [set(_frame(run, "links", ["link"])["link"]) for run in (one, other)]
    unfilled = links[0] ^ links[1]
    for name, key, word in (("links", "link", ""), ("spans", "track", "link ")):
        left = [word + link for link in unfilled]
        columns = ["link", "from_s", "to_s", "bytes"] if name == "links" else None
        frames = (_frame(run, name, columns) for run in (one, other))
        a, b = (x[~x[key].isin(left)].reset_index(drop=True) for x in frames)
        assert a.equals(b), name


def never_fits(scenario):
    timed_fits(scenario)
    if scenario.method.kind == "with-keys":
        refuse("method", "its messages are as long as there are clients")
    if scenario.client_order != "grouped":
        refuse("client_order", "other ids")
    if scenario.network.cells:
        refuse("network.cells", "downloads weigh by the mean of all stations")
    for i, tier in enumerate(scenario.network.tiers):
        if tier.count > 1:
            refuse(f"network.tiers[{i}].count", "clients are dealt by their number")
    server = scenario.aggregation
    edges = server.edge_servers
    if edges is not None:  # which are numbered after all clients
        if scenario.faults is not None:
            refuse("faults", "what befalls an edge server is drawn by its number")
        for key in ("device", "restarts"):
            if getattr(edges, key) is not None:
                refuse(f"aggregation.edge_servers.{key}", "drawn by its number")
    if server.concurrency or getattr(edges, "concurrency", None):
        refuse(
            "aggregation", "who starts next is drawn among all ids, until one is free"
        )
    _refuse_epochs(scenario)
    if scenario.participation.selection.kind in ("poisson", "by-samples"):
        refuse("participation.selection")


def _refuse_epochs(scenario):
    """Take out what lasts the longer the more samples a client owns."""
    why = "samples are dealt anew"
    if scenario.training.local_epochs is not None:
        refuse("training", why)
    parts = check_parts(scenario, files() / "world.yaml", time_only=True)
    method, setting = scenario.method.made, parts.tasks.setting
    for i, group in enumerate(scenario.clients):
        if group.local_epochs is not None:
            refuse(f"clients[{i}].local_epochs", why)
        plans = []
        for samples in (1, 1000):
            who = parts.tasks.who(parts.fleet.first(i))
            own = Who(who.client, who.prototype, who.size, samples)
            plans.append(method.plan(setting, own, 1))
        if plans[0] != plans[1]:
            refuse("method", why)
        device = group.device.assume or group.device
        if str(getattr(device.training, "unit", "")).endswith("/epoch"):
            refuse(f"clients[{i}].device", why)


def split_groups(world):
    """Groups of one client each are what groups of several are."""

    def change(plain):
        plain["clients"] = [
            {**group, "count": 1}
            for group in plain["clients"]
            for _ in range(group.get("count", 1))
        ]

    assert_same(world.play(), world.play(world.changed(change)))


def split_fits(scenario):
    for i, group in enumerate(scenario.clients):
        if group.devices is not None and group.devices.rows == "in-order":
            refuse(f"clients[{i}].devices", "whose rows are dealt within a group")
        for key in ("up", "down", "rate", "latency", "down_latency"):
            source = getattr(getattr(group.link, key), "file", None)
            if isinstance(source, str) and Path(source).is_dir():
                refuse(f"clients[{i}].link.{key}", "whose files are dealt to a group")
    if scenario.client_order != "grouped":
        refuse("client_order", "other ids")


UNFILLED = "7000000000 Gbps"


def _make_uneven(world):
    """The world with devices by whose times nothing happens at the instant of a
    deadline, nor two things at one: a transfer of 1e-15 s would come too late for it.
    """
    plain = world.resolved()
    for group in plain["clients"]:
        device = group["device"] = _scaled(group["device"], {"duration": 1.0371})
        speed = device.get("speed")
        if isinstance(speed, float):  # each client has its own
            ends = {"low": 0.9 * speed, "high": 1.1 * speed}
            device["speed"] = {"uniform": ends}
    return plain


def unlimited(world):
    """A link that says no rate is one of any rate that nobody can fill."""
    plain = _make_uneven(world)
    one = world.play(world.read(copy.deepcopy(plain)), time_only=True)
    places = [(group["link"], ("up", "down")) for group in plain["clients"]]
    places += [(plain["network"]["server"], ("receive", "send"))]
    places += [(tier, ("up", "down")) for tier in plain["network"].get("tiers", ())]
    places += [(edge, ("up", "down")) for edge in plain["network"].get("edges", ())]
    for place, keys in places:
        if place.get("cell") is None:
            for key in keys:
                if place.get(key) is None:
                    place[key] = UNFILLED
    assert_near(one, world.play(world.read(plain), time_only=True), spans=False)


def unlimited_fits(scenario):
    timed_fits(scenario)
    faults = scenario.faults
    if faults is not None and faults.freezes is not None:
        # apps' declared seconds are as they are
        refuse("faults.freezes", "work may end as one begins")
    if faults is not None and faults.stalls is not None:
        refuse("faults.stalls", "what has no rate cannot stall, a tree has more links")


def fat_tree(world):
    """A tree whose links are as wide as need be is a star."""
    plain = _make_uneven(world)
    one = world.play(world.read(copy.deepcopy(plain)), time_only=True)
    tier = {"name": "edge", "count": 1, "up": UNFILLED, "down": UNFILLED}
    plain["network"] |= {"topology": "tree", "tiers": [tier]}
    for cell in plain["network"]["cells"].values():
        cell["at"] = "edge"
    assert_near(one, world.play(world.read(plain), time_only=True), spans=False)


def tree_fits(scenario):
    unlimited_fits(scenario)
    if scenario.network.topology != "star":
        refuse("network")


def plain_loop(world):
    """A server that waits for everybody learns what a loop without a clock learns."""
    from simfed.learn import HostedWorkload, plain_rounds

    run = world.play()
    streams = Streams(world.scenario.seed)
    workload = HostedWorkload(world.scenario, streams, learns=False)
    try:
        rounds = list(plain_rounds(world.scenario, workload, streams))
    finally:
        workload.close()
    arms = [(r.round, client, arm) for r in rounds for client, arm in r.arms.items()]
    assert arms == _tuples(run.participations, "round", "client", "arm")
    tested = [
        (r.round, name, one.accuracy, one.loss)
        for r in rounds
        for name, one in r.outcome.evaluation.items()
    ]
    rows = run.prototypes[run.prototypes["test_loss"].notna()]
    names = "round", "prototype", "test_accuracy", "test_loss"
    assert sorted(tested) == sorted(_tuples(rows, *names))


def _tuples(frame, *names):
    return list(frame[list(names)].itertuples(index=False, name=None))


def with_placeholders(fleet):
    """The scenario whose clients, links, devices and faults are a fleet's."""
    plain = drop_unused(fleet, yaml.safe_load(dump_scenario(fleet)))
    for group in plain["clients"]:
        del group["node_config"]
    learning = {
        "method": "fedavg",
        "rounds": 1,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {APP: {"model": "logistic-regression"}},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "server": {"device": plain["server"]["device"]},
    }
    world = ("name", "seed", "client_order", "clients", "network", "faults")
    plain = {**{key: plain[key] for key in world}, **learning}
    return validate_scenario(plain, source="world", folder=files())


def app_clock(world):
    """The world of an app is written as it was read; its clock runs without Flower."""
    again = world.read(world.resolved())
    assert dump_scenario(again) == dump_scenario(world.scenario)
    options = {"progress": False, "time_only": True, "source": files() / "world.yaml"}
    try:
        run = simfed.run(
            with_placeholders(world.scenario), world.folder / "run", **options
        )
    except RunFailed as error:
        raise Fails(str(error)) from None
    assert not (broken := verify(run.path)), broken
    assert_same(run, simfed.run(with_placeholders(again), **options))


def clock_fits(scenario):
    """What an app charges itself, its placeholder asks of profiles."""
    check_parts(scenario, files() / "world.yaml", time_only=True)


def loop_fits(scenario):
    from simfed.learn.plain import _require_no_clock

    _require_no_clock(scenario)


def loop_only_fits(scenario):
    loop_fits(scenario)
    for i, group in enumerate(scenario.clients):
        if scenario.policy_of_group(group).learns:
            refuse(scenario.policy_key(i), "it learns from seconds")
    if scenario.participation.selection.kind in ("fastest", "oort"):
        refuse("participation.selection", "it goes by seconds")


FITS = {
    recorded: recorded_fits,
    looked: looked_fits,
    timed: timed_fits,
    explored: timed_fits,
    deployed: deployed_fits,
    twice_as_fast: fast_fits,
    twice_the_bytes: bytes_fits,
    never_there: never_fits,
    split_groups: split_fits,
    unlimited: unlimited_fits,
    fat_tree: tree_fits,
    plain_loop: loop_only_fits,
    app_clock: clock_fits,
}
"""What refuses (as `InputError`) what a world may not have for a law; none: nothing."""


def _name(*laws, prefix=""):
    return {
        f"{prefix}{law.__name__}": (law, FITS.get(law, lambda scenario: None))
        for law in laws
    }


LAWS: dict[str, tuple[Callable[[World], None], Callable[[Scenario], None]]] = _name(
    verified, resumed, killed, replaced, filled, resolved, in_memory, answered,
    recorded, spread, looked, timed, deployed, explored, twice_as_fast, twice_the_bytes,
    never_there, split_groups, unlimited, fat_tree, plain_loop, app_clock,
)  # fmt: skip
"""Name → the law, and what refuses worlds for it."""
APP_LAWS = _name(
    verified, resolved, in_memory, spread, split_groups, unlimited, fat_tree,
    prefix="app_",
)  # fmt: skip
"""Those of worlds for an app, which is played: they need Flower."""
ALL_LAWS = LAWS | APP_LAWS
CLOCK_ALONE = (
    "explored", "twice_as_fast", "twice_the_bytes", "never_there", "unlimited",
    "fat_tree",
)  # fmt: skip
"""Laws that play no learning, so that models may be heavy."""


# ---- helpers -------------------------------------------------------------------------


def _stop_after(stop):
    def progress(round, time_s, accuracy):
        if round == stop:
            raise KeyboardInterrupt

    return progress


def _copy(folder, to):
    """What a kill at this moment would leave of a folder."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)


_HEARD: list[Callable[[str, Any], None]] = []
"""Who hears of file operations; empty: nobody."""


@cache
def _hear():
    """Have whoever wants to hear of what changes files.

    For good, as hooks cannot be taken out.
    """
    opened = io.open

    def tell(event, arguments):
        if not _HEARD or event not in (
            "open",
            "os.rename",
            "os.mkdir",
            "os.remove",
            "write",
        ):
            return
        if event != "open" or (arguments[2] or 0) & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT
        ):
            _HEARD[0](event, arguments)

    def open_heard(path, mode="r", *more, **named):
        file = opened(path, mode, *more, **named)
        if not set(mode) & set("wxa+"):
            return file
        write = file.write

        def write_in_two(content):
            half = len(content) // 2 if _HEARD else 0
            if half:
                write(content[:half])
                file.flush()
                tell("write", (path,))
            return half + write(content[half:])

        file.write = write_in_two
        return file

    io.open = builtins.open = open_heard
    sys.addaudithook(tell)


@contextmanager
def _at_operation(at, below, do, often=False):
    """Meanwhile do something at one of the operations on files below a folder, or from
    it on.
    """
    _hear()
    left = at

    def hear(event, arguments):
        nonlocal left
        if str(arguments[0]).startswith(str(below)) and below.exists():
            left -= 1
            if left == 0 and not often:
                heard.clear()
            if left == 0 or (often and left < 0):
                do(event)

    heard = _HEARD
    heard.append(hear)
    try:
        yield
    finally:
        heard.clear()


_QUANTITY = re.compile(r"([-+.\de]+) (s|ms|B/s|kbps|Mbps|B)")
_KIND = {
    **dict.fromkeys(("s", "ms"), "duration"),
    **dict.fromkeys(("B/s", "kbps", "Mbps"), "rate"),
}


def _scaled(plain, factors):
    """Quantities with units times the factor of their kind.

    Speeds go with durations.
    """
    if isinstance(plain, dict):
        faster = "duration" in factors and "assume" in plain
        plain = {
            at: one if at == "assume" else _scaled(one, factors)
            for at, one in plain.items()
        }
        if faster:
            plain["speed"] = _times(plain["speed"], 1 / factors["duration"])
        return plain
    if isinstance(plain, list):
        return [_scaled(one, factors) for one in plain]
    if isinstance(plain, str) and (found := _QUANTITY.fullmatch(plain)):
        factor = factors.get(_KIND.get(found[2], "size"), 1.0)
        return f"{float(found[1]) * factor!r} {found[2]}"
    return plain


def _times(value, factor):
    """A speed, or all amounts of its distribution, times a factor."""
    if isinstance(value, dict):
        names = ("median", "mean", "low", "high", "sd", "minimum", "values")
        return {
            key: _times(one, factor) if key in names or isinstance(one, dict) else one
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_times(one, factor) for one in value]
    return value * factor


def _refuse_files(scenario):
    """Raises: `InputError` for a link, device or presence that a file says."""

    def walk(node, where):
        if isinstance(node, dict):
            if node.get("file") or node.get("column") or node.get("trace") is not None:
                yield where
            for key, one in node.items():
                yield from walk(one, f"{where}.{key}")
        elif isinstance(node, list):
            for at, one in enumerate(node):
                yield from walk(one, f"{where}[{at}]")

    dumped = scenario.model_dump(mode="json")
    for part in ("network", "clients", "faults"):
        for where in walk(dumped.get(part), part):
            refuse(where)


# ---- one law of one world ------------------------------------------------------------


def draw(law, rng):
    """A world for a law. Raises: `worlds.NoWorld`."""
    root = FleetFile if law.startswith("app_") else Scenario
    return read(
        law, worlds.Drawing(rng, learns=law not in CLOCK_ALONE, root=root).world()
    )


def read(law, plain):
    """A written world for a law, without what does not fit.

    Raises: `worlds.NoWorld`.
    """
    learns, fits = law not in CLOCK_ALONE, ALL_LAWS[law][1]

    def read_app(plain):
        fleet = worlds.read_fleet(plain, files())
        fits(with_placeholders(fleet))
        return fleet

    def read_fitting(plain):
        scenario = worlds.read_world(plain, files(), learns=learns)
        fits(scenario)
        return scenario

    if law.startswith("app_"):
        return AppWorld(plain, worlds.mend_world(plain, read_app), Path())
    return World(plain, worlds.mend_world(plain, read_fitting), Path(), learns)


def obey(law, world):
    """Play a world under a law.

    Raises: `Broken` from what breaks it; `Fails`, `Unfit` where it says nothing.
    """
    with tempfile.TemporaryDirectory(prefix="simfed-law-") as folder, _at_most():
        world.folder = Path(folder)
        try:
            ALL_LAWS[law][0](world)
        except (Fails, Unfit):
            raise
        except MemoryError as error:
            raise Busy("no memory is left") from error
        except Exception as error:
            raise Broken(
                law, world.plain, (f"{type(error).__name__}: {error}")
            ) from error


def shrink(broken, until_s):
    """A smaller world that breaks the same law in the same way, or this one.

    Sought until then (`time.monotonic`).
    """
    best, smaller = broken, True
    while smaller:
        smaller = False
        for path in list(_list_parts(best.plain)):
            if time.monotonic() > until_s:
                return best
            found = _break_without(best, path)
            if found is not None:
                best, smaller = found, True
    return best


def _break_without(broken, path):
    """How a world without one of its parts, or with a smaller number there, breaks its
    law; None: it is no smaller world, or breaks nothing like that.
    """
    plain = copy.deepcopy(broken.plain)
    node = plain
    try:
        for step in path[:-1]:
            node = node[step]
        if type(node[path[-1]]) is int:
            node[path[-1]] = max(1, node[path[-1]] // 2)
        else:
            del node[path[-1]]
        if "prototypes" in plain:
            used = {group["prototype"] for group in plain["clients"]}
            plain["prototypes"] = {
                name: plain["prototypes"][name] for name in sorted(used)
            }
        small, large = json.dumps(plain), json.dumps(broken.plain)
        if not plain.get("plugins") and any(
            f'"{part}"' in small for part in worlds.PLUGIN_PARTS
        ):
            return None  # which this process knows, and no other
        world = read(broken.law, plain)
        small = json.dumps(plain)
        if (len(small), small) < (len(large), large):
            obey(broken.law, world)
    except Broken as again:
        return again if again.kind == broken.kind else None
    except (LookupError, TypeError, worlds.NoWorld, Fails, Unfit):
        pass
    return None


def _list_parts(node, path=()):
    """Paths of all that a world may do without, the largest parts first."""
    parts = (
        list(node.items()) if isinstance(node, dict) else list(enumerate(node))[::-1]
    )
    yield from ((*path, key) for key, _ in parts if (*path, key) != ("seed",))
    for key, one in parts:
        if isinstance(one, (dict, list)):
            yield from _list_parts(one, (*path, key))


class Broken(AssertionError):
    """A law that a world breaks: what is wrong, and the command that plays it again."""

    def __init__(self, law, plain, wrong):
        self.law, self.plain = law, copy.deepcopy(plain)
        self.kind = re.sub(r"[^A-Za-z_ ]+.*", "", wrong.split("\n")[0])
        """What is wrong, without its numbers."""
        text = shlex.quote(json.dumps(self.plain))
        super().__init__(f"{wrong}\npython tests/laws/laws.py {law} {text}")


@contextmanager
def _at_most():
    """Raises: `Endless`, `Busy` where the block takes longer than anything does."""

    def stop(signum, _):
        if signum == signal.SIGPROF:
            raise Endless(f"still playing after {LONGEST_S} s of processor time")
        raise Busy(f"still playing after {LONGEST_BUSY_S} s on a busy machine")

    before = {one: signal.signal(one, stop) for one in (signal.SIGALRM, signal.SIGPROF)}
    signal.alarm(LONGEST_BUSY_S)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for one, handler in before.items():
            signal.signal(one, handler)


def draw_many(seeds, laws):
    """Print what is broken by worlds of these seeds, each under one of the laws in
    turn. Whether any is, when it is played again, too.
    """
    counts: Counter[str] = Counter()
    broken = False
    for seed in seeds:
        law = laws[seed % len(laws)]
        try:
            world = draw(law, random.Random(seed))
            obey(law, world)
            counts[f"{law}: obeyed"] += 1
        except (Fails, Unfit, worlds.NoWorld) as error:
            counts[f"{law}: {type(error).__name__}"] += 1
            print(f"-- {seed} {law}: {type(error).__name__}: {error}"[:300], flush=True)
        except Broken as error:
            counts[f"{law}: broken"] += 1
            cause = error.__cause__ or error
            trace = "".join(traceback.format_tb(cause.__traceback__)[-2:])
            print(f"== {seed} {law}\n{trace}{error}\n", flush=True)
            try:
                obey(law, world)
            except Broken as again:
                broken = True
                print(shrink(again, time.monotonic() + SHRUNK_S), flush=True)
            except (Fails, Unfit) as none:
                print(f"== {seed} {law}: not again: {none}", flush=True)
            else:
                print(f"== {seed} {law}: obeyed when it was played again", flush=True)
    print(dict(sorted(counts.items())))
    return broken


def _draw_seeds(seconds):
    """Others each time, until then."""
    began, rng = time.monotonic(), random.SystemRandom()
    while time.monotonic() < began + seconds:
        yield rng.getrandbits(32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("law", nargs="?", choices=[*ALL_LAWS, []])
    parser.add_argument("world", nargs="?", type=json.loads)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--draw", default="0:0")
    parser.add_argument("--fresh", type=float, default=0.0)
    parser.add_argument("--of", default=",".join(LAWS))
    asked = parser.parse_args()
    if asked.law:
        try:
            obey(asked.law, read(asked.law, asked.world))
        except Broken as broken:
            raise shrink(
                broken, time.monotonic() + 600 * asked.shrink
            ) from broken.__cause__
        return
    first, last = map(int, asked.draw.split(":"))
    seeds = chain(range(first, last), _draw_seeds(asked.fresh))
    names = [*APP_LAWS] if asked.of == "apps" else asked.of.split(",")
    sys.exit(draw_many(seeds, names))


if __name__ == "__main__":
    main()
