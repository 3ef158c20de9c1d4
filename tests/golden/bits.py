"""What learning comes to, bit for bit, over a score of scenarios that reach its
corners.

    python tests/golden/bits.py           # play them and compare with the kept table
    python tests/golden/bits.py --write   # where bits are to move; review the diff

Of another checkout, and what differs from it:

    PYTHONPATH=CHECKOUT python tests/golden/bits.py --table /tmp/before.csv --write
    python tests/golden/bits.py --table /tmp/before.csv

One row of the table per column of a run: a digest of all its values, and the sum of its
numbers to seven digits. Where PyTorch, the compiled layers and the processor's vectors
are those of the table's first line, digests must be equal; elsewhere sums, to `_LOOSE`
of their size. A difference of up to `_LAST_BITS` is called one: `test_loss` has it
wherever evaluation is dealt in other parts.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

KEPT = Path(__file__).with_name("bits.csv")
_TABLES = ("rounds", "participations", "prototypes", "clients", "policies")
_LOOSE, _LAST_BITS = 1e-3, 2.5e-7

_LOGISTIC = {"only": ("logistic-regression", 6)}
_LENETS = {"small": ("lenet5-half", 2), "large": ("lenet5", 2)}
_TIMES = {"training": "5 ms", "compression": "1 ms", "decompression": "0.5 ms"}
_STEPS = {"batch_size": 8, "learning_rate": 0.05}
_SOME = {"clients_per_round": 3}
_LOSING = {"faults": {"messages": {"lost": 0.4, "tries": 1}}}
_BANDIT = {"kind": "ascend", "warmup": 1}


def _scenario(models, public=16, **changes):
    speeds = [(name, at) for name, (_, count) in models.items() for at in range(count)]
    clients = [
        {
            "count": 1,
            "prototype": name,
            "device": {"profile": "x86-2core-vm", "assume": _TIMES},
            "link": {
                "up": f"{4 / (1 + at)} Mbps",
                "down": "20 Mbps",
                "latency": "5 ms",
            },
        }
        for name, at in speeds
    ]
    return {
        "name": "bits",
        "seed": 5,
        "rounds": 6,
        "dataset": {
            "name": "mnist-mini",
            "public": public,
            "partition": {"alpha": 0.5},
        },
        "prototypes": {name: {"model": model} for name, (model, _) in models.items()},
        "clients": clients,
        "training": _STEPS,
        "compression": {"k": 400},
        "policy": _BANDIT,
        "evaluation": {"every": 2},
        **changes,
    }


def _averaging(method="fedavg", **changes):
    steps = {**_STEPS, "local_steps": 3}
    return _scenario(_LOGISTIC, 0, **{"method": method, "training": steps, **changes})


def _plays(strategy, **compression):
    return {
        "compression": {"k": 400, "strategies": [strategy], **compression},
        "policy": {"kind": "uniform", "strategy": strategy},
    }


SCENARIOS = {
    "fedkd of LeNets": _scenario(_LENETS, rounds=4),
    "fedkd with rollbacks": _scenario(
        _LOGISTIC,
        training={**_STEPS, "learning_rate": 5.0},
        safeguard={"rollback": {"threshold": 1.0}},
    ),
    "fedkd with lost uploads": _scenario(_LOGISTIC, **_LOSING),
    "fedkd as printed": _scenario(
        _LOGISTIC,
        policy={**_BANDIT, "reward": {"local_loss": {"credit": "as-printed"}}},
    ),
    "fedavg of some": _averaging(participation=_SOME),
    "fedavg of a LeNet": _scenario(
        {"only": ("lenet5-half", 4)}, 0, method="fedavg", rounds=4
    ),
    "late uploads": _averaging(
        participation=_SOME,
        aggregation={"mode": "deadline", "deadline": "30 ms", "late": "merge"},
    ),
    "asynchronous": _averaging(
        "fedasync", rounds=12, aggregation={"mode": "asynchronous", "concurrency": 3}
    ),
    "buffered": _averaging(
        "fedbuff", aggregation={"mode": "buffered", "buffer": 2, "concurrency": 3}
    ),
    "ef21 moves the point": _averaging(**_plays("ef21")),
    "detached-ef moves the point": _averaging(**_plays("detached-ef")),
    "quantised with rice indices": _averaging(
        **_plays("top-k+qsgd(4)", index_code="rice")
    ),
    "seeded indices": _averaging(**_plays("random-k", index_code="seeded")),
    "changes travel down": _averaging(
        participation=_SOME, downlink={"compression": {"k": 200}}, **_plays("dense")
    ),
    "a codec per layer": _averaging(
        compression={
            "strategies": [{"layers": {"*weight": "top-k@5%", "*bias": "qsgd"}}]
        },
        policy={"kind": "ascend"},
    ),
    "scaffold": _averaging("scaffold", participation=_SOME),
    "feddf": _scenario(_LENETS, method="feddf", rounds=3),
    "personal models": _scenario(_LENETS, method="fedmd", rounds=3),
}
RESUMED, REPLAYED = "late uploads", "fedkd of LeNets"
"""Which of them are also stopped and gone on with, and answered from records."""


def play(scenario, **options):
    """The run of a scenario; two workers, whose number decides no bit."""
    import simfed

    return simfed.run(scenario, progress=False, **{"workers": 2, **options})


def resumed(scenario, out):
    """The same in the folder `out`, stopped in the middle and gone on with."""
    import simfed

    def strike(round, *_):
        if round == 3:
            raise KeyboardInterrupt

    scenario = {**scenario, "checkpoint": {"every": 2}}
    # `Interrupted`, which was elsewhere in other versions
    with suppress(BaseException):
        simfed.run(scenario, out, workers=1, progress=strike)
    return play(scenario, out=out, resume=True)


def replayed(scenario, folder):
    """The same, its learning answered from what a first run recorded there."""
    from simfed.replay import TrajectoryStore

    store = TrajectoryStore(folder)
    play(scenario, trajectories=store)
    return play(scenario, trajectories=store)


def deployed(scenario):
    """The same with clients on threads and sockets: what is learned, not when."""
    import simfed

    sys.path.insert(0, str(Path(simfed.__file__).parents[1] / "tests" / "deploy"))
    import deploy_worlds

    return deploy_worlds.deployed(deploy_worlds.scenario(rounds=4, **scenario))


_FOR_REAL = {
    "compression": {"k": 500, "index_code": "rice"},
    "training": {"local_steps": 2},
}
_LEARNED = (
    "participants",
    "rolled_back",
    "arm",
    "k",
    "kd_loss",
    "test_accuracy",
    "test_loss",
)


def rows():
    """(scenario, table, column, digest, sum) of every column."""
    for name, scenario in SCENARIOS.items():
        yield from _of_run(name, play(scenario))
    with tempfile.TemporaryDirectory() as folder:
        run = resumed(SCENARIOS[RESUMED], Path(folder) / "run")
        yield from _of_run(f"{RESUMED} resumed", run)
        run = replayed(SCENARIOS[REPLAYED], Path(folder) / "kept")
        yield from _of_run(f"{REPLAYED} replayed", run)
    yield from _of_run("deployed", deployed(_FOR_REAL), _LEARNED)


def _of_run(name, run, only=None):
    if only is None:
        yield name, "run", "fingerprint", run.fingerprint[:12], ""
    for table in _TABLES:
        frame = run.table(table).to_pandas()
        by = [key for key in ("round", "client", "prototype") if key in frame.columns]
        frame = frame.sort_values(by, kind="stable") if by else frame
        for column in frame.columns:
            values = frame[column].tolist()
            if values and (only is None or column in only):
                yield name, table, column, _digest(values), _total(values)


def _digest(values):
    return hashlib.sha256(repr(values).encode()).hexdigest()[:10]


def _total(values):
    numbers = [
        float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)
    ]
    return f"{math.fsum(numbers):.7g}" if numbers else ""


def place():
    """All that bits of PyTorch and of compiled layers hang on."""
    import torch

    from simfed.native import layers

    compiled = "compiled" if layers() else "plain"
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"PyTorch {torch.__version__}; {_processor()}; {vectors}; {compiled}"


def _processor():
    """Its model: products of matrices are made in another order on another one."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    about = dict(
        re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line
    )
    return " ".join(about.get(key, "") for key in ("vendor_id", "cpu family", "model"))


