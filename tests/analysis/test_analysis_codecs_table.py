"""The study of codecs at equal bytes: its sizes, and what a bound looks like in its
table.
"""

import codecs_table
import pandas as pd

from simfed.compress import codec_from_spec
from simfed.study import plan_study

LAYERS = (
    (3, 1, 5, 5),
    (3,),
    (8, 3, 5, 5),
    (8,),
    (60, 200),
    (60,),
    (42, 60),
    (42,),
    (10, 42),
    (10,),
)
"""Of LeNet-5/2."""


def test_what_never_got_there_is_a_bound():
    rows = pd.DataFrame(
        [
            {"setting": "here", "codec": codec, "seed": seed, "reached": round < 50,
             "round": round + seed, "at_s": float(round + seed), "upload_kb": 6.0}
            for codec, round in (("top-k", 20), ("dgc", 10), ("qsgd(2)", 50))
            for seed in range(3)
        ]
    )  # fmt: skip
    lines = codecs_table.table(rows).splitlines()
    assert lines[2] == "| top-k | 6.0 | 21 | 1 |"
    assert lines[3].startswith("| dgc | 6.0 | 11 | 1.9")
    assert lines[4].startswith("| qsgd(2) | 6.0 | > 51 (0 of 3 seeds got there) | <0.4")


def test_every_codec_is_brought_to_its_size_once_per_seed():
    plan = plan_study(codecs_table.FILE)
    sizes = {}
    for run in plan.runs:
        codec = codec_from_spec(run.scenario.policy.strategy)
        k = run.scenario.compression.k
        sizes[run.point["list"]] = codec.size_bytes(15_738, k, "seeded", layout=LAYERS)
    assert len(plan.runs) == 3 * len(sizes) * len(plan.seeds) == 3 * len(sizes) * 5
    assert sizes.pop("adacomp") is None
    assert [sizes.pop("powersgd(3)"), sizes.pop("svd(3)")] == [6756, 6756]
    for codec in codecs_table.OWN_SIZE:
        del sizes[codec]
    assert all(5990 <= size <= 6030 for size in sizes.values())
