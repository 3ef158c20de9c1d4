"""Running the paper's studies, and what is kept of each run.

The studies overlap (K = 1,000 at alpha 0.5 and 50 Mbps is in four of them), so the campaign is the
list of their distinct runs, in the order in which they decide most claims soonest. A run that has a
compact result is done; the others are handed to simfed's study runner, a phase and a seed at a
time.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simfed.record.digest import digest_value
from simfed.record.read import Run, open_run
from simfed.scenario import Scenario
from simfed.scenario.load import validate_scenario
from simfed.study import plan_study, run_study
from simfed.study.executors import LocalExecutor, choose_jobs
from simfed.study.plan import PlannedRun
from simfed.study.store import StudyFolder
from simfed.study.work import Job, Result, run_scenario

STUDIES = Path(__file__).resolve().parents[2] / "scenarios" / "paper"
RESULTS = Path(__file__).resolve().parent / "runs"
COST_FILE = "cost.json"
FORMAT = 1


@dataclass(frozen=True)
class Phase:
    """Some runs of a study, those of one purpose."""

    name: str
    study: str
    """File in `scenarios/paper`, without its suffix."""
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Key path → values that belong to the phase; all if omitted."""
    needs_gpu: bool = False
    """Too long for a CPU: left out unless learning is on a GPU."""

    def runs(self) -> tuple[Path, list[PlannedRun]]:
        """The base scenario and the planned runs of this phase, seed by seed."""
        plan = plan_study(STUDIES / f"{self.study}.yaml")
        chosen = [
            run
            for run in plan.runs
            if all(run.values[key] in values for key, values in self.where.items())
        ]
        return Path(plan.study.base), chosen


_K = "compression.k"
_ALPHA = "dataset.partition.alpha"
PHASES = (
    Phase("k-1000", "mnist-k", {_K: (1000,)}),
    Phase("k-500", "mnist-k", {_K: (500,)}),
    Phase("k-5000", "mnist-k", {_K: (5000,)}),
    Phase("alpha", "mnist-alpha"),
    Phase("bandwidth", "mnist-bandwidth"),
    Phase("weights", "mnist-weights"),
    Phase("exploration", "mnist-exploration"),
    Phase("large-k", "mnist-large-k"),
    Phase("multiverse", "multiverse", {_K: (1000,)}),
    Phase("safeguard", "mnist-safeguard"),
    Phase("dense", "mnist-dense"),
    Phase("multiverse-5000", "multiverse", {_K: (5000,)}),
    Phase("multiverse-setup", "multiverse-setup"),
    Phase("multiverse-folded", "multiverse-folded", {_K: (1000,)}),
    Phase("multiverse-folded-5000", "multiverse-folded", {_K: (5000,)}),
    Phase("cifar10-k", "cifar10-k", {_K: (100_000, 2_000_000)}, needs_gpu=True),
    Phase("cifar10-k-middle", "cifar10-k", {_K: (500_000,)}, needs_gpu=True),
    Phase("cifar10-weights", "cifar10-weights", needs_gpu=True),
    Phase("cifar10-exploration", "cifar10-exploration", needs_gpu=True),
    Phase("cifar10-small", "cifar10-small-k"),
)


@dataclass(frozen=True)
class Planned:
    """A distinct run of the campaign."""

    phase: Phase
    base: Path
    run: PlannedRun
    hash: str


def run_hash(scenario: Scenario) -> str:
    """What a compact result is called: a hash of the scenario and its seed.

    Unlike the run's address in a study's folder it does not count the code, so that results stay
    when simfed changes; each says by which code it was computed. Only what differs from defaults
    counts, so that a key that simfed gets later changes no hash.
    """
    plain = scenario.model_dump(mode="json", exclude={"name", "checkpoint"}, exclude_defaults=True)
    if (
        plain.get("training", {}).get("local_steps") == 1
    ):  # what the method does unless told otherwise
        del plain["training"]["local_steps"]
        if not plain["training"]:
            del plain["training"]
    if "policy" in plain:
        # the constants of the source's policies count even where they are the defaults
        said, options = plain["policy"], scenario.policy.options
        constants = [k for k in ("strategy", "warmup", "c", "ema", "mixing") if k in options]
        first = {"kind": said["kind"]} if "kind" in said else {}
        plain["policy"] = first | {key: options[key] for key in constants} | said
    return digest_value(plain)[:16]


