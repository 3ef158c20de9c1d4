"""Whatever stands in a file that simfed reads: success, or a sentence."""

import os
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path

import pytest
import readers

from simfed import InputErrors, SimfedError

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
    except InputErrors as several:
        if not several.errors:
            return "no sentence"
        return next((s for s in map(str, several.errors) if bad_sentence(s)), None)
    except SimfedError as error:
        return str(error) if bad_sentence(str(error)) else None
    except Slow:
        return f"more than {LIMIT_S} s"
    except Exception:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def bad_sentence(text):
    return not text or "\n" in text or "Traceback" in text or len(text) > 10_000


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return readers.corpus(tmp_path_factory.mktemp("good") / "good")


def beside(good, into):
    """What scenarios and studies name."""
    for name in ("up.csv", "there.csv", "profile.yaml", "scenario.yaml"):
        shutil.copy(good / name, into)


def read_all(good, into, kind, count):
    beside(good, into)
    before = signal.signal(signal.SIGPROF, too_slow)
    try:
        failures = {}
        for number in range(count):
            path = readers.made(kind, number, good, into)
            wrong = outcome(readers.KINDS[kind][1], path)
            if wrong is not None:
                failures[number] = wrong
        return failures
    finally:
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("kind", readers.KINDS)
def test_a_good_one_is_read(good, kind):
    name, read, _, _ = readers.KINDS[kind]
    read(good / name)


@pytest.mark.parametrize("kind", readers.KINDS)
def test_a_few_mutations_of_each_kind(good, tmp_path, kind):
    assert read_all(good, tmp_path, kind, 10) == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", readers.KINDS)
def test_mutations_are_read_or_refused_in_a_sentence(good, tmp_path, kind):
    before = most_bytes()  # of tests before this one in the process
    failures = read_all(good, tmp_path, kind, round(COUNT * readers.KINDS[kind][2]))
    first = next(iter(failures.items()), None)
    assert first is None, f"{len(failures)} inputs, first: {first[0]}\n{first[1]}"
    assert most_bytes() <= max(before, LIMIT_BYTES)


def most_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def data_bytes():
    """What this process holds already: a child begins with what earlier tests left."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData")
    )


COMMANDS = {
    "scenario": lambda path: ["validate", "--resolved", str(path)],
    "profile": lambda path: ["validate", str(path.with_name("scenario.yaml"))],
    "measured": lambda path: [
        "calibrate",
        "fit",
        str(path),
        "--name",
        "x",
        "--out",
        os.devnull,
    ],
    "csv trace": lambda path: ["validate", str(path.with_name("scenario.yaml"))],
    "run": lambda path: ["verify", str(path)],
}


def in_a_child(arguments, cwd):
    """Exit code and what was said, of the command line in a forked process that may
    take so much more memory, for so long.
    """
    out = cwd / "said"
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.chdir(cwd)
            fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + LIMIT_BYTES,) * 2)
            from simfed.cli import main

            code = main(arguments) or 0
            sys.stdout.flush()
            sys.stderr.flush()
        except SystemExit as ends:
            code = ends.code if isinstance(ends.code, int) else 98
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), out.read_text(errors="replace")


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
def test_the_command_line_says_a_sentence_and_exits_with_1_2_or_3(good, tmp_path, kind):
    import simfed.cli.app  # noqa: F401 - once, before the forks

    beside(good, tmp_path)
    for number in range(COUNT // 160 // len(COMMANDS)):
        path = readers.made(kind, 1_000_000 + number, good, tmp_path)
        code, said = in_a_child(COMMANDS[kind](path), tmp_path)
        assert code in (0, 1, 2, 3), f"input {number}: exit code {code}\n{said}"
        assert "Traceback" not in said, f"input {number}\n{said}"
        assert code == 0 or said.strip(), f"input {number}: nothing was said"
