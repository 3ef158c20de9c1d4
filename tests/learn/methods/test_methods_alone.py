"""What an upload counts that is merged alone: in full, where a method says
`shares_add_up`.
"""

import numpy as np
import pytest
from textbook import data_of, scenario

from simfed.compress.choice import Choice
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.learn.hosted import HostedWorkload

METHODS = [kind for kind in registry("method").names() if kind != "local-only"]


def merged_alone(made, weight):
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    try:
        for round, counts in (1, 1.0), (2, weight):
            upload = workload.execute(workload.task(round, round), Choice("dense", 1))
            workload.merge(round, [upload], [counts])
        return {k: v for k, v in workload.state()[1].items() if k.startswith("server/")}
    finally:
        workload.close()


@pytest.mark.parametrize("kind", METHODS)
def test_an_upload_alone_counts_in_full_where_shares_add_up_to_1(kind):
    made = scenario(kind)
    whole, half = merged_alone(made, 1.0), merged_alone(made, 0.5)
    same = all(
        np.allclose(whole[name], half[name], rtol=1e-5, atol=1e-7) for name in whole
    )
    assert whole.keys() == half.keys()
    assert same == made.method.made.shares_add_up
