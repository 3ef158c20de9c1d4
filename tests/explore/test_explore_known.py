"""What is known of other K and strategies, and where a real run goes on."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from worlds import TINY

import simfed
from simfed import InputErrors
from simfed.explore import ExploredWorld, play
from simfed.explore.real import LearningJob

WORLD = {**TINY, "rounds": 8, "evaluation": {"every": 1}, "compression": {"k": 400}}
NOISE = {"kind": "lognormal", "cv": 0.3}
SHAKY = {
    **WORLD,
    "seed": 5,  # the longest round is the fifth, the next one the seventh
    "clients": [
        {**WORLD["clients"][0], "device": {"profile": "x86-2core-vm", "noise": NOISE}}
    ],
}


def answer(world: ExploredWorld, setting: dict, **more) -> dict:
    parts = []
    play(world, {"setting": setting, "shown": (1, 2), **more}, parts.append)
    return parts[-1]


def read_curve(run) -> list[list[float]]:
    return run.prototypes[["round", "test_accuracy"]].values.tolist()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with a run, and a study of other K and strategies beside it."""
    folder = tmp_path_factory.mktemp("shelf")
    simfed.run(WORLD, folder / "run", progress=False, workers=1)
    study = {
        "name": "beside",
        "base": "world.yaml",
        "list": [
            {"compression.k": 100, "network.server.send": "5 Mbps"},
            {"policy": {"kind": "uniform", "strategy": "random-k"}},
            {"compression.k": 200, "training.learning_rate": 0.5},
        ],
    }
    (folder / "world.yaml").write_text(yaml.safe_dump(WORLD))
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    simfed.run_study(
        folder / "study.yaml", folder / "study", trajectories=False, progress=False
    )
    return folder


def test_k_and_strategies_of_runs_beside_are_known(shelf):
    world = ExploredWorld(shelf / "run")
    knobs = {knob["path"]: knob for knob in world.describe()["knobs"]}
    # what was learned with another learning rate is not of this run
    assert knobs["compression.k"]["known"] == (100, 400)
    assert knobs["policy"]["choices"][:2] == ("top-k", "random-k")
    for setting in ({"compression.k": 100}, {"policy": "random-k"}):
        made = {**setting, "clients[0].link.up": "3 Mbps"}
        told = answer(world, made)
        run = simfed.run(world.apply(made), progress=False, workers=1)
        assert told["unknown"] is None
        assert told["curve"]["a"] == read_curve(run)
        assert told["ends_s"] == run.rounds["finished_at_s"].tolist()


def test_a_scenario_that_was_not_run_has_k_and_strategies_to_turn(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(WORLD))
    world = ExploredWorld(path)
    setting = {"policy": "periodic-k", "compression.k": 30}
    told, made = answer(world, setting), world.apply(setting)
    assert (made.policy.options["strategy"], made.compression.k) == ("periodic-k", 30)
    run = simfed.run(made, time_only=True, progress=False)
    assert told["ends_s"] == run.rounds["finished_at_s"].tolist()
    with pytest.raises(InputErrors, match="no-such"):
        world.apply({"policy": "no-such"})


class Heard(list):
    """What a real run tells."""

    send = list.append


def list_again(heard) -> list[int]:
    """Return the rounds that were learned, one after another."""
    told = [said["again"] for said in heard if isinstance(said, dict)]
    return [number for number in told if number is not None]


def test_a_real_run_goes_on_from_the_nearest_kept_state(tmp_path):
    run = simfed.run(SHAKY, tmp_path / "run", progress=False, workers=1)
    longest_s = np.sort(run.rounds["duration_s"].to_numpy())[::-1]
    world, heard = ExploredWorld(tmp_path / "run"), []
    for i in (0, 1):  # deadlines that cut the longest round, and the two longest
        deadline = f"{float(longest_s[i : i + 2].mean())!r} s"
        setting = {"aggregation.mode": "deadline", "aggregation.deadline": deadline}
        told, known = answer(world, setting), world.find_answers(setting)
        out = tmp_path / f"real/run-{i}"
        heard.append(Heard())
        made = world.complete(setting)
        job = LearningJob(world.base, made, world.source, out, known.folders)
        job.run(heard[i])
        assert heard[i][-1] == ""
        fresh = simfed.run(world.apply(setting), progress=False, workers=1)
        assert simfed.load_run(out).fingerprint == fresh.fingerprint
        known.add(out)
        assert answer(world, setting)["curve"]["a"] == read_curve(fresh)
        heard[i].insert(0, told["unknown"])
    (first, *early), (second, *late) = heard
    assert 1 < first < second
    # nobody has kept a state before; then one stands where the first one left the known
    assert list_again(early) == [*range(1, 9)]
    assert list_again(late) == [*range(first, 9)]
