"""Whatever stands in a file that simfed reads: success, or a sentence."""

import os
import resource
import shutil
import signal
import traceback

import pytest
import readers

from simfed import SimfedError
from simfed.cli import main

COUNT = int(os.environ.get("SIMFED_FUZZ_INPUTS", "12000"))
"""Inputs in one process, and one in 160 of them through the command line."""
LIMIT_S, LIMIT_BYTES = 10, 2 << 30


class Slow(BaseException):
    pass


def too_slow(*_):
    raise Slow


def outcome(read, path):
    """None, or what is wrong with how the reader took it."""
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        read(path)
    except SimfedError as error:
        said = [*map(str, getattr(error, "errors", [error]))]
        return str(said) if not said or any(map(bad_sentence, said)) else None
    except (Exception, Slow):
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def bad_sentence(text):
    return not text or "\n" in text or "Traceback" in text or len(text) > 10_000


def read_all(good, into, kind, count, read=None, first=0):
    """Number → what is wrong with how an input was taken."""
    for name in ("up.csv", "there.csv", "profile.yaml", "scenario.yaml"):
        shutil.copy(good / name, into)  # which scenarios and studies name
    before, failures = signal.signal(signal.SIGPROF, too_slow), {}
    try:
        for number in range(first, first + count):
            path = readers.made(kind, number, good, into)
            wrong = outcome(read or readers.KINDS[kind][1], path)
            if wrong is not None:
                failures[number] = wrong
        return failures
    finally:
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("kind", readers.KINDS)
def test_good_one_is_read(good, kind):
    name, read, _, _ = readers.KINDS[kind]
    read(good / name)


@pytest.mark.parametrize("kind", readers.KINDS)
def test_few_mutations_of_each_kind(good, tmp_path, kind):
    assert read_all(good, tmp_path, kind, 10) == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", readers.KINDS)
def test_mutations_are_read_or_refused_in_a_sentence(good, tmp_path, kind):
    before = most_bytes()  # of tests before this one in the process
    count = round(COUNT * readers.KINDS[kind][2])
    assert read_all(good, tmp_path, kind, count) == {}
    assert most_bytes() <= max(before, LIMIT_BYTES)


def most_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def scenario_beside(path):
    return ["validate", str(path.with_name("scenario.yaml"))]


FIT = ["calibrate", "fit", "--name", "x", "--out", os.devnull]
COMMANDS = {
    "scenario": lambda path: ["validate", "--resolved", str(path)],
    "profile": scenario_beside,
    "measured": lambda path: [*FIT, str(path)],
    "csv trace": scenario_beside,
    "run": lambda path: ["verify", str(path)],
}


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
def test_command_line_says_a_sentence_and_exits_with_1_2_or_3(
    good, tmp_path, kind, capsys
):
    def command(path):
        code = main(COMMANDS[kind](path))
        said = "".join(capsys.readouterr())
        assert code in (0, 1, 2, 3)
        assert "Traceback" not in said
        assert code == 0 or said.strip()

    count = COUNT // 160 // len(COMMANDS)
    assert read_all(good, tmp_path, kind, count, command, 1_000_000) == {}
