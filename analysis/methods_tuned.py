"""Sixteen methods tuned alike, as METHODS.md registers it: the runs, and what decides.

    # half an hour on one core; goes on where it stopped
    python analysis/methods_tuned.py run
    # beside another, and put together
    python analysis/methods_tuned.py run --seeds 9 8 7 --rows other.parquet
    python analysis/methods_tuned.py join other.parquet
    # from the kept rows
    python analysis/methods_tuned.py judge
    # once more, all with the same clip
    python analysis/methods_tuned.py clip

`run` plays scenarios/methods-tuned.yaml on two data sets: every method at eight
settings under the seed that chooses, then at the one chosen under the seeds that
report. It keeps every evaluation of every run in methods-tuned.parquet, after each run;
what is there is not played again. `clip` plays the chosen settings once more with
everybody's gradients clipped, into methods-clipped.parquet.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from orders import holm
from pages import markdown
from scipy import special

import simfed
from simfed.ground.errors import RunFailed
from simfed.ground.seeding import Streams
from simfed.report.statistics import Estimate, estimate_paired_difference

HERE = Path(__file__).resolve().parent
BASE = HERE.parent / "scenarios" / "methods-tuned.yaml"
ROWS, CLIPPED = HERE / "methods-tuned.parquet", HERE / "methods-clipped.parquet"

CHOOSING, REPORTED = (100,), range(10)
"""Seeds under which settings are chosen, and those of what is reported."""
FEWEST_SEEDS = 5
"""Below, nothing is told apart."""
CLIP_NORM, CLIP_SEEDS = 1.0, range(5)
"""What everybody's gradients are clipped at, and under which seeds."""
SETTINGS = 8
STEPS = (5, 10, 20)
RATES = (0.01, 0.5)
"""Local steps of a round and learning rates that every method tries; a pair of numbers
is a range, on a scale of powers."""
OWN: Mapping[str, Mapping[str, tuple[float, float] | list[Any]]] = {
    "fedavg": {},
    "fedprox": {"method.mu": (0.001, 1.0)},
    "fedopt": {
        "method.optimizer": ["adam", "yogi"],
        "method.server_rate": (0.003, 0.1),
    },
    "scaffold": {"method.server_rate": (0.5, 1.5)},
    "fedbuff": {"method.server_rate": (0.3, 1.5), "aggregation.buffer": [3, 6]},
    "fedasync": {"method.mixing": (0.1, 0.9)},
    "fedgen": {"method.weight": (0.1, 3.0)},
    "fedkd": {"distillation.learning_rate": (0.003, 0.3), "distillation.steps": [1, 5]},
    "feddf": {"method.rate": (1e-4, 3e-3)},
    "fedmd": {"method.digest_rate": (0.01, 0.5), "method.digest_epochs": [1, 3]},
    "kt-pfl": {"method.digest_rate": (0.01, 0.5), "method.rho": (0.1, 1.0)},
    "fedal": {"method.adversarial": (0.01, 1.0), "method.forgetting": (0.01, 1.0)},
    "fedproto": {"method.pull": (0.01, 3.0)},
    "fedtgp": {"method.pull": (0.01, 3.0)},
    "fedkd-mutual": {"method.energy_end": (0.96, 0.999)},
    "local-only": {},
}
"""Method → what it is that its paper tunes."""
PERSONAL = (
    "fedmd",
    "kt-pfl",
    "fedal",
    "fedproto",
    "fedtgp",
    "fedkd-mutual",
    "local-only",
)
"""Methods in which clients keep models, which their papers evaluate for each client."""
PUBLIC = ("fedkd", "feddf", "fedmd", "kt-pfl", "fedal")
FIXED: Mapping[str, Mapping[str, Any]] = {
    "fedproto": {"method.predict": "nearest-mean"},
    "fedtgp": {"method.predict": "nearest-mean"},
    "fedbuff": {"aggregation.mode": "buffered"},
    "fedasync": {"aggregation.mode": "asynchronous"},
}
"""Method → what is the same in all its settings: predictions as its authors make them,
its server. Late uploads are weighed down by the method alone."""
GUESS = 0.1
"""What a run is right at before it begins, and one that diverged: there are ten
classes."""
DIVERGED = {"at_s": 0.0, "moved_bytes": 0.0, "accuracy": GUESS, "own_accuracy": GUESS}
EVALUATIONS = {True: 10, False: 40}
"""Of a run, at least: where clients keep models, of which each is evaluated, and
elsewhere."""
_CLIENTS = 12
_KEY = ("data", "method", "setting", "seed")