def read(table):
    """(place, {(scenario, table, column): (digest, sum)})."""
    with table.open(newline="") as lines:
        first, *of_columns = csv.reader(lines)
    return first[0], {tuple(row[:3]): tuple(row[3:]) for row in of_columns}


def write(table):
    """Play all and keep what came of it."""
    with table.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([place()])
        writer.writerows(rows())


def differences(table, *, exact):
    """A sentence for each column that is not as the table says."""
    before, now = read(table)[1], {row[:3]: row[3:] for row in rows()}
    told = []
    for key in sorted(before.keys() | now.keys()):
        name = " · ".join(key)
        if key not in before or key not in now:
            told.append(f"{name}: {'gone' if key in before else 'new'}")
            continue
        # on another processor learning goes another way within a few rounds
        if not exact and key[1] != "rounds":
            continue
        (digest, was), (other, total) = before[key], now[key]
        if digest != other and (exact or not _near(was, total)):
            nearly = " (last bits)" if _near(was, total, _LAST_BITS) else ""
            told.append(f"{name}: {was} → {total}{nearly}")
    return told


def _near(before, after, of_size=_LOOSE):
    if not before or not after:
        return before == after or of_size == _LOOSE
    return math.isclose(float(before), float(after), rel_tol=of_size, abs_tol=of_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=KEPT)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.table)
        return
    told = differences(arguments.table, exact=True)
    print("\n".join(told) or "every bit is as it was")
    sys.exit(bool(told))


if __name__ == "__main__":
    main()
