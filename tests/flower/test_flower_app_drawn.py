"""An app in worlds of which everything is drawn: whole, and the same to the bit in memory, and by
several processes."""

import random
import sys
from pathlib import Path

import pytest
from flower_worlds import client, payload, server, to

import simfed
from simfed.experiment.checks import check_parts
from simfed.ground.errors import RunFailed
from simfed.scenario.fleet_file import FleetFile, validate_fleet
from simfed.verify.run import verify

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))
import laws
import laws_worlds


def ask_everybody_twice(grid, context):
    for turn in range(2):
        messages = [to(node, payload(turn, size=200)) for node in grid.get_node_ids()]
        list(grid.send_and_receive(messages, timeout=30.0))


def read_fleet(plain):
    fleet = validate_fleet(plain, source="world", folder=laws.files())
    check_parts(fleet.world(), laws.files() / "world.yaml", time_only=True)
    return fleet


@pytest.mark.parametrize("seed", range(120))
def test_an_app_in_any_world_is_whole(tmp_path, seed):
    plain = laws_worlds.Drawing(random.Random(seed), root=FleetFile).world()
    fleet = laws_worlds.mend_world(plain, read_fleet)

    def play(out=None, **options):
        source = laws.files() / "world.yaml"
        apps = server(ask_everybody_twice), client()
        return simfed.flower.run(*apps, fleet, out, source=source, progress=False, **options)

    try:
        run = play(tmp_path / "run")
    except RunFailed as error:
        pytest.skip(str(error))
    assert verify(run.path) == []
    laws.assert_same(run, play())
    laws.assert_same(run, play(workers=2))
