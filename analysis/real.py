"""Simulations held against deployments on this machine: the numbers of
analysis/REAL.md.

    sudo python analysis/real.py cases [--work runs/real] [--repeat 3]
        [--hold CMD --release CMD]
    sudo python analysis/real.py quotas [--work runs/real] [--repeat 3] …
    sudo python analysis/real.py study [--work runs/real] [--repeat 2] …
    python analysis/real.py report

`cases` deploys three kinds of fleets (dedicated links, a shared server link, long
transfers) with shaped links, several times each, measures this machine, and simulates
each case twice: from `calibrate measure` alone, and from `calibrate fit --from` the
deployment of another case with the same devices. `quotas` does the same with two fleets
under quotas of processor time (slow processors, a mixed fleet), fitted to two
deployments with other numbers of local steps; each is simulated in two more ways, which
tell what the parts of the model are worth. `study` deploys ten slow clients behind each
strategy, EXP3 and ASCEND at three K, and simulates the same from profiles fitted to
EXP3's deployments. All go on where they stopped: a deployment that is whole is not made
again. `--hold` and `--release` are shell commands around the rounds that count, to keep
other work still. `report` writes analysis/REAL.md and its figures from
analysis/results-real/*.json.

The first round of a deployment loads what later ones find in memory, and in the second
other work is being held still; both are left out everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from orders import compare_orders
from pages import markdown
from scipy import stats

import simfed
from simfed.deploy.fidelity import Fidelity, fidelity
from simfed.deploy.local import deploy
from simfed.ground.cores import available_cores, find_cpu_groups
from simfed.ground.units import counted
from simfed.report.pictures import picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simfed.record.read import Run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "analysis" / "results-real"
PAGE = ROOT / "analysis" / "REAL.md"
FIGURES = ROOT / "analysis" / "figures"
FIRST = 3
"""The first round that counts."""

# ---- what is played ------------------------------------------------------------------

TCP = {"model": "tcp", "tcp": {"handshake": False, "header": "66 B"}}
"""Connections stay open; token buckets count the head of every segment."""
NOMINAL = {"training": "6 ms", "compression": "0.5 ms"}
"""What the scenarios say before anything was measured; deployments do not look at
it."""


def _group(
    count: int,
    prototype: str,
    share: float,
    up: float,
    down: float,
    period: str | None = None,
) -> dict[str, Any]:
    """`share` of a processor, of every `period`.

    Without one it is the device's speed.
    """
    share_of = (
        {"speed": share}
        if period is None
        else {"quota": {"share": share, "period": period}}
    )
    return {
        "count": count, "prototype": prototype,
        "device": {"assume": NOMINAL, **share_of},
        "link": {"up": f"{up} Mbps", "down": f"{down} Mbps"},
    }  # fmt: skip


def _case(
    name: str,
    rounds: int,
    clients: list[dict[str, Any]],
    k: int,
    steps: int,
    server: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    models = {"small": "lenet5-half", "large": "lenet5", "wide": "perceptron"}
    used = {group["prototype"] for group in clients}
    return {
        "name": name, "seed": 1, "rounds": rounds,
        "dataset": {"name": "mnist-mini", "public": 64,
                    "partition": {"kind": "dirichlet", "alpha": 0.5}},
        "prototypes": {name: {"model": model} for name, model in models.items()
                       if name in used},
        "client_order": "round-robin", "clients": clients,
        "network": {**TCP, **({"server": dict(server)} if server else {})},
        "compression": {"k": k, "index_code": "fixed"},
        "training": {"batch_size": 32, "local_steps": steps},
        "policy": {"kind": "uniform", "strategy": "top-k"},
        "evaluation": {"every": 10}, "checkpoint": {"every": 0},
    }  # fmt: skip


SLOW = 0.15, 0.1
"""Shares of a processor of the small models' and the large models' devices."""
PERIOD = "10 ms"
CASES = {
    of["name"]: of
    for of in (
        _case("dedicated", 21, [_group(5, "small", 1, 0.3, 2),
                                _group(5, "large", 1, 0.25, 3)], 3000, 1),
        _case("shared", 21, [_group(5, "small", 1, 20, 20),
                             _group(5, "large", 1, 20, 20)], 5000, 1,
              {"receive": "3 Mbps", "send": "16 Mbps"}),
        _case("slow", 21, [_group(5, "small", SLOW[0], 4, 20, PERIOD),
                           _group(5, "large", SLOW[1], 4, 20, PERIOD)], 2000, 10),
        _case("mixed", 21, [_group(5, "small", SLOW[0], 0.5, 10, PERIOD),
                            _group(5, "large", SLOW[1], 2, 10, PERIOD)], 4000, 3),
        _case("slow-1", 21, [_group(5, "small", SLOW[0], 2, 15, PERIOD),
                             _group(5, "large", SLOW[1], 2, 15, PERIOD)], 3000, 1),
        _case("slow-20", 21, [_group(5, "small", SLOW[0], 2, 15, PERIOD),
                              _group(5, "large", SLOW[1], 2, 15, PERIOD)], 3000, 20),
        _case("container", 21, [_group(5, "small", SLOW[0], 2, 10, "100 ms"),
                                _group(5, "large", SLOW[1], 2, 10, "100 ms")], 3000, 4),
        _case("long", 9, [_group(2, "wide", 1, 0.5, 2),
                          _group(2, "wide", 1, 0.7, 3)], 40_000, 1),
        _case("long-other", 6, [_group(2, "wide", 1, 0.9, 4),
                                _group(2, "wide", 1, 0.8, 5)], 30_000, 1),
    )
}  # fmt: skip
FITTED_TO = {
    "dedicated": ["shared"],
    "shared": ["dedicated"],
    "slow": ["mixed", "slow-20"],
    "mixed": ["slow", "slow-1"],
    "container": ["slow", "slow-1"],
    "long": ["long-other"],
}
"""Case → the others whose deployments its simulation may know: the same devices at
other work."""
QUOTAS = ("slow", "mixed", "container")
PLAIN = tuple(name for name in FITTED_TO if name not in QUOTAS)
GOALS = {
    "dedicated": (0.03, 0.03),
    "long": (0.03, 0.03),
    "shared": (0.05, 0.05),
    "slow": (0.10, 0.05),
    "mixed": (0.10, 0.05),
    "container": (0.10, 0.05),
}
"""How far off a simulation may be: from measuring alone, from another deployment."""

STUDY_K = (1000, 5000, 10_000)
_REWARD = {"rho": 0.6, "beta": 0.4, "clip": [-1, 1]}
POLICIES: dict[str, dict[str, Any]] = {
    **{
        s: {"kind": "uniform", "strategy": s}
        for s in ("top-k", "random-k", "periodic-k")
    },
    "exp3": {"kind": "exp3", "mixing": 0.1, "reward": _REWARD},
    "ascend": {"kind": "ascend", "warmup": 5, "c": 3, "ema": 0.1, "reward": _REWARD},
}
STUDY_SPEED = 0.15
STUDY_ROUNDS = 41


def study_scenario(policy: str, k: int, repetition: int) -> dict[str, Any]:
    """Ten clients as slow as small boards, on links of 50 Mbps."""
    groups = [
        _group(5, prototype, STUDY_SPEED, 50, 50) for prototype in ("small", "large")
    ]
    return {
        **_case(f"{policy}-{k}", STUDY_ROUNDS, groups, k, 1),
        "seed": repetition,
        "dataset": {
            "name": "mnist",
            "public": 256,
            "partition": {"kind": "dirichlet", "alpha": 0.5},
        },
        "training": {"batch_size": 32, "learning_rate": 0.02, "local_steps": 1},
        "policy": POLICIES[policy],
        "evaluation": {"every": 20},
    }


# ---- deployments ---------------------------------------------------------------------


class Quiet:
    """Holds other work still while rounds count."""

    def __init__(self, hold: str | None, release: str | None) -> None:
        self._hold, self._release = hold, release

    def progress(self, round: int, time_s: float, accuracy: float | None) -> None:
        """Called after each round."""
        if round == 1 and self._hold:
            subprocess.run(self._hold, shell=True, check=True)

    def over(self) -> None:
        """Other work may go on."""
        if self._release:
            subprocess.run(self._release, shell=True, check=False)


def find_home_group(above: Path) -> Path:
    """The group of `above`'s hierarchy in which this process is."""
    unified = (above / "cgroup.controllers").exists()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or (unified and not controllers):
            return above / path.lstrip("/")
    return above


