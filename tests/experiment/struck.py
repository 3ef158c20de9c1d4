"""Strikes a run or a study at one of its file operations: SIGKILL, or a disk that is full from
there.

A process of its own (`python struck.py MODE FOLDER CASE:HOW:FIRST:EVERY …`), which forks one child
for each operation in turn: nothing of torch or of pytest may run before a fork. An operation is
whatever makes, changes, renames or deletes a file or a folder below the folder at stake, and each
piece that is written into a file, of which a kill leaves half. Prints one JSON line for each child
struck: the operation, and what came of going on.
"""

import builtins
import errno
import io
import json
import os
import shutil
import signal
import sys
import traceback
from concurrent.futures import Future
from pathlib import Path

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.utime"}
NEEDS_SPACE = {"open", "os.mkdir", "write", "arrays", "table"}


class Strike:
    """Counts the file operations below a folder and strikes at one of them."""

    def __init__(self, below, at, how, tell):
        self.below = os.path.realpath(below)
        self.at, self.how, self.tell = at, how, tell
        self.count = 0
        self.on = True

    def install(self):
        """In this process, for good."""
        import pyarrow.parquet as pq
        import safetensors.numpy

        strike, real_save, real_open = self, safetensors.numpy.save_file, io.open

        def save_file(arrays, path, metadata=None):  # not Python's file operations, so not heard
            half = Path(path).with_name(".tmpHalf")  # what safetensors writes first
            strike.operation("arrays", path, lambda: half.write_bytes(b"half"))
            return real_save(arrays, path, metadata)

        class ParquetWriter(pq.ParquetWriter):
            def __init__(self, path, *arguments, **options):
                strike.operation("table", path)
                self.struck_path = path
                super().__init__(path, *arguments, **options)

            def write_table(self, *arguments, **options):
                strike.operation("table", self.struck_path)
                super().write_table(*arguments, **options)

        def struck_open(path, mode="r", *arguments, **options):
            file = real_open(path, mode, *arguments, **options)
            if set(mode) & set("wxa+") and strike.is_below(path):
                write = file.write

                def in_two(content):
                    half = len(content) // 2
                    strike.operation("write", path, lambda: (write(content[:half]), file.flush()))
                    return write(content)

                file.write = in_two
            return file

        safetensors.numpy.save_file = save_file
        pq.ParquetWriter = ParquetWriter
        io.open = builtins.open = struck_open
        sys.addaudithook(self.hear)

    def hear(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not flags & WRITES:
                return
        elif event in EVENTS:
            path = arguments[0]
            directory = arguments[-1]
            if event in ("os.remove", "os.rmdir") and directory not in (-1, None):
                path = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), os.fsdecode(path))
        else:
            return
        self.operation(event, path)

    def is_below(self, path):
        where = os.path.realpath(os.fsdecode(path))
        return where == self.below or where.startswith(self.below + os.sep)

    def operation(self, kind, path, before=lambda: None):
        if not self.on or not self.is_below(path):
            return
        self.count += 1
        if self.count < self.at or (self.count > self.at and self.how == "kill"):
            return
        if self.count == self.at:
            self.on = False
            short = os.path.relpath(os.path.realpath(os.fsdecode(path)), self.below)
            os.write(self.tell, f"{kind} {short}\n".encode())
            if self.how == "kill":
                before()
                os.kill(os.getpid(), signal.SIGKILL)
            self.on = True
        if kind in NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(path))


def in_a_child(action, strike_of=None):
    """What `action()` came to, in a forked child: (what it gave, what struck it)."""
    read, write = os.pipe()
    tell_read, tell_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.close(tell_read)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            if strike_of is not None:
                strike_of(tell_write).install()
            told = attempt(action)
        except BaseException:
            told = {"traceback": traceback.format_exc()}
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    os.close(tell_write)
    with os.fdopen(read, "rb") as file, os.fdopen(tell_read, "rb") as told_file:
        told, struck = file.read(), told_file.read()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    return {"killed": True} if killed else json.loads(told), struck.decode().strip()


def attempt(action):
    from simfed.ground.errors import SimfedError

    try:
        return {"fingerprint": action()}
    except SimfedError as error:
        return {"sentence": str(error)}


# ---- what is struck ------------------------------------------------------------------------------

TINY = """
name: tiny
rounds: 3
dataset: {name: mnist-mini, public: 16}
prototypes: {small: {model: lenet5-half}}
clients:
  - {count: 2, prototype: small, device: rtx3090-ryzen4800h,
     link: {up: {file: up.csv, format: csv, end: hold}}}
training: {batch_size: 4}
compression: {k: 50}
policy: {kind: uniform, strategy: random-k}
safeguard: {rollback: null}
evaluation: {every: 3}
checkpoint: {every: 1}
"""


def play(scenario, out, stop_after=None, **options):
    """The fingerprint of a run of the scenario file; stopped after a round, its sentence."""
    import simfed

    def stop(round, simulated_s, accuracy):
        if round == stop_after:
            raise KeyboardInterrupt

    loaded = simfed.load_scenario(scenario)
    progress = stop if stop_after else False
    result = simfed.run(
        loaded,
        out,
        source=scenario,
        workers=1,
        progress=progress,
        time_only=MODE == "time-only",
        **options,
    )
    return result.fingerprint


