"""Six clients of very different speeds over shared links, under every server mode."""

import sim_worlds as sim

from simfed.net import Star

MODES = {
    "synchronous": {"mode": "synchronous"},
    "deadline, drop": {"mode": "deadline", "deadline": "1.4 s"},
    "deadline, merge": {"mode": "deadline", "deadline": "1.4 s", "late": "merge"},
    "deadline, bound": {
        "mode": "deadline",
        "deadline": "1.1 s",
        "late": "merge",
        "staleness": {"kind": "constant", "bound": 1},
    },
    "first, drop": {"mode": "first", "over_selection": 0.5},
    "first, merge": {"mode": "first", "over_selection": 0.5, "late": "merge"},
    "buffered": {"mode": "buffered", "buffer": 2, "concurrency": 4},
    "asynchronous": {"mode": "asynchronous", "concurrency": 4},
}


def scenario(mode, rounds=8, **changes):
    """`mode`: a key of `MODES`, or what `aggregation` is to be."""
    aggregation = MODES[mode] if isinstance(mode, str) else mode
    asked = (
        {}
        if "concurrency" in aggregation
        else {"participation": {"clients_per_round": 4}}
    )
    options = {
        "rounds": rounds,
        "clients": 6,
        "aggregation": aggregation,
        **asked,
        **changes,
    }
    return sim.scenario(**options)


def star():
    up = [2e3, 3e3, 5e3, 8e3, 12e3, 20e3]
    return Star(
        6,
        up_bytes_per_s=up,
        down_bytes_per_s=1e4,
        receive_bytes_per_s=15e3,
        latency_s=0.01,
    )


class Uneven(sim.Fixed):
    """A device whose work takes a little longer every time."""

    done = 0

    def duration_s(self, nominal_s, start_at_s, *, round, phase, nth=0, steps=1.0):
        self.done += 1
        return nominal_s * (1 + 0.07 * (self.done % 5))


def world(plain, recorder=None, *, server=False, **parts):
    device = (
        Uneven(decompression=0.05, inference=0.2, distillation=0.3) if server else None
    )
    parts.setdefault(
        "devices", [Uneven(0.1 + 0.15 * client, 0.02) for client in range(6)]
    )
    return sim.build(
        plain,
        star=star(),
        downlink_bytes=500.0,
        server_device=device,
        recorder=recorder,
        **parts,
    )