@contextlib.contextmanager
def before_others() -> Iterator[None]:
    """While the server has its turn before other work of this machine, which is what
    shaped clients have. Nice values would not do that: Linux looks at them within a
    session.
    """
    above = find_cpu_groups()
    if above is None:
        yield
        return
    group, home = above / "simfed-real", find_home_group(above)
    group.mkdir(exist_ok=True)
    weight = "cpu.shares" if (group / "cpu.shares").exists() else "cpu.weight"
    (group / weight).write_text("262144" if weight == "cpu.shares" else "10000")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def deployed(plain: Mapping[str, Any], out: Path, quiet: Quiet) -> Run:
    """The deployment of a scenario, made unless it is there."""
    if not (out / "summary.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        print(f"deploying {out}", file=sys.stderr)
        try:
            deploy(
                simfed.Scenario.model_validate(plain),
                out,
                shaped=True,
                progress=quiet.progress,
            )
        finally:
            quiet.over()
    return simfed.load_run(out)


def counting(run: Run) -> Any:
    """What `fidelity` looks at: the rounds that count."""
    return SimpleNamespace(
        manifest=run.manifest, scenario=run.scenario, spans=run.spans,
        rounds=run.rounds[run.rounds["round"] >= FIRST],
        participations=run.participations[run.participations["round"] >= FIRST],
    )  # fmt: skip


def command(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "simfed", *map(str, arguments)], check=True)