class Case:
    """A command, a folder to give it in, and what has to be true after it was struck."""

    def __init__(self, folder):
        self.folder = folder
        self.scenario = folder / "tiny.yaml"
        self.scenario.write_text(TINY)
        (folder / "other.yaml").write_text(TINY + "seed: 5\n")
        (folder / "up.csv").write_text("0,20\n0.01,5\n")
        self.start = folder / "start"
        self.prepare()
        self.expected, _ = in_a_child(lambda: play(self.scenario, folder / "expected"))

    def prepare(self):
        """Make `start`, of which each child gets a copy; nothing by default."""

    def command(self, out):
        return play(self.scenario, out)

    def after(self, out):
        """What went wrong with going on, as a dict; empty if nothing did."""
        again = copied(out, out.with_name("again"))
        resumed, _ = in_a_child(lambda: play(self.scenario, out, resume=True))
        plain, _ = in_a_child(lambda: play(self.scenario, again))
        wrong = {}
        if resumed != self.expected:
            wrong["resumed"] = resumed
        if plain != self.expected and "--resume goes on" not in plain.get("sentence", ""):
            wrong["plain"] = plain
        return wrong | left_over(out)


class GoingOn(Case):
    def prepare(self):
        in_a_child(lambda: play(self.scenario, self.start, stop_after=3))

    def command(self, out):
        return play(self.scenario, out, resume=True)


class Overwriting(Case):
    def prepare(self):
        self.old, _ = in_a_child(lambda: play(self.folder / "other.yaml", self.start))
        (self.start / "notes.txt").write_text("mine")

    def command(self, out):
        return play(self.scenario, out, overwrite=True)

    def after(self, out):
        again = copied(out, out.with_name("again"))
        resumed, _ = in_a_child(lambda: play(self.scenario, out, resume=True))
        wrong = {}
        if resumed != self.expected:
            back, _ = in_a_child(lambda: sound(out))
            if back != self.old or "the scenario that this run began with" not in resumed.get(
                "sentence", ""
            ):
                wrong |= {"resumed": resumed, "old": back}
        replaced, _ = in_a_child(lambda: play(self.scenario, again, overwrite=True))
        if replaced != self.expected:
            wrong["overwritten"] = replaced
        for folder in (out, again):
            if (folder / "notes.txt").read_text() != "mine":
                wrong["notes"] = "gone"
        return wrong | left_over(again)


class Study(Case):
    """Two runs of a study that learn the same, the second one answered from the trajectories."""

    def prepare(self):
        grid = "grid: {'clients[*].link.latency': [0 ms, 10 ms]}\n"
        (self.folder / "study.yaml").write_text(f"name: study\nbase: tiny.yaml\n{grid}")

    def command(self, out):
        return play_study(self.folder / "study.yaml", out)

    def __init__(self, folder):
        super().__init__(folder)
        self.expected, _ = in_a_child(lambda: self.command(folder / "expected-study"))

    def after(self, out):
        again, _ = in_a_child(lambda: self.command(out))
        for run in (out / "runs").iterdir():
            # of whoever was killed when its run was finished: it locks nobody
            (run / ".lock").unlink(missing_ok=True)
        return ({"again": again} if again != self.expected else {}) | left_over(out / "runs")


def play_study(path, out):
    from simfed.replay import TrajectoryStore
    from simfed.study import drive

    drive.Processes = Inline
    result = drive.run_study(
        path,
        out,
        progress=False,
        time_only=MODE == "time-only",
        trajectories=TrajectoryStore(out / "cache") if MODE == "full" else False,
    )
    return "".join(run.fingerprint for _, run in result.finished)


class Inline:
    """A place that does every run at once, here."""

    def __init__(self, jobs, device):
        pass

    def slots(self):
        return 1

    def submit(self, function, job):
        future = Future()
        future.set_result(function(job))
        return future

    def end(self, future):
        return future.result()

    def close(self):
        pass


def sound(out):
    """The fingerprint of a finished run that `verify` has nothing against."""
    import simfed
    from simfed.verify.invariants import verify

    broken = verify(out)
    return simfed.load_run(out).fingerprint if not broken else "; ".join(broken)


def left_over(out):
    """What should not be in a finished run's folder."""
    names = [p.name for p in out.rglob("*") if p.name.startswith(".") or p.name == "segments"]
    return {"left": names} if names else {}


def copied(folder, to):
    shutil.rmtree(to, ignore_errors=True)
    if folder.exists():
        shutil.copytree(folder, to)
    return to


CASES = {"begin": Case, "go-on": GoingOn, "overwrite": Overwriting, "study": Study}


def warm_up(mode):
    """Import and read here what every child would; nothing that starts a thread."""
    from importlib import import_module

    from simfed.replay.key import digest_named_data

    modules = [
        "pyarrow.parquet",
        "safetensors.numpy",
        "simfed.experiment.running",
        "simfed.net",
        "simfed.sim",
        "simfed.verify.invariants",
        "simfed.study.results",
    ]
    for name in modules if mode == "time-only" else [*modules, "simfed.learn.hosted"]:
        import_module(name)
    if mode == "full":
        import torch

        torch.set_num_threads(1)
    digest_named_data("mnist-mini")


def main(mode, folder, *jobs):
    global MODE
    MODE = mode
    warm_up(mode)
    for job in jobs:
        name, how, first, every = job.split(":")
        place = Path(folder) / f"{name}-{how}"
        place.mkdir(parents=True)
        case = CASES[name](place)
        print(json.dumps({"job": job, "expected": case.expected}), flush=True)
        at = int(first)
        while strike_once(case, place / "out", at, how):
            at += int(every)


def strike_once(case, folder, at, how):
    """Whether there was an operation of this number to strike at; prints what came of it."""
    out = copied(case.start, folder)
    told, struck = in_a_child(lambda: case.command(out), lambda tell: Strike(out, at, how, tell))
    if not struck:
        return False
    wrong = {"command": told} if "traceback" in told else case.after(out)
    print(json.dumps({"at": at, "struck": struck, "told": told, "wrong": wrong}), flush=True)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
