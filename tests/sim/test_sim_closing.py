"""A merge under way, as a checkpoint keeps it."""

import json
from types import SimpleNamespace

import pytest

from simfed.sim.aggregator import Closing
from simfed.sim.server_work import PlayedWork


@pytest.mark.parametrize("waited_for", [0, 1, None])
def test_a_merge_under_way_goes_through_a_checkpoint(waited_for):
    flights = [SimpleNamespace(plain=lambda name=name: {"name": name}) for name in ("a", "b")]
    last = None if waited_for is None else flights[waited_for]
    work = [PlayedWork("merge", "merge", None, 0.5)]
    closing = Closing(3, flights, last, False, True, 1.0, 0.0, 2.0, 3.0, work, 0.5)
    plain = json.loads(json.dumps(closing.plain()))
    assert plain["taken"] == [{"name": "a"}, {"name": "b"}]
    again = Closing.of_plain(plain, flights)
    assert again.last is last
    assert again.plain() == closing.plain()
