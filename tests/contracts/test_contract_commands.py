"""Every command that reads a run × every kind of run: done, or one clear sentence.

The commands are those of the command line's own registry whose arguments say that they
are run directories, so that a new one is covered by itself. Runs are made once per
session.
"""

import re
import shutil
from functools import cache

import deploy_worlds
import pytest
import typer.main
import uvicorn
import worlds

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
        "prototype": "a",
        "device": {"profile": "x86-2core-vm", "assume": TIMES},
        "link": {"up": f"{4 / (1 + i)} Mbps", "down": "20 Mbps"},
    }
    for i in range(5)
]
PLAIN = {
    "clients": CLIENTS,
    "training": {"batch_size": 8, "local_steps": 1, "learning_rate": 0.05},
    "compression.k": 400,
    "evaluation.every": 1,
}
FEDKD = {
    "method": "fedkd",
    "dataset.public": 16,
    "policy": {"kind": "ascend", "warmup": 1},
}
BATTERY = {"kind": "battery", "capacity_j": 0.5, "charge_w": 1.0, "work_w": 20.0}
PRIVATE = {"clip": 1.0, "noise": 1.0}

LEARNED = {
    "fedavg": {"participation.clients_per_round": 3},
    "fedkd": FEDKD,
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
    "edges": {
        "network": {"topology": "tree", "tiers": [{"name": "edge", "count": 2}]},
        "aggregation.edge_servers": {"at": "edge", "merges": 2},
    },
    "attacked": {
        "clients[0].attack": "sign-flip",
        "aggregation.rule": {"kind": "krum", "f": 1},
    },
    "personal": {"method": "local-only"},
    "nobody arrives": {"clients[*].failure.upload": 1.0},
    "diverged": {"training.local_steps": 3, "training.learning_rate": 1e30},
}
"""What is different in its scenario."""

MORE = {
    "backdoor": {"clients[0].attack": "backdoor"},
    "prototypes of classes": {"method": "fedproto"},
    "nobody begins": {"clients[*].failure.download": 1.0},
    "nobody in time": {"aggregation": {"mode": "deadline", "deadline": "1 ms"}},
    "diverged distillation": {**FEDKD, "training.learning_rate": 1e30},
    "empty cohorts": {
        "participation": {"clients_per_round": 1, "selection": "poisson"}
    },
    "batteries": {"clients[*].availability": {**BATTERY, "charges_from": "00:00"}},
    "faults": {
        "rounds": 4,
        "faults.messages": {"lost": 0.3, "tries": 2},
        "faults.restarts": {"between": "0.2 s", "lasts": "1 ms"},
    },
    "overlap": {"clients[*].overlap.chunks": 2},
}
NEEDS_ACCOUNTANT = {
    "private clients": {"privacy": {"level": "client", **PRIVATE}},
    "private samples": {"privacy": {"level": "sample", **PRIVATE}},
}
FREE = {
    "clients[*].device.assume": dict.fromkeys(TIMES, "0 s"),
    "clients[*].link": {},
}


def play(folder, changes=PLAIN, **options):
    worlds.play(worlds.world("tiny", {**PLAIN, **changes}), folder, **options)


SAVED = {"rounds": 3, "checkpoint.every": 1}


def stopped(folder, at):
    def stop(round, *_):
        if round == at:
            raise KeyboardInterrupt

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        play(folder, SAVED, progress=stop)


def killed(folder):
    """What lies there at an instant is what SIGKILL leaves."""
    whole = folder.with_name("whole")

    def look(round, *_):
        if round == 2:
            shutil.copytree(whole, folder)

    play(whole, SAVED, progress=look)


def resumed(folder):
    stopped(folder, 1)
    play(folder, SAVED, resume=True)


def replayed(folder):
    store = TrajectoryStore(folder.with_name("kept"))
    for out in (None, folder):
        play(out, SAVED, trajectories=store)


def deployed(folder):
    made = deploy_worlds.scenario(
        method="fedavg",
        rounds=2,
        prototypes={"only": {"model": "logistic-regression"}},
        clients=[{"count": 3, "prototype": "only", "device": "x86-2core-vm"}],
    )
    deploy_worlds.deployed(made, out=folder)


KINDS = {
    "time-only": lambda folder: play(folder, time_only=True),
    "resumed": resumed,
    "replayed": replayed,
    "deployed": deployed,
    "interrupted": lambda folder: stopped(folder, 2),
    "interrupted before a round": lambda folder: stopped(folder, 1),
    "killed": killed,
    "free": lambda folder: play(folder, FREE, time_only=True),
    **{
        name: lambda folder, changes=changes: play(folder, changes)
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
    "explore": ["--no-browser"],
    "timeline": ["--out", "a.json.gz"],
    "export": ["--to", "csv", "--out", "a.csv"],
    "report": ["--out", "a.html"],
    "calibrate fit": ["--out", "a.yaml"],
}
"""What a command is also told; nothing, where it stands not here."""

SLOW_OPTIONS = {
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
    assert {"verify", "compare", *OPTIONS, *SLOW_OPTIONS} <= set(READERS)


@pytest.mark.parametrize(
    "kind",
    [
        *(kind for kind in KINDS if kind not in {*LATER, *NEEDS_ACCOUNTANT}),
        *(pytest.param(kind, marks=pytest.mark.privacy) for kind in NEEDS_ACCOUNTANT),
    ],
)
@pytest.mark.parametrize("command", sorted(set(READERS) - {"report"}))
def test_a_command_is_done_or_says_why_not(command, kind, run_of, capsys, tmp_path):
    check(command, OPTIONS.get(command, []), run_of(kind), capsys, tmp_path)


@pytest.mark.parametrize("kind", ["fedavg", "diverged", "nobody arrives"])
def test_a_report_is_done(kind, run_of, capsys, tmp_path):
    assert check("report", OPTIONS["report"], run_of(kind), capsys, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in NEEDS_ACCOUNTANT]
)
@pytest.mark.parametrize("command", sorted(READERS))
def test_all_that_a_command_does_is_done_or_says_why_not(
    command, kind, run_of, capsys, tmp_path
):
    quick = kind in LATER or command == "report"
    for options in quick * [OPTIONS.get(command, [])] + SLOW_OPTIONS.get(command, []):
        check(command, options, run_of(kind), capsys, tmp_path)


@pytest.mark.parametrize("kind", ["time-only", "killed"])
def test_going_on_is_done_or_says_why_not(kind, run_of, capsys, tmp_path):
    folder = shutil.copytree(run_of(kind), tmp_path / "run")
    words = ["run", str(folder / "scenario.yaml"), "--resume", "--out", str(folder)]
    code = main([*words, "--quiet", "--no-figures"])
    told = capsys.readouterr().err
    assert (code == 0) == (kind == "killed")
    assert code == 0 or re.fullmatch(r"simfed: [^\n]+\n", told)