# ---- simulations ---------------------------------------------------------------------


def measured(
    work: Path, quiet: Quiet, names: Sequence[str]
) -> dict[str, tuple[Path, Path]]:
    """Profiles of this machine by `calibrate measure` alone: each case's of its clients
    and of its server.
    """
    lenets: list[object] = ["--models", "lenet5-half,lenet5"]
    wide: list[object] = ["--models", "perceptron", "--k", "30000,40000"]
    clients, server = (
        "training,compression",
        "decompression,inference,distillation,evaluation",
    )
    # which is processor time, so that others beside do not matter
    host = "starting,handling"
    plain: list[object] = [*lenets, "--k", "3000,5000"]
    asked: dict[str, list[list[object]]] = {
        "server": [[*plain, "--only", server]],
        "plain": [[*plain, "--only", f"{clients},{host}"]],
        "long-server": [[*wide, "--only", server]],
        "long": [[*wide, "--only", f"{clients},{host}"]],
    }
    for name in QUOTAS:  # as its clients work: so many steps in a row, rested
        case = CASES[name]
        steps, k = case["training"]["local_steps"], case["compression"]["k"]
        as_there: list[object] = [*lenets, "--k", k, "--steps", steps, "--paced", 0.1]
        asked[name] = [[*as_there, "--only", f"{clients},{host}"]]
    profiles = {}
    for name in names:
        pair = [name if name in QUOTAS else "long" if name == "long" else "plain"]
        pair.append("long-server" if name == "long" else "server")
        clients_, server_ = (
            _measured_as(work, quiet, which, asked[which]) for which in pair
        )
        profiles[name] = clients_, server_
    return profiles


def _measured_as(
    work: Path, quiet: Quiet, name: str, calls: Sequence[list[object]]
) -> Path:
    """The profile of that name, measured unless it is there."""
    profile = work / "calibration" / f"measured-{name}.yaml"
    if profile.exists():
        return profile
    tables = [
        work / "calibration" / f"measured-{name}-{i}.csv" for i in range(len(calls))
    ]
    quiet.progress(1, 0.0, None)
    try:
        for table, options in zip(tables, calls, strict=True):
            command("calibrate", "measure", "--out", table, *options, "--batch", 32,
                    "--samples", "64,512", "--strategies", "top-k",
                    "--repeat", 20)  # fmt: skip
    finally:
        quiet.over()
    command("calibrate", "fit", *tables, "--kind", "table", "--out", profile)
    return profile


def from_measuring(
    plain: Mapping[str, Any], clients: Path, server: Path
) -> dict[str, Any]:
    """The case's scenario with profiles that nobody has deployed."""
    scenario = copy.deepcopy(dict(plain))
    for group in scenario["clients"]:
        device = {"profile": str(clients), **group["device"]}
        del device["assume"]
        if "quota" in device:
            device["noise"] = {"kind": "measured"}
        group["device"] = device
    scenario["server"] = {"device": {"profile": str(server)}}
    return scenario


