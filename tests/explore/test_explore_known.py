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
SHAKY = {
    **WORLD,
    "seed": 5,  # the longest round is the fifth, the next one the seventh
    "clients": [
        {
            **WORLD["clients"][0],
            "device": {
                "profile": "x86-2core-vm",
                "noise": {"kind": "lognormal", "cv": 0.3},
            },
        }
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
    told = answer(world, {"policy": "periodic-k", "compression.k": 30})
    made = world.apply({"policy": "periodic-k", "compression.k": 30})
    assert (made.policy.options["strategy"], made.compression.k) == ("periodic-k", 30)
    run = simfed.run(made, time_only=True, progress=False)
    assert told["ends_s"] == run.rounds["finished_at_s"].tolist()
    with pytest.raises(InputErrors, match="no-such"):
        world.apply({"policy": "no-such"})


class Heard(list):
    """What a real run tells."""

    def send(self, said) -> None:
        self.append(said)

    def rounds(self, key: str) -> list[int]:
        return [
            said[key]
            for said in self
            if isinstance(said, dict) and said[key] is not None
        ]


def test_a_real_run_goes_on_from_the_nearest_kept_state(tmp_path):
    run = simfed.run(SHAKY, tmp_path / "run", progress=False, workers=1)
    longest_s = np.sort(run.rounds["duration_s"].to_numpy())[::-1]
    world, heard = ExploredWorld(tmp_path / "run"), []
    for i in (0, 1):  # deadlines that cut the longest round, and the two longest
        deadline_s = float(longest_s[i : i + 2].mean())
        setting = {
            "aggregation.mode": "deadline",
            "aggregation.deadline": f"{deadline_s!r} s",
        }
        told, known = answer(world, setting), world.find_answers(setting)
        out = tmp_path / f"real/run-{i}"
        heard.append(Heard())
        LearningJob(
            world.base, world.complete(setting), world.source, out, known.folders
        ).run(heard[i])
        assert heard[i][-1] == ""
        fresh = simfed.run(world.apply(setting), progress=False, workers=1)
        assert simfed.load_run(out).fingerprint == fresh.fingerprint
        known.add(out)
        assert answer(world, setting)["curve"]["a"] == read_curve(fresh)
        heard[i].insert(0, told["unknown"])
    (first, *early), (second, *late) = heard
    assert 1 < first < second
    # nobody has kept a state before; then one stands where the first one left the known
    assert Heard(early).rounds("again") == [*range(1, 9)]
    assert Heard(late).rounds("again") == [*range(first, 9)]
