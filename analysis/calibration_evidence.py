"""How well a profile of this machine predicts what it was not fitted to.

    python analysis/calibration_evidence.py [--sessions 3] [--repeat 12] [--keep FOLDER]

1. Held-out sizes: measure one set of sizes in some processes, fit laws, and compare them with other
   K, batch sizes and public sets, measured in yet another process.
2. A full prediction: the simulated time of 20 rounds of one client that runs alone (training,
   compression, reconstruction, logits, distillation; no network) against those very rounds run for
   real in another process, for each model and strategy.

Real times are processor time of the one thread, as in the profile; wall time is printed beside it
and is larger where other programs run. With --keep the tables and the profile stay in FOLDER.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simfed.calibrate.check import compare
from simfed.calibrate.profiles import fit_profile, profile_text
from simfed.device import ModelWork, load_profile
from simfed.device.table import read_table
from simfed.learn.catalogue import facts

MODELS = (("lenet5-half", "mnist-mini"), ("lenet5", "mnist-mini"))
STRATEGIES = ("top-k", "random-k", "periodic-k")
FITTED = {
    "ks": (500, 1000, 2000, 5000, 10_000),
    "batches": (8, 16, 32, 64),
    "samples": (64, 128, 256, 512),
}
HELD_OUT = {"ks": (700, 1500, 3000, 7000), "batches": (12, 24, 48), "samples": (96, 192, 384)}
ROUNDS = 20


def in_another_process(function: Callable[..., Any], *arguments: object) -> Any:
    """The function's result, from a fresh Python."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measured(out: str, sizes: dict[str, Any], repeat: int) -> None:
    from simfed.calibrate.measure import MeasurementPlan, measure

    measure(MeasurementPlan(models=MODELS, strategies=STRATEGIES, repeat=repeat, **sizes), out)


def works() -> dict[str, ModelWork]:
    known = {model: facts(model, dataset) for model, dataset in MODELS}
    return {m: ModelWork(f.parameters, f.forward_flops, f.train_flops) for m, f in known.items()}


def held_out_sizes(folder: Path, sessions: int, repeat: int) -> Path:
    """Prints part 1; the path of the fitted profile."""
    fitted, other = folder / "evidence-fit.csv", folder / "evidence-held-out.csv"
    for session in range(1, sessions + 1):
        in_another_process(measured, str(fitted), FITTED, session * repeat)
    in_another_process(measured, str(other), HELD_OUT, repeat)
    table = read_table([fitted])
    calibration = fit_profile(table, name="evidence", models=works())
    path = folder / "evidence.yaml"
    path.write_text(profile_text(calibration.document), encoding="utf-8")
    profile = load_profile(path)
    profile.models.update(works())
    found = compare(profile, read_table([other]))
    print(f"held-out sizes: {len(found.points)} medians of {repeat} calls, one other process")
    for quantity in dict.fromkeys(point.key[0] for point in found.points):
        part = type(found)(tuple(p for p in found.points if p.key[0] == quantity))
        print(
            f"  {quantity:<14} median error {part.median_error:6.1%}  worst "
            f"{part.worst.error:+7.1%}  in 90 % interval {part.coverage:5.0%}"
        )
    print(
        f"  {'all':<14} median error {found.median_error:6.1%}  worst {found.worst.error:+7.1%}"
        f"  in 90 % interval {found.coverage:5.0%}"
    )
    print(f"  {found.verdict}")
    return path


def scenario_of(model: str, strategy: str, profile: str) -> dict[str, Any]:
    return {
        "name": "alone",
        "rounds": ROUNDS + 1,  # the test set is evaluated after the last round, which is not played
        "dataset": {"name": "mnist-mini", "public": 256},
        "prototypes": {"p": {"model": model}},
        "clients": [{"prototype": "p", "device": profile}],
        "policy": {"kind": "uniform", "strategy": strategy},
        "compression": {"k": 1000},
        "server": {"device": profile},
        "charge": {"downlink": False, "buffers": False},
        "evaluation": {"every": 1000},
    }


def really_run(model: str, strategy: str, profile: str) -> tuple[float, float]:
    """(processor seconds, wall seconds) of the rounds, played for real after three to warm up."""
    from simfed.ground.seeding import Streams
    from simfed.learn.hosted import HostedWorkload
    from simfed.learn.plain import plain_rounds
    from simfed.scenario import Scenario

    spent = (0.0, 0.0)
    scenario = Scenario.model_validate(scenario_of(model, strategy, profile))
    for rounds in (3, ROUNDS):
        streams = Streams(0)
        workload = HostedWorkload(scenario, streams, learns=False)
        played = plain_rounds(scenario, workload, streams)
        next(played)  # the first round also evaluates the initial models
        begin, wall_begin = time.process_time(), time.perf_counter()
        for _ in range(rounds - 1):
            next(played)
        spent = (time.process_time() - begin, time.perf_counter() - wall_begin)
        workload.close()
    scale = ROUNDS / (ROUNDS - 1)
    return spent[0] * scale, spent[1] * scale


def simulated_s(model: str, strategy: str, profile: str) -> float:
    import simfed
    from simfed.scenario import Scenario

    scenario = Scenario.model_validate({**scenario_of(model, strategy, profile), "rounds": ROUNDS})
    result = simfed.run(scenario, time_only=True, progress=False)
    return float(result.rounds["finished_at_s"].max())


def full_prediction(profile: Path) -> None:
    """Prints part 2."""
    print(f"{ROUNDS} rounds of one client alone: simulated against real")
    errors = []
    for model, _ in MODELS:
        for strategy in STRATEGIES:
            predicted_s = simulated_s(model, strategy, str(profile))
            runs = [in_another_process(really_run, model, strategy, str(profile)) for _ in range(3)]
            real_s, wall_s = (statistics.median(run[i] for run in runs) for i in (0, 1))
            errors.append(predicted_s / real_s - 1)
            print(
                f"  {model:<12} {strategy:<11} simulated {predicted_s:.4f} s  real {real_s:.4f} s"
                f" ({errors[-1]:+.1%})  wall {wall_s:.4f} s"
            )
    print(f"  median error {statistics.median(map(abs, errors)):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sessions", type=int, default=3, help="processes that measure for the fit"
    )
    parser.add_argument("--repeat", type=int, default=12, help="measurements per case and process")
    parser.add_argument("--keep", type=Path, help="folder for the tables and the profile")
    options = parser.parse_args()
    print(f"load on the machine: {os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        full_prediction(held_out_sizes(folder, options.sessions, options.repeat))


if __name__ == "__main__":
    main()
