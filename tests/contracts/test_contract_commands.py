"""Every command that reads a run × every kind of run: done, or one clear sentence.

The commands are those of the command line's own registry whose arguments say that they
are run directories, so that a new one is covered by itself. Runs are made once per
session.
"""

from __future__ import annotations

import re
import shutil
from functools import cache

import deploy_worlds
import pytest
import typer.main
import uvicorn

import simfed
from simfed import Interrupted
from simfed.cli import main
from simfed.cli.app import app
from simfed.replay import TrajectoryStore

TIMES = {
    "training": "5 ms",
    "private": "9 ms",
    "compression": "1 ms",
    "decompression": "1 ms",
}
CLIENTS = [
    {
        "prototype": "only",
        "device": {"profile": "x86-2core-vm", "assume": TIMES},
        "link": {"up": f"{4 / (1 + i)} Mbps", "down": "20 Mbps"},
    }
    for i in range(5)
]
PUBLIC = {"name": "mnist-mini", "public": 16}


def scenario(**changes):
    return {
        "name": "kind",
        "rounds": 2,
        "method": "fedavg",
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"only": {"model": "logistic-regression"}},
        "clients": CLIENTS,
        "training": {"batch_size": 8, "local_steps": 1, "learning_rate": 0.05},
        "compression": {"k": 400},
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "evaluation": {"every": 1},
        **changes,
    }


def every_client(**changes):
    return {"clients": [{**client, **changes} for client in CLIENTS]}


def fedkd(**training):
    steps = {"batch_size": 8, "local_steps": 1, **training}
    return {
        "method": "fedkd",
        "dataset": PUBLIC,
        "policy": {"kind": "ascend", "warmup": 1},
        "training": steps,
    }


ATTACKED = [{**CLIENTS[0], "attack": "sign-flip"}, *CLIENTS[1:]]
MARKED = [{**CLIENTS[0], "attack": {"kind": "backdoor"}}, *CLIENTS[1:]]
EDGES = {
    "network": {"topology": "tree", "tiers": [{"name": "edge", "count": 2}]},
    "aggregation": {"edge_servers": {"at": "edge", "merges": 2}},
}
BATTERY = {"kind": "battery", "capacity_j": 0.5, "charge_w": 1.0, "work_w": 20.0}
RESTARTS = {
    "messages": {"lost": 0.3, "tries": 2},
    "restarts": {"between": "0.2 s", "lasts": "1 ms"},
}
FREE = {"assume": dict.fromkeys(TIMES, "0 s"), "profile": "x86-2core-vm"}
PRIVATE = {"clip": 1.0, "noise": 1.0}

LEARNED = {
    "fedavg": {"participation": {"clients_per_round": 3}},
    "fedkd": fedkd(),
    "asynchronous": {
        "method": "fedasync",
        "rounds": 4,
        "aggregation": {"mode": "asynchronous", "concurrency": 3},
    },
    "buffered": {
        "method": "fedbuff",
        "aggregation": {"mode": "buffered", "buffer": 2, "concurrency": 3},
    },
    "deadline": {
        "aggregation": {"mode": "deadline", "deadline": "30 ms", "late": "merge"}
    },
    "edges": EDGES,
    "attacked": {
        "clients": ATTACKED,
        "aggregation": {"rule": {"kind": "krum", "f": 1}},
    },
    "personal": {"method": "local-only"},
    "nobody arrives": every_client(failure={"upload": 1.0}),
    "diverged": {
        "training": {"batch_size": 8, "local_steps": 3, "learning_rate": 1e30}
    },
}
"""The rest of its scenario."""

MORE = {
    "backdoor": {"clients": MARKED},
    "prototypes of classes": {"method": "fedproto"},
    "nobody begins": every_client(failure={"download": 1.0}),
    "nobody in time": {"aggregation": {"mode": "deadline", "deadline": "1 ms"}},
    "diverged distillation": fedkd(learning_rate=1e30),
    "empty cohorts": {
        "participation": {"clients_per_round": 1, "selection": "poisson"}
    },
    "batteries": every_client(availability={**BATTERY, "charges_from": "00:00"}),
    "faults": {"rounds": 4, "faults": RESTARTS},
    "overlap": every_client(overlap={"chunks": 2}),
}
NEEDS_ACCOUNTANT = {
    "private clients": {"privacy": {"level": "client", **PRIVATE}},
    "private samples": {"privacy": {"level": "sample", **PRIVATE}},
}


def stopped(folder, at, why=KeyboardInterrupt):
    def stop(round, *_):
        if round == at:
            raise why

    with pytest.raises((Interrupted, why)):
        play(folder, checkpoint={"every": 1}, rounds=3, progress=stop)


def killed(folder, at):
    """What lies there at an instant is what SIGKILL leaves."""

    def look(round, *_):
        if round == at:
            shutil.copytree(folder.with_name("whole"), folder)

    play(folder.with_name("whole"), rounds=3, progress=look, checkpoint={"every": 1})


def resumed(folder):
    stopped(folder, 1)
    play(folder, checkpoint={"every": 1}, rounds=3, resume=True)


def replayed(folder):
    store = TrajectoryStore(folder.with_name("kept"))
    play(None, rounds=3, trajectories=store)
    play(folder, rounds=3, trajectories=store, checkpoint={"every": 1})


def deployed(folder):
    one = {"only": {"model": "logistic-regression"}}
    clients = [{"count": 3, "prototype": "only", "device": "x86-2core-vm"}]
    made = deploy_worlds.scenario(
        method="fedavg", rounds=2, prototypes=one, clients=clients
    )
    deploy_worlds.deployed(made, out=folder)