class Data(NamedTuple):
    """A data set and what may be spent on it."""

    model: str
    seconds: float
    sent_bytes: float
    """Both ways, of all clients: a quarter of what fedavg moves in these seconds."""


DATA = {
    "mnist-mini": Data("lenet5-half", 15.0, 6e6),
    "synthetic(1, 1)": Data("perceptron", 30.0, 21e6),
}
_CURVE = ("at_s", "moved_bytes", "accuracy", "own_accuracy")
MEASURES = {"accuracy": "common test set", "own_accuracy": "clients' own data"}
BUDGETS = ("seconds", "bytes")


# ---- what is played ------------------------------------------------------------------


def settings_of(method: str) -> list[dict[str, Any]]:
    """The eight settings of a method, by key path.

    Each of eight learning rates stands in one; the other ranges are cut into eight as
    well, and dealt to the settings at random.
    """
    draws = Streams(37)
    columns = {
        "training.learning_rate": _spread(RATES),
        "training.local_steps": draws("steps")
        .permutation(_spread(list(STEPS)))
        .tolist(),
    }
    for key, values in OWN[method].items():
        columns[key] = draws("own", method, key).permutation(_spread(values)).tolist()
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def _spread(values: tuple[float, float] | list[Any]) -> list[Any]:
    if isinstance(values, list):
        return [values[i % len(values)] for i in range(SETTINGS)]
    return [float(f"{value:.2g}") for value in np.geomspace(*values, SETTINGS)]


def write_synthetic(folder: Path, seed: int) -> dict[str, Any]:
    """Synthetic(1, 1) of Li et al., "Federated Optimization in Heterogeneous Networks"
    (2020), drawn anew for every seed: clients differ in their inputs and in what the
    right answer to an input is. There are 50 samples each and some more (log-normal, at
    most 1,000), 100 for the test, and 256 of all clients together, without labels, for
    the server. The scenario's keys.
    """
    draw, parts = Streams(seed), []
    for client in range(_CLIENTS):
        rng = draw("synthetic", client)
        labelled, inputs = rng.normal(0.0, 1.0, 2)
        weights, bias = (
            rng.normal(labelled, 1.0, (60, 10)),
            rng.normal(labelled, 1.0, 10),
        )
        centre, deviation = rng.normal(inputs, 1.0, 60), np.arange(1, 61) ** -0.6
        count = min(1000, 50 + int(rng.lognormal(4.0, 2.0)))
        x = rng.normal(centre, deviation, (count + 100 + 22, 60)).astype(np.float32)
        parts.append(
            [*np.split(x, [count, count + 100]), (x @ weights + bias).argmax(1)]
        )
    owners = range(_CLIENTS)
    np.savez(
        folder / "data.npz",
        x_train=np.concatenate([train for train, *_ in parts]),
        y_train=np.concatenate([y[: len(train)] for train, _, _, y in parts]),
        owner_train=np.repeat(owners, [len(train) for train, *_ in parts]),
        x_test=np.concatenate([test for _, test, *_ in parts]),
        y_test=np.concatenate(
            [y[len(train) : len(train) + 100] for train, _, _, y in parts]
        ),
        owner_test=np.repeat(owners, 100),
    )
    np.savez(
        folder / "public.npz", x=np.concatenate([public for *_, public, _ in parts])
    )
    return {"dataset": {"file": str(folder / "data.npz")}}


