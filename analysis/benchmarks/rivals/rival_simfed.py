"""simfed's learning alone: its batched engine in the plain loop of rounds, one process.

python rival_simfed.py TASK.npz      # reads the settings; data and split are simfed's own
python rival_simfed.py TASK.npz bridge      # Flower's side, unmodified, under simfed's clock
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rival_task import Rounds, Task, read_task


def scenario(task: Task, dataset: str) -> dict[str, Any]:
    """The task as a scenario that `simfed run` takes, too; the same devices and links for all."""
    return {
        "name": "rival",
        "method": "fedavg",
        "rounds": task.rounds,
        "dataset": {"name": dataset, "public": 0, "partition": {"kind": "iid"}},
        "prototypes": {"only": {"model": task.model}},
        "clients": [
            {
                "count": task.clients,
                "prototype": "only",
                "device": "x86-2core-vm",
                "link": {"up": "10 Mbps", "down": "50 Mbps", "latency": "20 ms"},
            }
        ],
        "training": {
            "batch_size": task.batch,
            "learning_rate": task.rate,
            "local_epochs": 1,
        },
        "compression": {"strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "participation": {"clients_per_round": task.per_round},
        "evaluation": {"every": task.rounds},
    }


def play(task: Task, dataset: str) -> None:
    """All rounds of the plain loop."""
    from simfed.ground.seeding import Streams
    from simfed.learn.hosted import HostedWorkload
    from simfed.learn.plain import plain_rounds
    from simfed.scenario import Scenario

    made, streams = Scenario.model_validate(scenario(task, dataset)), Streams(0)
    work = HostedWorkload(made, streams, workers=1, learns=False)
    rounds = Rounds(task.rounds)
    for played in plain_rounds(made, work, streams):
        rounds.after(played.round)
    [evaluation] = played.outcome.evaluation.values()
    rounds.report(evaluation.accuracy, "torch")
    work.close()


def bridge(path: str, task: Task) -> None:
    """All rounds of `rival_flower.py`, its messages and its work charged."""
    import rival_flower

    import simfed

    os.environ[rival_flower.TASK] = os.path.abspath(path)
    group = {**scenario(task, "mnist")["clients"][0]}
    del group["prototype"]
    fleet = {"name": "bridge", "clients": [group], "computing": "metered"}
    simfed.flower.run(
        rival_flower.server_app, rival_flower.client_app, fleet, progress=False, workers=1
    )
    rival_flower.clock().report(rival_flower.reached[-1], "flwr", "torch")


if __name__ == "__main__":
    read = read_task(sys.argv[1])
    if sys.argv[2:] == ["bridge"]:
        bridge(sys.argv[1], read)
    else:
        play(read, *(sys.argv[2:] or ["mnist"]))
