"""Every registered part keeps the contract of its kind."""

import pytest

import simfed.testing
from simfed.ground import REGISTRIES

OPTIONS = {
    "availability battery": {"capacity_j": 6_000.0, "charge_w": 0.05},
    # where the defaults take long, or leave something out
    "method fedmd": {"compress_logits": True},
    "method feddf": {"steps": 3, "check_every": 2, "batch_size": 4},
    "policy uniform": {"strategy": "random-k"},
    # the smallest image every built-in model takes
    "model": {"input_shape": (3, 12, 12), "classes": 4},
}
FROM_ZERO = {
    "initial": "ema-from-zero",
    "ema": "1/n",
    "warmup": 2,
    "count_forced": True,
}


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        *(
            (kind, name, OPTIONS.get(f"{kind} {name}", OPTIONS.get(kind, {})))
            for kind in REGISTRIES
            if kind not in ("dataset", "device")
            for name in REGISTRIES[kind].names()
        ),
        # an arm beside the others
        ("policy", "uniform", {"strategy": "dense"}),
        ("policy", "ascend", FROM_ZERO),
        ("policy", "ucb", {"discount": 0.9, "exploration": 0.0}),
        ("policy", "ucb", {"window": 1}),
        ("policy", "thompson", {"discount": 1.0, "sd": 0.01}),
        ("codec", "qsgd", {"levels": 300, "bucket": 64}),
        ("codec", "detached-ef", {"inner": "top-k+qsgd(4)"}),
    ],
)
def test_a_registered_part_keeps_the_contract(kind, name, options):
    part = REGISTRIES[kind].get(name)
    check = getattr(simfed.testing, f"check_{kind}")
    check(part, **getattr(part, "example", options))
