"""What holds of all methods: how an upload counts that is merged alone, and what
averaging sends.
"""

import numpy as np
import pytest
from engine_worlds import Host
from textbook import scenario

from simfed.ground.registry import registry

METHODS = [kind for kind in registry("method").names() if kind != "local-only"]


def merged_alone(made, weight):
    host = Host(made)
    for round, counts in (1, 1.0), (2, weight):
        host.merge(round, [host.begin(round, round)], [counts])
    return {k: v for k, v in host.state()[1].items() if k.startswith("server/")}


@pytest.mark.parametrize("kind", METHODS)
def test_an_upload_alone_counts_in_full_where_shares_add_up_to_1(kind):
    made = scenario(kind)
    whole, half = merged_alone(made, 1.0), merged_alone(made, 0.5)
    same = all(
        np.allclose(whole[name], half[name], rtol=1e-5, atol=1e-7) for name in whole
    )
    assert whole.keys() == half.keys()
    assert same == made.method.made.shares_add_up