def from_deployment(
    plain: Mapping[str, Any], runs: Sequence[Path], work: Path
) -> dict[str, Any]:
    """The case's scenario with devices and server as other cases' deployments had them.

    Links are its own.
    """
    return _with_devices(plain, *_fitted(runs, work))


def by_speed(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The same with processors that are slow all the time in place of quotas."""
    scenario = copy.deepcopy(dict(plan))
    for group in scenario["clients"]:
        group["device"]["speed"] = group["device"].pop("quota")["share"]
    return scenario


def _fitted(runs: Sequence[Path], work: Path) -> tuple[Path, dict[str, Any]]:
    """The profile and the scenario that deployments come to."""
    profile = work / "calibration" / f"{'+'.join(run.name for run in runs)}.yaml"
    last = min(len(simfed.load_run(run).rounds) for run in runs)
    from_ = itertools.chain.from_iterable(("--from", run) for run in runs)
    command("calibrate", "fit", *from_, "--rounds", f"{FIRST}:{last}",
            "--kind", "table", "--out", profile)  # fmt: skip
    return profile, yaml.safe_load(profile.with_suffix(".scenario.yaml").read_text())


def _with_devices(
    plain: Mapping[str, Any], profile: Path, like: Mapping[str, Any]
) -> dict[str, Any]:
    scenario = copy.deepcopy(dict(plain))
    for group, other in zip(scenario["clients"], like["clients"], strict=True):
        quota = {
            key: group["device"][key] for key in ("quota",) if key in group["device"]
        }
        group["device"] = {**other["device"], "profile": str(profile), **quota}
    scenario["server"] = like["server"]
    return scenario


def simulated(plain: Mapping[str, Any], out: Path, *, time_only: bool = True) -> Run:
    path = out.with_suffix(".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(plain), sort_keys=False))
    return simfed.run(
        path, out, time_only=time_only, overwrite=True, progress=False, workers=1
    )


# ---- what is kept --------------------------------------------------------------------


def verdict(fidelity: Fidelity) -> dict[str, Any]:
    """A comparison in a few numbers; the round's error is that of the medians."""
    rounds = fidelity.rounds
    return {
        "round": float(rounds["simulated_s"].median() / rounds["real_s"].median() - 1),
        "makespan": fidelity.makespan_error,
        "named_right": fidelity.named_right,
        "same_choices": fidelity.same_choices,
        "phases": {
            row.phase: [float(row.simulated_s), float(row.real_s)]
            for row in fidelity.phases.itertuples()
        },
        "server": [
            float(rounds["simulated_server_s"].mean()),
            float(rounds["real_server_s"].mean()),
        ],
    }


def play_cases(
    work: Path,
    repeat: int,
    quiet: Quiet,
    more: Sequence[str],
    names: Sequence[str],
    out: str,
) -> None:
    """These cases: deployed, measured, simulated, compared.

    `more`: repeated once more.
    """
    once = [other for name in names for other in FITTED_TO[name] if other not in names]
    # repetitions in turn, so that a slow hour falls on all cases
    for i, name in itertools.product(range(repeat + 1), [*names, *once]):
        if i == 0 or (name in names and (i < repeat or name in more)):
            deployed(CASES[name], work / "cases" / f"{name}-{i}", quiet)
    profiles = measured(work, quiet, names)
    results: dict[str, Any] = {}
    for name in names:
        folders = [
            work / "cases" / f"{name}-{i}" for i in range(repeat + (name in more))
        ]
        runs = [simfed.load_run(folder) for folder in folders]
        reals = [counting(run) for run in runs]
        others = [work / "cases" / f"{other}-0" for other in FITTED_TO[name]]
        plans = {
            "measured": from_measuring(CASES[name], *profiles[name]),
            "fitted": from_deployment(CASES[name], others, work),
        }
        if name in QUOTAS:
            plans["by-speed"] = by_speed(plans["fitted"])
            plans["one-run"] = from_deployment(CASES[name], others[:1], work)
        sims = {
            by: counting(simulated(plan, work / "simulated" / f"{name}-{by}"))
            for by, plan in plans.items()
        }
        again = [fidelity(a, b) for a, b in itertools.combinations(reals, 2)]
        stragglers = [run.rounds["critical_client"].value_counts() for run in reals]
        results[name] = {
            "rounds": len(reals[0].rounds),
            "real_round_s": [float(run.rounds["duration_s"].median()) for run in reals],
            "real_makespan_s": [float(run.rounds["duration_s"].sum()) for run in reals],
            "real_server_s": [float(run.rounds["server_s"].mean()) for run in reals],
            "again": [verdict(value) for value in again],
            "most_common": [float(value.iloc[0] / value.sum()) for value in stragglers],
            **{
                by: [verdict(fidelity(sim, run)) for run in reals]
                for by, sim in sims.items()
            },
        }
    fitted_to = {name: ", ".join(FITTED_TO[name]) for name in names}
    _write(out, {"machine": machine(), "fitted_to": fitted_to, "cases": results})


def play_study(work: Path, repeat: int, quiet: Quiet) -> None:
    """The platform experiment: deployed, and simulated from EXP3's deployments."""
    order = ("exp3", *(name for name in POLICIES if name != "exp3"))
    for i, policy, k in itertools.product(range(repeat), order, STUDY_K):
        deployed(
            study_scenario(policy, k, i), work / "study" / f"{policy}-{k}-{i}", quiet
        )
    fitted = {k: _fitted([work / "study" / f"exp3-{k}-0"], work) for k in STUDY_K}
    runs = []
    for i, policy, k in itertools.product(range(repeat), POLICIES, STUDY_K):
        name = f"{policy}-{k}-{i}"
        run = simfed.load_run(work / "study" / name)
        plan = _with_devices(study_scenario(policy, k, i), *fitted[k])
        sim = simulated(plan, work / "study-simulated" / name, time_only=False)
        comparison = fidelity(counting(sim), counting(run))
        runs.append(
            {
                "policy": policy,
                "k": k,
                "repetition": i,
                "fitted": policy == "exp3",
                **verdict(comparison),
                "real": _learned(run),
                "simulated": _learned(sim),
            }
        )
    _write("study", {"machine": machine(), "speed": STUDY_SPEED,
                     "rounds": STUDY_ROUNDS - FIRST + 1,
                     "repetitions": repeat, "runs": runs})  # fmt: skip


def _learned(run: Run) -> dict[str, Any]:
    """What a run of the study came to."""
    rounds, parts = run.rounds, run.participations
    later = rounds[rounds["round"] >= FIRST]
    tested = run.prototypes.dropna(subset=["test_accuracy"])
    curve = tested.groupby("round")["test_accuracy"].mean()
    share = parts["arm"].value_counts(normalize=True)
    return {
        "round_s": float(later["duration_s"].median()),
        "makespan_s": float(later["duration_s"].sum()),
        "accuracy": {int(r): round(float(a), 4) for r, a in curve.items()},
        "arms": {str(arm): round(float(value), 4) for arm, value in share.items()},
        "reward": None
        if parts["reward"].isna().all()
        else float(parts["reward"].mean()),
    }


def machine() -> str:
    """What this machine is, in words."""
    from simfed.calibrate.measure import describe_machine

    host = describe_machine("cpu", 1)
    torch = f"PyTorch {host['torch']}"
    return ", ".join(
        [host["machine"], host["cpu"], counted(available_cores(), "core"), torch]
    )


def _write(name: str, results: Mapping[str, Any]) -> None:
    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, Mapping):
            return {key: rounded(inner) for key, inner in value.items()}
        return [rounded(inner) for inner in value] if isinstance(value, list) else value

    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
    print(RESULTS / f"{name}.json")