def play(
    folder,
    *,
    progress=False,
    time_only=False,
    resume=False,
    trajectories=None,
    **changes,
):
    options = {"time_only": time_only, "resume": resume, "progress": progress}
    simfed.run(
        scenario(**changes), folder, workers=1, trajectories=trajectories, **options
    )


KINDS = {
    "time-only": lambda folder: play(folder, time_only=True),
    "resumed": resumed,
    "replayed": replayed,
    "deployed": deployed,
    "interrupted": lambda folder: stopped(folder, 2),
    "interrupted before a round": lambda folder: stopped(folder, 1),
    "killed": lambda folder: killed(folder, 2),
    "free": lambda folder: play(
        folder, time_only=True, **every_client(device=FREE, link={})
    ),
    **{
        name: lambda folder, changes=changes: play(folder, **changes)
        for name, changes in {**LEARNED, **MORE, **NEEDS_ACCOUNTANT}.items()
    },
}
LATER = {*MORE, "free", "interrupted"}
"""Kinds of which the long tests alone are told."""


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    @cache
    def make(kind):
        folder = tmp_path_factory.mktemp("kind") / "run"
        KINDS[kind](folder)
        return folder

    return make


def commands_of(command, name=()):
    """(name, command) of each that does something."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, (*name, part))
    if not hasattr(command, "commands"):
        yield name, command


def words_for_runs(command):
    """The arguments and options of a command that are run directories: what stands
    before each.
    """
    for word in command.params:
        is_run = (word.metavar or "").startswith("RUN") or (word.help or "").startswith(
            ("Run directory,", "Run directory.")
        )
        if is_run and word.param_type_name == "argument":
            yield []
        elif is_run and word.metavar == "RUN":
            yield [word.opts[0]]


READERS = {
    " ".join(name): words
    for name, command in commands_of(typer.main.get_command(app))
    if (words := list(words_for_runs(command)))
}
"""Command → what stands before each run directory that it reads."""

OPTIONS = {
    "explore": [["--no-browser"]],
    "timeline": [["--out", "a.json.gz"]],
    "export": [["--to", "csv", "--out", "a.csv"]],
    "report": [["--out", "a.html"]],
    "calibrate fit": [["--out", "a.yaml"]],
}
"""What a command is also told; nothing, where it stands not here."""

SLOW_OPTIONS = {
    "explore": [["--no-browser"]],
    "timeline": [["--out", "a.png"], ["--out", "a.html"]],
    "compare": [["--out", "a.html"]],
    "verify": [["--recompute"]],
    "export": [["--to", "tensorboard"], ["--to", "mlflow"]],
}
NO_NUMBER = re.compile(r"\b(nan|NaN|None|inf|Infinity)\b")


def check(command, options, folder, capsys, into):
    words = [word for before in READERS[command] for word in (*before, str(folder))]
    paths = [str(into / word) if word.startswith("a.") else word for word in options]
    code = main([*command.split(), *words, *paths])
    told = capsys.readouterr()
    assert code in (0, 1, 2), told.err
    if code:
        assert re.fullmatch(r"simfed: [^\n]+\n", told.err), told.err
    texts = [told.out, told.err]
    for file in into.glob("a.*"):
        if file.suffix in (".html", ".csv", ".yaml"):
            texts.append(
                re.sub(r"(?s)<(script|style).*?</\1>", "", file.read_text("utf-8"))
            )
    for text in texts:
        match = NO_NUMBER.search(text)
        assert match is None, text[max(0, match.start() - 80) : match.end() + 40]
    return code


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch):
    """The page of `explore` is made, and its server ends at once."""
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)


def test_the_readers_of_runs_are_known_by_their_arguments():
    assert {
        "verify",
        "timeline",
        "report",
        "compare",
        "export",
        "calibrate fit",
    } <= set(READERS)
    assert set(OPTIONS) | set(SLOW_OPTIONS) <= set(READERS)


def marked(kind):
    return [pytest.mark.privacy] if kind in NEEDS_ACCOUNTANT else []


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marked(kind)) for kind in KINDS if kind not in LATER],
)
@pytest.mark.parametrize("command", sorted(set(READERS) - {"report"}))
def test_a_command_is_done_or_says_why_not(command, kind, run_of, capsys, tmp_path):
    for options in OPTIONS.get(command, [[]]):
        check(command, options, run_of(kind), capsys, tmp_path)


@pytest.mark.parametrize("kind", ["fedavg", "diverged", "nobody arrives"])
def test_a_report_is_done(kind, run_of, capsys, tmp_path):
    assert check("report", OPTIONS["report"][0], run_of(kind), capsys, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in NEEDS_ACCOUNTANT]
)
@pytest.mark.parametrize("command", sorted(READERS))
def test_all_that_a_command_does_is_done_or_says_why_not(
    command, kind, run_of, capsys, tmp_path
):
    quick = OPTIONS.get(command, [[]]) if kind in LATER or command == "report" else []
    for options in [*quick, *SLOW_OPTIONS.get(command, [])]:
        check(command, options, run_of(kind), capsys, tmp_path)


@pytest.mark.parametrize("kind", ["time-only", "killed"])
def test_going_on_is_done_or_says_why_not(kind, run_of, capsys, tmp_path):
    folder = shutil.copytree(run_of(kind), tmp_path / "run")
    words = [
        "run",
        str(folder / "scenario.yaml"),
        "--resume",
        "--out",
        str(folder),
        "--quiet",
    ]
    code = main([*words, "--no-figures"])
    told = capsys.readouterr().err
    assert (code == 0) == (kind == "killed")
    assert code == 0 or re.fullmatch(r"simfed: [^\n]+\n", told)