def campaign(phases: Iterable[Phase] = PHASES) -> list[Planned]:
    """Every distinct run, in the order in which they are done."""
    planned: dict[str, Planned] = {}
    for phase in phases:
        base, runs = phase.runs()
        for run in runs:
            assert isinstance(run.scenario, Scenario)
            name = run_hash(run.scenario)
            planned.setdefault(name, Planned(phase, base, run, name))
    return list(planned.values())


def work_off(
    out: Path,
    results: Path = RESULTS,
    *,
    phases: Iterable[Phase] = PHASES,
    device: str = "cpu",
    jobs: int | None = None,
    most: int | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Do what has no compact result yet; the number of runs done.

    Run directories go to `out`, a study's folder that may be deleted afterwards. Stopped at any
    point, the same call goes on: with the run under way from its checkpoint.
    """
    chosen = [p for p in phases if device != "cpu" or not p.needs_gpu]
    todo = [p for p in campaign(chosen) if not (results / f"{p.hash}.json").exists()][:most]
    say(f"{len(todo)} runs to do")
    out.parent.mkdir(parents=True, exist_ok=True)
    for batch in _batches(todo):
        study = _study_file(out.with_name(f"{out.name}.batch.yaml"), batch)
        executor = _Metered(jobs or choose_jobs(device), lambda: collect(out, results))
        run_study(study, out, executor=executor, device=device, retry_failed=True)
        collect(out, results)  # runs that another batch left here
    return len(todo)


def _batches(todo: list[Planned]) -> Iterator[list[Planned]]:
    """Runs of one phase and seed."""
    groups: dict[tuple[str, int], list[Planned]] = {}
    for planned in todo:
        groups.setdefault((planned.phase.name, planned.run.seed), []).append(planned)
    yield from groups.values()


def _study_file(path: Path, batch: list[Planned]) -> Path:
    """A study of just these runs. Batches share one folder, so a run that two of them hold is
    there."""
    first = batch[0]
    fixed = plan_study(STUDIES / f"{first.phase.study}.yaml").study.set
    points = {", ".join(p.run.point.values()): {**fixed, **p.run.values} for p in batch}
    study = {"name": "paper", "base": str(first.base), "seeds": [first.run.seed], "list": points}
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


# --- what a run costs --------------------------------------------------------------------------


class _Metered(LocalExecutor):
    """Local processes that note how much processor time each run takes; `kept` is called after
    each."""

    def __init__(self, jobs: int, kept: Callable[[], object]) -> None:
        super().__init__(jobs)
        self._kept = kept

    def ended(self, timeout_s: float) -> list[Result]:
        results = super().ended(timeout_s)
        if results:
            self._kept()
        return results

    def submit(self, job: Job) -> None:
        super().submit(replace(job, runner=f"{__name__}:metered"))


def metered(job: Job, out: Path, tell: Callable[[int, float, float | None], None]) -> None:
    """`run_scenario`, with its processor time in `cost.json`; what was interrupted counts too."""
    path = out / COST_FILE
    before_s = json.loads(path.read_text())["cpu_s"] if path.exists() else 0.0
    began_s = time.process_time()
    try:
        run_scenario(job, out, tell)
    finally:
        if out.is_dir():
            cost = {"cpu_s": before_s + time.process_time() - began_s, "code": job.code}
            path.write_text(json.dumps(cost), encoding="utf-8")


# --- what is kept ------------------------------------------------------------------------------


def collect(study: Path, results: Path = RESULTS) -> list[str]:
    """Write the compact results of a study folder's finished runs that have none; their names."""
    store = StudyFolder(study)
    store.plan()  # a sentence where this is no study's folder
    results.mkdir(parents=True, exist_ok=True)
    written = []
    for folder in sorted(store.runs.iterdir()):
        if not store.is_finished(folder.name):
            continue
        run = open_run(folder)
        scenario = validate_scenario(
            run.scenario, source=str(folder / "scenario.yaml"), folder=folder
        )
        path = results / f"{run_hash(scenario)}.json"
        if path.exists():
            continue
        result = {"format": FORMAT, "hash": path.stem, **compact(run, folder)}
        partial = path.with_name(f".{path.name}")
        partial.write_text(_text(result), encoding="utf-8")
        os.replace(partial, path)
        written.append(path.stem)
    return written


def compact(run: Run, folder: Path) -> dict[str, Any]:
    """A run in a few kB: its setting, its accuracy curves, who chose what, what it cost."""
    cost_file = folder / COST_FILE
    cost = json.loads(cost_file.read_text()) if cost_file.exists() else {}
    manifest, summary = run.manifest, run.summary
    learned = manifest["learning_wall_s"].get("training", 0) > 0
    return {
        "address": folder.name,
        "fingerprint": run.fingerprint,
        "setting": setting_of(run.scenario),
        "seed": run.scenario["seed"],
        "simulated_s": summary["simulated_s"],
        "uplink_bytes": summary["uplink_bytes"],
        "rollbacks": summary["rollbacks"],
        "phases_s": summary["phases_s"],
        "curve": _curve(run),
        "plays": _plays(run),
        "by_round": _by_round(run),
        "rewards": _rewards(run),
        "cost": {
            "cpu_s": round(cost["cpu_s"], 1) if cost else None,
            "wall_s": round(manifest["wall_s"]["total"], 1),
            "learning": "computed" if learned else "replayed",
        },
        "made_with": {
            **{name: manifest["versions"][name] for name in ("simfed", "torch", "numpy")},
            "device": manifest["device"],
            # of the process that computed it; another's, such as this one's, would be a guess
            "code": cost.get("code"),
            "device_profiles": _profiles(folder),
        },
    }


def setting_of(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The coordinates of a run in the paper's evaluation; None where one has no meaning."""
    policy, reward = scenario["policy"], scenario["policy"].get("reward") or {}
    learns = policy["kind"] != "uniform"
    group = validate_scenario(dict(scenario), source="scenario.yaml", folder=Path()).clients[0]
    if not isinstance(group.link.up, float):
        raise TypeError("the evaluation's links have one rate")
    return {
        "dataset": scenario["dataset"]["name"],
        "rounds": scenario["rounds"],
        "public": scenario["dataset"]["public"],
        "k": scenario["compression"]["k"],
        "alpha": scenario["dataset"]["partition"]["alpha"],
        "up_mbps": round(group.link.up * 8 / 1e6, 6),
        "policy": policy["kind"] if learns else policy["strategy"],
        "rho": reward.get("rho") if learns else None,
        "beta": reward.get("beta") if learns else None,
        "c": policy.get("c") if policy["kind"] == "ascend" else None,
        **({"universe": universe} if (universe := _universe(scenario)) else {}),
    }


def _universe(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the values taken for the source's open points."""
    policy, training = scenario["policy"], scenario["training"]
    reward = policy.get("reward") or {}
    local, rate = reward.get("local_loss") or {}, scenario["distillation"]["learning_rate"]
    scale = scenario["clients"][0]["device"]["scale"] or {}
    on = (scenario["safeguard"]["rollback"] is not None) == (policy["kind"] == "ascend")
    taken_and_here = {
        "credit": ("causal", local.get("credit", "causal")),
        "f_n": ("probe", local.get("data", "probe")),
        "clip": ([-1, 1], reward.get("clip", [-1, 1])),
        "usual safeguard": (True, on),
        "compression ×": (1, scale.get("compression", 1)),
        "local steps": (1, training["local_steps"]),
        **_safeguard(scenario["safeguard"]),
        "distillation ×": (1, (rate or training["learning_rate"]) / training["learning_rate"]),
    }
    return {name: here for name, (taken, here) in taken_and_here.items() if here != taken}


def _safeguard(section: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Its keys: as taken, and here. Where it is off, nothing but that counts."""
    if section["rollback"] is None:
        return {}
    at_once = section["rollback"]["max_consecutive"]
    return {
        "residuals": ({"kind": "restored"}, section["residuals"]),
        "reference": ({"kind": "last-accepted"}, section["reference"]),
        "forces": ("top-k", section["forces"]),
        "threshold": (2.0, section["rollback"]["threshold"]),
        "in a row": (1, at_once),
    }


def _profiles(folder: Path) -> dict[str, str]:
    """Device profiles that lie beside the run's scenario → a digest of their content."""
    paths = sorted((folder / "calibration").glob("*.yaml"))
    return {path.stem: digest_value(path.read_text(encoding="utf-8"))[:16] for path in paths}


def _curve(run: Run) -> dict[str, Any]:
    """Accuracy per prototype wherever it was evaluated, beside round and simulated time."""
    measured = run.prototypes.dropna(subset=["test_accuracy"])
    wide = measured.pivot(index="round", columns="prototype", values="test_accuracy")
    ends = run.rounds.set_index("round")["finished_at_s"].reindex(wide.index)
    return {
        "round": [int(n) for n in wide.index],
        "at_s": [float(f"{at_s:.7g}") for at_s in ends],
        "accuracy": {str(p): [round(float(a), 5) for a in wide[p]] for p in wide.columns},
    }


def _plays(run: Run) -> dict[str, dict[str, dict[str, int]]]:
    """Prototype → strategy → why it was chosen → how often."""
    counts = run.participations.groupby(["prototype", "arm", "choice"]).size()
    plays: dict[str, dict[str, dict[str, int]]] = {}
    for (prototype, arm, choice), n in counts.items():
        plays.setdefault(prototype, {}).setdefault(arm, {})[choice] = int(n)
    return plays


CHOICES = ("warm-up", "explore", "exploit", "forced", "fixed")


def _by_round(run: Run) -> dict[str, Any]:
    """What everybody played in every round, which rounds were undone, and the distillation losses:
    arrays packed by `packed`."""
    plays = run.participations
    arms = sorted(set(plays["arm"]))
    code = [
        arms.index(a) + 16 * CHOICES.index(c)
        for a, c in zip(plays["arm"], plays["choice"], strict=True)
    ]
    wide = plays.assign(code=code).pivot(index="client", columns="round", values="code")
    losses = run.prototypes.pivot(index="prototype", columns="round", values="kd_loss")
    undone = run.rounds.loc[run.rounds["rolled_back"], "round"]
    return {
        "arms": arms,
        "clients": dict(plays.groupby("client")["prototype"].first().items()),
        "plays": packed(wide.to_numpy(np.uint8)),
        "undone": [int(n) for n in undone],
        "kd_loss": {str(p): packed(losses.loc[p].to_numpy(np.float32)) for p in losses.index},
    }


def packed(array: np.ndarray) -> str:
    """An array's bytes, deflated, as text; its shape and type are known to who reads it."""
    return base64.b85encode(zlib.compress(array.tobytes(), 9)).decode()


def unpacked(text: str, dtype: str, *shape: int) -> np.ndarray:
    """The array again.

    >>> unpacked(packed(np.arange(6, dtype=np.uint8)), "uint8", 2, 3)
    array([[0, 1, 2],
           [3, 4, 5]], dtype=uint8)
    """
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype).reshape(shape)


def _rewards(run: Run) -> dict[str, int]:
    """How many rewards there were, and how many of them hit the clip."""
    rewarded = run.participations.dropna(subset=["reward"])
    clipped = (rewarded["reward"] != rewarded["reward_raw"]).sum()
    return {"count": len(rewarded), "clipped": int(clipped)}


def _text(result: dict[str, Any]) -> str:
    """JSON with one line per key, so that a changed result reads as one in a diff."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