# ---- the page ------------------------------------------------------------------------


def _off(errors: Sequence[float]) -> str:
    """Relative errors of the repetitions: their mean and, of several, the range."""
    mean = f"{100 * float(np.mean(errors)):+.1f} %"
    if len(errors) < 2:
        return mean
    return f"{mean} ({100 * min(errors):+.1f} … {100 * max(errors):+.1f})"


def _interval(values: Sequence[float]) -> str:
    """Mean ± the half-width of its 95 % interval (Student's t)."""
    mean = float(np.mean(values))
    return (
        f"{mean:.3g} ± {_half_width(values):.2g}" if len(values) > 1 else f"{mean:.3g}"
    )


def _half_width(values: Sequence[float]) -> float:
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def _cases_part(results: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for name, case in results["cases"].items():
        again = [abs(v["round"]) for v in case["again"]]
        met = [_met(name, case, by) for by in ("measured", "fitted")]
        named = [
            float(np.mean([v["named_right"] for v in case[by]]))
            for by in ("measured", "fitted", "again")
            if case[by]
        ]
        rows.append(
            [
                name,
                f"{_interval(case['real_round_s'])} s",
                f"{100 * max(again):.1f} %" if again else "–",
                _off([v["round"] for v in case["measured"]]),
                met[0],
                _off([v["round"] for v in case["fitted"]]),
                met[1],
                _off([v["makespan"] for v in case["fitted"]]),
                " / ".join(f"{100 * x:.0f} %" for x in named),
            ]
        )
    made = sorted({len(case["real_round_s"]) for case in results["cases"].values()})
    pairs = ", ".join(f"{a} ← {b}" for a, b in results["fitted_to"].items())
    rounds = ", ".join(str(case["rounds"]) for case in results["cases"].values())
    yield "## Simulations against deployments"
    yield (
        f"On one machine ({results['machine']}), {' or '.join(map(str, made))} "
        f"deployments of each case, of {rounds} rounds; ten clients (`long`: four) in "
        "network namespaces behind token buckets. `measured`: profiles of `calibrate "
        "measure` alone. `fitted`: devices and server of `calibrate fit --from` one "
        f"deployment of another case with the same devices ({pairs}). Links are as the "
        "scenario says in both. Errors are of the median round of a deployment, "
        "simulated over real, but where the makespan (the sum of all rounds) is named: "
        "the mean over the repetitions, and their range."
    )
    head = ["case", "real round", "repetitions differ by up to", "`measured`", "goal"]
    head += ["`fitted`", "goal", "`fitted`, makespan"]
    head += ["straggler named: measured / fitted / by reality itself"]
    yield markdown([head, *rows])
    yield from _phases_part(results)
    yield "![Median rounds, simulated and real](figures/real-cases.png)"


def _met(name: str, case: Mapping[str, Any], by: str) -> str:
    """In how many repetitions a case's goal is met."""
    goal = GOALS[name][("measured", "fitted").index(by)]
    within = sum(abs(v["round"]) <= goal for v in case[by])
    return f"{within} of {len(case[by])} within {100 * goal:.0f} %"


def _phases_part(results: Mapping[str, Any]) -> Iterator[str]:
    phases = []
    for name, case in results["cases"].items():
        for by in ("measured", "fitted"):
            means = {
                phase: np.mean([v["phases"][phase] for v in case[by]], axis=0)
                for phase in case[by][0]["phases"]
            }
            means["server"] = np.mean([v["server"] for v in case[by]], axis=0)
            phases.append(
                [
                    name,
                    by,
                    *(f"{1e3 * a:.0f} / {1e3 * b:.0f}" for a, b in means.values()),
                ]
            )
    yield (
        "Means per participation, and of the server per round, in milliseconds, "
        "simulated / real:"
    )
    head = [
        "case",
        "by",
        "download",
        "training",
        "compression",
        "upload",
        "host",
        "server",
    ]
    yield markdown([head, *phases])


def _quotas_part(results: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for name, of in results["cases"].items():
        real_s = of["real_round_s"]
        row = [
            name,
            f"{_interval(real_s)} s",
            f"{100 * max(abs(v['round']) for v in of['again']):.1f} %",
        ]
        for by in ("measured", "fitted"):
            pairs = zip(real_s, of[by], strict=True)
            simulated_s = float(np.mean([s * (1 + v["round"]) for s, v in pairs]))
            inside = abs(simulated_s - np.mean(real_s)) <= _half_width(real_s)
            row += [_off([v["round"] for v in of[by]])]
            row += [
                (
                    f"{_met(name, of, by)}; {'inside' if inside else 'outside'} "
                    f"reality's interval"
                )
            ]
        row += [_off([v["makespan"] for v in of["fitted"]])]
        row += [_off([v["round"] for v in of[by]]) for by in ("one-run", "by-speed")]
        rows.append(row)
    fitted_to = "; ".join(f"{a} ← {b}" for a, b in results["fitted_to"].items())
    repetitions = counted(
        len(next(iter(results["cases"].values()))["real_round_s"]), "deployment"
    )
    yield "## Slow processors, with quotas as the kernel keeps them"
    yield (
        f"`slow` and `mixed` ({results['machine']}; {repetitions} of each, in turn) "
        f"have a `quota: {{share: {SLOW[0]:g}, period: {PERIOD}}}` (small models) or "
        f"{SLOW[1]:g} (large ones); `container` has the same shares of the period of "
        "containers, 100 ms, at four local steps and other links. `measured`: "
        "`calibrate measure` on this machine, without a quota and without others "
        "beside, in processor seconds. `fitted`: `calibrate fit --from` two "
        f"deployments of other cases, one of each ({fitted_to}), in the processor "
        "seconds that their clients told; links, quota and steps are the scenario's. "
        "`slow-1` and `slow-20` are the devices of `slow` at 1 and 20 local steps, "
        "other links and another K. `one deployment`: fitted to the first of the two "
        "alone, which cannot tell steps from their beginning. `by speed`: as `fitted`, "
        "the share taken for a processor that is slow all the time. Errors as above; "
        "reality's interval is that of its mean over the repetitions (95 %). What the "
        "server takes to send tasks is host time in reality and the server's in "
        "simulations."
    )
    head = ["case", "real round", "repetitions differ by up to", "`measured`", "goal"]
    head += ["`fitted`", "goal", "`fitted`, makespan", "one deployment", "by speed"]
    yield markdown([head, *rows])
    yield from _phases_part(results)
    yield "![Median rounds, simulated and real](figures/real-quotas.png)"


def _span(runs: Sequence[Mapping[str, Any]], what: str) -> str:
    """Return the median error of runs, the least and the largest."""
    errors = [run[what] for run in runs]
    middle, least, most = (100 * float(f(errors)) for f in (np.median, min, max))
    return f"{middle:+.1f} % ({least:+.1f} to {most:+.1f})"


def _study_part(results: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for k, policy in itertools.product(STUDY_K, POLICIES):
        runs = [r for r in results["runs"] if r["k"] == k and r["policy"] == policy]
        if not runs:
            continue

        def both(
            what: Callable[[dict[str, Any]], float], runs: list[Any] = runs
        ) -> str:
            return " / ".join(
                _interval([what(run[side]) for run in runs])
                for side in ("simulated", "real")
            )

        def last(run: dict[str, Any]) -> float:
            return 100 * float(list(run["accuracy"].values())[-1])

        def most(run: dict[str, Any]) -> float:
            return 100 * float(run["arms"].get("top-k", 0.0))

        rows.append(
            [
                f"{k:,}",
                policy,
                both(lambda run: 1e3 * run["round_s"]),
                _off([run["round"] for run in runs]),
                _off([run["makespan"] for run in runs]),
                both(last),
                both(most),
            ]
        )
    yield "## The platform experiment on one machine"
    yield (
        "Ten clients on MNIST (five LeNet5, five of its half, Dirichlet 0.5, one local "
        f"step of 32 samples), each with {results['speed']:g} of a processor "
        f"({results['machine']}; a LeNet5 step takes it some 10 ms, half as long as a "
        "Raspberry Pi 4) and a link of 50 Mbps both ways: fixed strategies, EXP3 and "
        f"ASCEND, which were paid by measured seconds; {results['rounds']} rounds that "
        f"count, {counted(results['repetitions'], 'repetition')} (five are wanted). "
        "Simulations are fitted to EXP3's deployment at this K; all other rows are "
        "held out. Simulated / real, with 95 % intervals over repetitions."
    )
    head = ["K", "policy", "round, ms", "error of the round", "of the makespan"]
    yield markdown([[*head, "accuracy at the end, %", "Top-K played, %"], *rows])
    held_out = [run for run in results["runs"] if not run["fitted"]]
    ascend = [run for run in held_out if run["policy"] == "ascend"]
    fixed = [run for run in held_out if run["policy"] != "ascend"]
    yield (
        "Held out, in the middle run of all K and repetitions (and from the least to "
        f"the largest error): ASCEND's median round is {_span(ascend, 'round')} off, "
        f"that of the fixed strategies {_span(fixed, 'round')}. By the makespan, which "
        f"counts the long rounds too, ASCEND is {_span(ascend, 'makespan')} off and "
        f"the fixed strategies are {_span(fixed, 'makespan')}. The table has means "
        "over repetitions. Simulated from a policy's deployment whose clients measure "
        "their loss after every merge, with a time of its own for that (`losses`)."
    )
    sides: list[dict[str, list[float]]] = [{}, {}]
    for run in results["runs"]:
        for side, name in zip(sides, ("simulated", "real"), strict=True):
            side.setdefault(f"{run['policy']}, K = {run['k']:,}", []).append(
                run[name]["round_s"]
            )
    orders = compare_orders(*sides)
    yield f"Orders of median rounds: {'; '.join(orders.sentences())}."
    yield "![Rounds of the platform experiment](figures/real-study.png)"


_PARTS = {"cases": _cases_part, "quotas": _quotas_part, "study": _study_part}


def page_text() -> str:
    """The page, from what was kept."""
    parts = [
        "# Simulated and real",
        "Made by `python analysis/real.py report` from `analysis/results-real/`; how "
        "to repeat it stands at the top of that script. What deployments are, and what "
        "is unlike the scenario in shaped ones, is said in "
        "[docs/deploy.md](../docs/deploy.md).",
    ]
    for name, results in _results().items():
        parts += _PARTS[name](results)
    notes = RESULTS / "notes.md"
    if notes.exists():
        parts.append(notes.read_text().strip())
    return "\n\n".join(parts) + "\n"


def write_report() -> None:
    """The page and its figures, from what was kept."""
    for name, results in _results().items():
        with picture_style():
            figure = (
                _study_figure(results) if name == "study" else _cases_figure(results)
            )
            save_picture(figure, FIGURES / f"real-{name}.png", dpi=150)
    PAGE.write_text(page_text())
    print(PAGE)


def _results() -> dict[str, Any]:
    files = {name: RESULTS / f"{name}.json" for name in _PARTS}
    return {
        name: json.loads(file.read_text())
        for name, file in files.items()
        if file.exists()
    }


def _cases_figure(results: Mapping[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    names = list(results["cases"])
    for j, by in enumerate(("measured", "fitted")):
        for i, name in enumerate(names):
            errors = [100 * v["round"] for v in results["cases"][name][by]]
            axes.plot(
                [i + 0.16 * (2 * j - 1)] * len(errors),
                errors,
                "os"[j],
                ms=5,
                color=SERIES_COLOURS[j],
                label=by if i == 0 else None,
            )
    for i, name in enumerate(names):
        again = [100 * v["round"] for v in results["cases"][name]["again"]]
        axes.plot(
            [i] * len(again),
            again,
            "_",
            ms=9,
            color="#8C8C8C",
            label="one repetition to another" if i == 0 else None,
        )
        for j, goal in enumerate(GOALS[name]):
            at = i + 0.16 * (2 * j - 1)
            axes.fill_between(
                [at - 0.13, at + 0.13],
                -100 * goal,
                100 * goal,
                alpha=0.15,
                lw=0,
                color=SERIES_COLOURS[j],
            )
    axes.axhline(0, color="0.4", lw=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("error of the median round, %")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _study_figure(results: Mapping[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(STUDY_K), figsize=(7.2, 2.8), sharey=True, layout="constrained"
    )
    for axes, k in zip(panels, STUDY_K, strict=True):
        for i, policy in enumerate(POLICIES):
            runs = [r for r in results["runs"] if r["k"] == k and r["policy"] == policy]
            for j, side in enumerate(("real", "simulated")):
                values = [1e3 * run[side]["round_s"] for run in runs]
                axes.plot(
                    [i + 0.14 * (2 * j - 1)] * len(values),
                    values,
                    "os"[j],
                    ms=5,
                    color=SERIES_COLOURS[j],
                    label=side if i == 0 else None,
                )
        axes.set_title(f"K = {k:,}", fontsize=9)
        axes.set_xticks(range(len(POLICIES)), list(POLICIES), rotation=30, ha="right")
    # after all is drawn: it ends the search for the upper end
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("median round, ms")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cases", "quotas", "study", "report"))
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "real")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--more", default="", help="cases to repeat once more: slow,mixed"
    )
    parser.add_argument("--hold", help="shell command before rounds that count")
    parser.add_argument("--release", help="shell command after them")
    arguments = parser.parse_args()
    quiet = Quiet(arguments.hold, arguments.release)
    work = arguments.work.resolve()
    if arguments.what == "cases":
        play_cases(
            work, arguments.repeat, quiet, arguments.more.split(","), PLAIN, "cases"
        )
    elif arguments.what == "quotas":
        with before_others():
            play_cases(
                work,
                arguments.repeat,
                quiet,
                arguments.more.split(","),
                QUOTAS,
                "quotas",
            )
    elif arguments.what == "study":
        play_study(work, arguments.repeat, quiet)
    else:
        write_report()


if __name__ == "__main__":
    main()
