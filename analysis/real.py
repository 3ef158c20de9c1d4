"""Simulations held against deployments on one machine: analysis/REAL.md, its figures.

    python analysis/real.py

They are made of analysis/results-real/*.json. What was played for these (deployments
behind shaped links and quotas, profiles measured and fitted, simulations of both) is in
analysis/real.py of commit c8e210ff.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from orders import compare_orders
from pages import markdown
from scipy import stats

from simfed.ground.units import counted
from simfed.report.pictures import picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).with_name("results-real")
PAGE = Path(__file__).with_name("REAL.md")
FIGURES = Path(__file__).with_name("figures")
SLOW = 0.15, 0.1
"""Shares of a processor of the small models' and the large models' devices."""
PERIOD = "10 ms"
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
POLICIES = ("top-k", "random-k", "periodic-k", "exp3", "ascend")


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
        "Made by `python analysis/real.py` from `analysis/results-real/`; that script "
        "in commit c8e210ff is how it was played. What deployments are, and what is "
        "unlike the scenario in shaped ones, is said in "
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
        axes.set_xticks(range(len(POLICIES)), POLICIES, rotation=30, ha="right")
    # after all is drawn: it ends the search for the upper end
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("median round, ms")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    write_report()
