"""Methods at their defaults in settings of publications on MNIST.

Settings are taken from publications, as far as scenarios can say them, and every method that was
tried there, or stands near one that was, is run with its default options. What the publications
report is not repeated: their tables were not at hand. The rows are kept in
`analysis/published_accuracies.csv`, from which comes the table of docs/methods.md; a row that is
there already is not computed again.

    python analysis/published_accuracies.py [--only NAME] [--seeds 2]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pages import markdown, write_page

import simfed

RESULTS = Path(__file__).parent / "published_accuracies.csv"
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
_KEY = ("setting", "method", "seed")
_LINK = {"up": "10 Mbps", "down": "50 Mbps"}


@dataclass(frozen=True)
class Setting:
    name: str
    source: str
    base: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    """Label → what is changed in `base`."""
    own_mix: bool = False
    """What is reported is the accuracy in each client's own label mix."""
    seeds: tuple[int, ...] = field(default=(0, 1, 2))


def _scenario(count: int, model: str, **more: Any) -> dict[str, Any]:
    device = {
        "profile": "x86-2core-vm",
        "assume": {"auxiliary": "1 ms"},
        "noise": {"kind": "lognormal", "cv": 0.3},  # else all arrive, and are merged, at one time
    }
    return {
        "prototypes": {"one": {"model": model}},
        "clients": [{"count": count, "prototype": "one", "device": device, "link": _LINK}],
        "server": {"device": device},
        "compression": {"strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"},
        **more,
    }


_OPTIMISERS = {
    f"fedopt, {name}": {"method": {"kind": "fedopt", "optimizer": name}}
    for name in ("adagrad", "yogi", "adam")
}
_PUBLIC = {"dataset.public": 1_000, "dataset.public_batch": 256}

SETTINGS = (
    Setting(
        "hundred clients, two hidden layers",
        "McMahan 2017, table 2 (2NN, E = 1, B = 10, C = 0.1): evenly dealt images; here 87 "
        "rounds at rate 0.1",
        _scenario(
            100,
            "perceptron",
            rounds=87,
            evaluation={"every": 29},
            participation={"clients_per_round": 10},
            dataset={"name": "mnist", "partition": {"kind": "iid"}},
            training={"learning_rate": 0.1, "batch_size": 10, "local_epochs": 1},
        ),
        {
            "fedavg": {"method": "fedavg"},
            "fedprox": {"method": "fedprox"},
            "scaffold": {"method": "scaffold"},
            **_OPTIMISERS,
        },
    ),
    Setting(
        "ten silos",
        "Li 2022 (NIID-Bench): ten parties, Dir(0.5), LeNet-5, "
        "ten epochs a round, batch 64, rate 0.01, momentum 0.9, 50 rounds; here 3 rounds of them",
        _scenario(
            10,
            "lenet5",
            rounds=3,
            dataset={"name": "mnist", "partition": {"kind": "dirichlet", "alpha": 0.5}},
            training={"learning_rate": 0.01, "momentum": 0.9, "batch_size": 64, "local_epochs": 10},
        ),
        {
            "fedavg": {"method": "fedavg"},
            "fedprox": {"method": "fedprox"},
            # without momentum, which it cannot have; the rate is what momentum comes to
            "scaffold": {
                "method": "scaffold",
                "training.momentum": 0.0,
                "training.learning_rate": 0.1,
            },
            **_OPTIMISERS,
            "fedbuff": {"method": "fedbuff"},
        },
        seeds=(0,),
    ),
    Setting(
        "twenty users, ten a round",
        "Zhu 2021 (FedGen): Dir(0.1), twenty steps a round, batch 32, rate 0.01, 200 rounds, a "
        "small convolutional network; there half of the images, here all",
        _scenario(
            20,
            "lenet5-half",
            rounds=200,
            evaluation={"every": 20},
            participation={"clients_per_round": 10},
            dataset={"name": "mnist", "partition": {"kind": "dirichlet", "alpha": 0.1}},
            training={"learning_rate": 0.01, "batch_size": 32, "local_steps": 20},
        ),
        {
            "fedavg": {"method": "fedavg"},
            "fedprox": {"method": "fedprox"},
            "scaffold": {"method": "scaffold"},
            "feddf": {"method": "feddf", **_PUBLIC},
            "fedgen": {"method": "fedgen"},
            "fedasync, one at a time": {
                "method": "fedasync",
                "rounds": 2_000,
                "evaluation.every": 200,
                "participation": {},
                "aggregation": {
                    "mode": "asynchronous",
                    "concurrency": 10,
                    "staleness": {"kind": "constant"},
                },
            },
        },
    ),
    Setting(
        "three digits each",
        "Tan 2022 (FedProto): twenty clients of about three digits and a hundred images of each, "
        "batch 4, rate 0.01, momentum 0.5, 100 rounds of one epoch (75 steps); here 50, of the "
        "10,000 images of mnist-mini",
        _scenario(
            20,
            "lenet5-half",
            rounds=50,
            evaluation={"every": 10},
            dataset={"name": "mnist-mini", "partition": {"kind": "shards", "shards_per_client": 3}},
            training={"learning_rate": 0.01, "momentum": 0.5, "batch_size": 4, "local_steps": 75},
        ),
        {
            "local-only": {"method": "local-only"},
            "fedproto": {"method": "fedproto"},
            "fedtgp": {"method": "fedtgp"},
            "fedmd": {"method": "fedmd", **_PUBLIC},
            "kt-pfl": {"method": "kt-pfl", **_PUBLIC},
            "fedal": {"method": "fedal", **_PUBLIC},
            "fedkd-mutual": {"method": "fedkd-mutual"},
        },
        own_mix=True,
        seeds=(0,),
    ),
)