def overrides_of(
    data: str, method: str, setting: int, seed: int, folder: Path
) -> dict[str, Any]:
    """What changes in the scenario for one run, rounds aside."""
    chosen = {**settings_of(method)[setting], **FIXED.get(method, {})}
    changes: dict[str, Any] = {"seed": seed, "prototypes.one.model": DATA[data].model}
    options = {"kind": method}
    for key, value in chosen.items():
        section, _, name = key.partition(".")
        if section == "method":
            options[name] = value
        elif section != "aggregation":
            changes[key] = value
    changes["method"] = options
    mode = {
        k.partition(".")[2]: v
        for k, v in chosen.items()
        if k.startswith("aggregation.")
    }
    if mode:
        changes["aggregation"] = {
            **mode, "concurrency": _CLIENTS, "staleness": {"kind": "constant"}
        }  # fmt: skip
    drawn = data != "mnist-mini"
    if drawn:
        changes |= write_synthetic(folder, seed)
    if method in PUBLIC:
        changes["dataset.public"] = 256
        if drawn:
            changes["dataset.public_file"] = str(folder / "public.npz")
    return changes


def play(
    data: str, method: str, setting: int, seed: int, clip_norm: float | None = None
) -> pd.DataFrame:
    """A row per evaluation of one run: when, bytes moved by then, and both accuracies
    (means over clients). One that diverged has one row, of guesses.
    """
    name = {"data": data, "method": method, "setting": setting, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        changes = overrides_of(data, method, setting, seed, Path(folder))
        changes["training.clip_norm"] = clip_norm
        end_s = DATA[data].seconds
        merges = {"fedbuff": 20, "fedasync": 5 * _CLIENTS}.get(method, 5)
        probe = simfed.load_scenario(BASE, {**changes, "rounds": merges})
        learns = method == "fedkd-mutual"  # what it sends is known once it has learned
        try:
            clock = simfed.run(probe, time_only=not learns, workers=1, progress=False)
        except (RunFailed, RuntimeError) as failure:  # before there was a time to take
            if not has_diverged(failure):
                raise
            return pd.DataFrame([{**name, **DIVERGED}])
        each_s = float(clock.rounds["finished_at_s"].iloc[-1]) / merges
        rounds = int(1.05 * end_s / each_s) + 1
        every = max(1, rounds // EVALUATIONS[method in PERSONAL])
        whole = {"rounds": rounds, "evaluation": {"every": every, "clients": True}}
        try:
            run = simfed.run(
                simfed.load_scenario(BASE, {**changes, **whole}),
                workers=1,
                progress=False,
            )
        except (RunFailed, RuntimeError) as failure:
            if not has_diverged(failure):
                raise
            return pd.DataFrame([{**name, **DIVERGED}])
    moved = run.participations.eval("merge_bytes = uplink_bytes + downlink_bytes")
    by_merge = moved.groupby("merge")["merge_bytes"].sum().sort_index().cumsum()
    evaluated = run.prototypes.dropna(subset=["test_accuracy"]).set_index("round")
    table = pd.DataFrame(
        {
            "at_s": run.rounds.set_index("round")["finished_at_s"],
            "moved_bytes": by_merge.reindex(run.rounds["round"], method="ffill").fillna(
                0.0
            ),
            "accuracy": evaluated["test_accuracy"],
            "own_accuracy": run.clients.groupby("round")["own_accuracy"].mean(),
        }
    ).dropna()
    return table.reset_index(drop=True).assign(**name)[[*name, *table]]


def has_diverged(failure: Exception) -> bool:
    """Whether a run failed for its learning; in fedkd-mutual, PyTorch says so."""
    return "diverged" in str(failure) or "non-finite" in str(failure)


def plays() -> Iterator[tuple[str, str, int, int]]:
    """All runs in their order: those that choose, then seed by seed those that are
    reported.
    """
    for seed in CHOOSING:
        for data in DATA:
            for method in OWN:
                for setting in range(SETTINGS):
                    yield data, method, setting, seed


def run(path: Path, seeds: Sequence[int] = REPORTED) -> None:
    """Play what is missing, and keep the rows after every run.

    Of those that report, the runs of these seeds in this order.
    """
    rows = _with(path, plays())
    _with(path, _of_chosen(rows, seeds))


def run_clipped(path: Path, seeds: Sequence[int] = CLIP_SEEDS) -> None:
    """Play the settings that the kept rows choose once more, with everybody's gradients
    clipped: method by method, all seeds of each.
    """
    keys = list(_of_chosen(pd.read_parquet(ROWS), seeds))
    order = [(data, method) for data in DATA for method in OWN]
    _with(path, sorted(keys, key=lambda key: order.index(key[:2])), CLIP_NORM)


def _of_chosen(
    rows: pd.DataFrame, seeds: Iterable[int]
) -> Iterator[tuple[str, str, int, int]]:
    best = choices(rows)
    for seed in seeds:
        for data in DATA:
            for method in OWN:
                yield data, method, best[data, method], seed


def _with(
    path: Path,
    keys: Iterable[tuple[str, str, int, int]],
    clip_norm: float | None = None,
) -> pd.DataFrame:
    """The rows of a file, with those of further runs, which are kept after each."""
    rows = pd.read_parquet(path) if path.exists() else pd.DataFrame(columns=list(_KEY))
    for key in keys:
        if not (rows[list(_KEY)] == list(key)).all(axis=1).any():
            of_run = play(*key, clip_norm)
            rows = pd.concat([rows, of_run], ignore_index=True) if len(rows) else of_run
            keep(rows, path)
    return rows


def keep(rows: pd.DataFrame, path: Path) -> None:
    """Write all rows, or leave the file as it was."""
    whole = path.with_suffix(".partial")
    rows.to_parquet(whole, index=False)
    whole.replace(path)


def join(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The runs of several files, each once and in the order in which one process plays
    them. A run that two files have must be the same in both (`ValueError`).
    """
    runs: dict[tuple[Any, ...], pd.DataFrame] = {}
    for part in parts:
        for key, curve in part.groupby(list(_KEY), sort=False):
            curve = curve.reset_index(drop=True)
            if not runs.setdefault(key, curve).equals(curve):
                raise ValueError(f"Two files have different rows of {key}.")
    turn = {seed: at for at, seed in enumerate((*CHOOSING, *REPORTED))}
    data, methods = list(DATA), list(OWN)

    def place(key: tuple[Any, ...]) -> tuple[int, ...]:
        return turn[key[3]], data.index(key[0]), methods.index(key[1]), key[2]

    return pd.concat([runs[key] for key in sorted(runs, key=place)], ignore_index=True)


# ---- what decides --------------------------------------------------------------------


def at_budgets(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per run and budget: both accuracies when the seconds, or the bytes, were
    spent.
    """
    ends = []
    curves = rows[[*_CURVE]].to_numpy(float)
    for key, places in rows.groupby(list(_KEY), sort=False).indices.items():
        name = dict(zip(_KEY, key, strict=True))
        spend = DATA[name["data"]]
        columns = np.vstack([[0.0, 0.0, GUESS, GUESS], curves[places]]).T
        curve = dict(zip(_CURVE, columns, strict=True))
        at_s, moved = curve["at_s"], curve["moved_bytes"]
        gone_s = spend.seconds
        if moved[-1] > spend.sent_bytes:
            gone_s = min(gone_s, float(np.interp(spend.sent_bytes, moved, at_s)))
        for budget, until_s in zip(BUDGETS, (spend.seconds, gone_s), strict=True):
            right = {m: float(np.interp(until_s, at_s, curve[m])) for m in MEASURES}
            used = float(np.interp(until_s, at_s, moved))
            ends.append({**name, "budget": budget, **right, "moved_bytes": used})
    return pd.DataFrame(ends)


def measure_of(method: str) -> str:
    """What the method's paper reports."""
    return "own_accuracy" if method in PERSONAL else "accuracy"


def tried(rows: pd.DataFrame) -> dict[tuple[str, str], pd.Series[float]]:
    """Return each method's settings on each data set, the most accurate first: by the
    measure of its paper and on average over the two budgets and the seeds that choose.
    """
    ends = at_budgets(rows[rows["seed"].isin(CHOOSING)])
    means = ends.groupby(["data", "method", "setting"])[list(MEASURES)].mean()
    return {
        (data, method): means.loc[(data, method)][measure_of(method)].sort_values(
            ascending=False, kind="stable"
        )
        for data in DATA
        for method in OWN
    }


def choices(rows: pd.DataFrame) -> dict[tuple[str, str], int]:
    """Return each method's setting on each data set: the most accurate one."""
    return {key: int(accuracies.index[0]) for key, accuracies in tried(rows).items()}


class Pair(NamedTuple):
    """Two methods under the same seeds."""

    one: str
    other: str
    gap: Estimate
    """Accuracy of one less that of the other."""
    told: bool
    """Apart, after Holm's correction."""


class Family(NamedTuple):
    """All pairs of methods on one data set, by one measure, at one budget."""

    data: str
    measure: str
    budget: str
    means: pd.Series
    """Accuracy of each method, the best first."""
    pairs: tuple[Pair, ...]

    def behind(self, method: str) -> list[str]:
        """Whom a method is clearly ahead of."""
        return [
            p.other if p.gap.least > 0 else p.one
            for p in self.pairs
            if self._won(p, method)
        ]

    @staticmethod
    def _won(pair: Pair, method: str) -> bool:
        return pair.told and method == (pair.one if pair.gap.least > 0 else pair.other)


def judge(rows: pd.DataFrame) -> list[Family]:
    """The eight families of the registration.

    Nothing is told apart with too few seeds.
    """
    ends = reported(rows)
    families: list[Family] = []
    for (data, budget), of_budget in ends.groupby(["data", "budget"], sort=False):
        for measure in MEASURES:
            table = of_budget.pivot(index="seed", columns="method", values=measure)
            both = list(itertools.combinations(OWN, 2))
            p_values = [p_value(table[one] - table[other]) for one, other in both]
            enough = len(table) >= FEWEST_SEEDS
            pairs = tuple(
                Pair(
                    one,
                    other,
                    estimate_paired_difference(table[one], table[other]),
                    told and enough,
                )
                for (one, other), told in zip(both, holm(p_values), strict=True)
            )
            means = table.mean().sort_values(ascending=False)
            families.append(Family(str(data), measure, str(budget), means, pairs))
    return families


def reported(rows: pd.DataFrame) -> pd.DataFrame:
    """`at_budgets` of the runs that are reported: of the seeds from 0 upwards of which
    every run is done.
    """
    best = choices(rows)
    chosen = rows["setting"] == [
        best[key] for key in zip(rows["data"], rows["method"], strict=True)
    ]
    ends = at_budgets(rows[chosen & rows["seed"].isin(REPORTED)])
    runs = ends[["data", "method", "seed"]].drop_duplicates()["seed"].value_counts()
    whole = itertools.takewhile(
        lambda seed: runs.get(seed, 0) == len(DATA) * len(OWN), REPORTED
    )
    return ends[ends["seed"].isin(list(whole))]


def p_value(gaps: pd.Series) -> float:
    """Of differences seed by seed, by Student's t."""
    if not np.ptp(gaps.to_numpy()):
        return float(not gaps.any())
    t = gaps.mean() / gaps.sem()
    return 2 * float(special.stdtr(len(gaps) - 1, -abs(t)))


def family_table(families: Sequence[Family]) -> str:
    """A row per family: how many pairs are told apart, and whom the best is not told
    apart from.
    """
    lines = [
        [
            "data",
            "measure",
            "equal",
            "told apart of 120",
            "highest",
            ("not told apart from it"),
        ]
    ]
    for family in families:
        first = str(family.means.index[0])
        near = [m for m in family.means.index[1:] if m not in family.behind(first)]
        told = sum(pair.told for pair in family.pairs)
        highest = f"{first} {100 * family.means.iloc[0]:.1f}"
        who = [family.data, MEASURES[family.measure], family.budget]
        lines.append([*who, str(told), highest, ", ".join(near) or "–"])
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("run", "clip", "join", "judge"))
    parser.add_argument(
        "parts", type=Path, nargs="*", help="join: files with further runs"
    )
    parser.add_argument("--rows", type=Path, help="another file than the kept one")
    parser.add_argument(
        "--seeds", type=int, nargs="+", choices=REPORTED, metavar="SEED"
    )
    arguments = parser.parse_args()
    path, seeds = arguments.rows or ROWS, arguments.seeds
    if arguments.do == "run":
        run(path, seeds or REPORTED)
    if arguments.do == "clip":
        run_clipped(arguments.rows or CLIPPED, seeds or CLIP_SEEDS)
        return
    if arguments.do == "join":
        keep(join([pd.read_parquet(at) for at in (path, *arguments.parts)]), path)
    print(family_table(judge(pd.read_parquet(path))))


if __name__ == "__main__":
    main()
