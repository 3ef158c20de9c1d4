"""Compact results, made up."""

from pathlib import Path

import numpy as np

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
ARMS = ("top-k", "random-k", "periodic-k")
USUAL = {
    "dataset": "mnist",
    "rounds": 1000,
    "public": 256,
    "k": 1000,
    "alpha": 0.5,
    "up_mbps": 50.0,
}


def facts(
    policy,
    seed,
    *,
    final=0.95,
    reached_at_s=1.0,
    plays=None,
    cpu_s=60.0,
    rollbacks=0,
    models=("lenet5", "lenet5-half"),
    **changes,
):
    """A compact result: at 0.5 s no accuracy yet; 0.9 at `reached_at_s` (None: never); then the
    end.

    `final` is one number, or one per prototype; `plays` is strategy → free choices of a client.
    """
    learns = policy in ("ascend", "exp3")
    setting = {
        **USUAL,
        "policy": policy,
        "rho": 0.6 if learns else None,
        "beta": 0.4 if learns else None,
        "c": 3.0 if policy == "ascend" else None,
        **changes,
    }
    finals = final if isinstance(final, dict) else dict.fromkeys(models, final)
    middle = 0.9 if reached_at_s is not None else 0.5
    chosen = {arm: {"warm-up": 5, "exploit": n} for arm, n in (plays or {policy: 10}).items()}
    return {
        "format": 1,
        "hash": "",
        "address": "",
        "fingerprint": "",
        "setting": setting,
        "seed": seed,
        "simulated_s": 10.0,
        "uplink_bytes": 1.0,
        "rollbacks": rollbacks,
        "phases_s": {"training_s": 8.0, "compression_s": 0.001, "uplink_s": 2.0},
        "curve": {
            "round": [1, 2, 3],
            "at_s": [0.5, reached_at_s or 1.0, 10.0],
            "accuracy": {model: [0.1, middle, finals[model]] for model in finals},
        },
        "plays": dict.fromkeys(finals, chosen),
        "rewards": {"count": 100, "clipped": 40},
        "cost": {"cpu_s": cpu_s, "wall_s": 2 * cpu_s, "learning": "computed"},
        "made_with": {"simfed": "0", "torch": "0", "numpy": "0", "device": "cpu", "code": "c"},
    }


def with_rounds(one, plays, undone=(), losses=None):
    """A result that says who played what in each round; one client per prototype."""
    from campaign import packed

    clients, rounds = np.shape(plays)
    models = list(one["curve"]["accuracy"])
    losses = np.ones((len(models), rounds)) if losses is None else np.asarray(losses)
    one["setting"]["rounds"] = rounds
    one["by_round"] = {
        "arms": sorted(ARMS),
        "clients": dict(zip(map(str, range(clients)), models, strict=True)),
        "plays": packed(np.asarray(plays, np.uint8)),
        "undone": list(undone),
        "kd_loss": {
            model: packed(row.astype(np.float32)) for model, row in zip(models, losses, strict=True)
        },
    }
    return one