def changed(base: dict[str, Any], changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """The scenario of a setting with what one of its methods changes, under a seed."""
    made: dict[str, Any] = {**base, "name": "published", "seed": seed}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        made[section] = {**made.get(section, {}), name: value} if name else value
    return made


def _rows(setting: Setting, label: str, seed: int) -> Iterator[dict[str, Any]]:
    scenario = changed(setting.base, setting.methods[label], seed)
    with tempfile.TemporaryDirectory() as folder:
        run = simfed.run(scenario, Path(folder) / "run", workers=1, progress=False)
        evaluated = run.prototypes.dropna(subset=["test_accuracy"])
        means = run.clients.groupby("round").mean(numeric_only=True)
        for round, rows in evaluated.groupby("round"):
            yield {
                "setting": setting.name,
                "method": label,
                "seed": seed,
                "round": int(round),
                "accuracy": round_(100 * rows["test_accuracy"].mean()),
                "own_mix": round_(100 * means["own_accuracy"].get(round, float("nan"))),
            }


def round_(percent: float) -> float:
    """To a hundredth."""
    return float(f"{percent:.2f}")


def table(results: pd.DataFrame) -> str:
    """What came out of the last of the evaluated rounds, and, where own label mixes are what is
    reported, on the whole test set."""
    lines = [["setting", "method", "percent right", "on all digits", "seeds"]]
    for setting in SETTINGS:
        mine = results[results["setting"] == setting.name]
        for label in setting.methods:
            rows = mine[mine["method"] == label]
            if not len(rows):
                continue
            last = rows[rows["round"] == rows["round"].max()]
            shown = _spread(last["own_mix" if setting.own_mix else "accuracy"])
            everywhere = _spread(last["accuracy"]) if setting.own_mix else ""
            lines.append([setting.name, label, shown, everywhere, str(len(last))])
    return markdown(lines)


def _spread(percents: pd.Series) -> str:
    spread = f" ({percents.min():.1f} to {percents.max():.1f})" if len(percents) > 1 else ""
    return f"{percents.mean():.1f}{spread}"


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"publications": table(pd.read_csv(RESULTS))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="the name of one setting")
    parser.add_argument("--seeds", type=int, default=3, help="at most so many of each")
    arguments = parser.parse_args()
    results = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame(columns=list(_KEY))
    done = results[list(_KEY)].to_numpy().tolist()
    for setting in SETTINGS:
        if arguments.only not in (None, setting.name):
            continue
        for seed in setting.seeds[: arguments.seeds]:
            for label in setting.methods:
                if [setting.name, label, seed] in done:
                    continue
                rows = pd.DataFrame(_rows(setting, label, seed))
                results = pd.concat([results, rows]) if len(results) else rows
                results.to_csv(RESULTS, index=False)
    write_page("published_accuracies")


if __name__ == "__main__":
    main()
