"""What is known of other K and strategies, and where a real run goes on."""

import pytest
import yaml
from explored import answer, read_curve
from worlds import TINY

import simfed
from simfed import InputErrors
from simfed.explore import ExploredWorld
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


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with a run, and a study of other K and strategies beside it."""
    folder = tmp_path_factory.mktemp("shelf")
    simfed.run(WORLD, folder / "run", progress=False, workers=1)
    (folder / "world.yaml").write_text(yaml.safe_dump(WORLD))
    (folder / "study.yaml").write_text("""
name: beside
base: world.yaml
list:
- {compression.k: 100, network.server.send: 5 Mbps}
- {policy: {kind: uniform, strategy: random-k}}
- {compression.k: 200, training.learning_rate: 0.5}
""")
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
    with pytest.raises(InputErrors, match="no-such"):
        world.apply({"policy": "no-such"})
    for setting in ({"compression.k": 100}, {"policy": "random-k"}):
        made = {**setting, "clients[0].link.up": "3 Mbps"}
        told = answer(world, made)
        run = simfed.run(world.apply(made), progress=False, workers=1)
        assert told["unknown"] is None
        assert told["curve"]["a"] == read_curve(run)
        assert told["ends_s"] == run.rounds["finished_at_s"].tolist()


class Heard(list):
    """What a real run tells."""

    send = list.append

    def list_again(self):
        """Return the rounds that were learned, one after another."""
        told = (said["again"] for said in self if isinstance(said, dict))
        return [number for number in told if number is not None]


def test_a_real_run_goes_on_from_the_nearest_kept_state(tmp_path):
    run = simfed.run(SHAKY, tmp_path / "run", progress=False, workers=1)
    longest_s = sorted(run.rounds["duration_s"], reverse=True)
    world, heard, unknown = ExploredWorld(tmp_path / "run"), [], []
    for i in (0, 1):  # deadlines that cut the longest round, and the two longest
        deadline = f"{sum(longest_s[i : i + 2]) / 2!r} s"
        setting = {"aggregation.mode": "deadline", "aggregation.deadline": deadline}
        unknown.append(answer(world, setting)["unknown"])
        known, out = world.find_answers(setting), tmp_path / f"real/run-{i}"
        heard.append(Heard())
        made = world.complete(setting)
        LearningJob(world.base, made, world.source, out, known.folders).run(heard[i])
        assert heard[i][-1] == ""
        fresh = simfed.run(world.apply(setting), progress=False, workers=1)
        assert simfed.load_run(out).fingerprint == fresh.fingerprint
        known.add(out)
        assert answer(world, setting)["curve"]["a"] == read_curve(fresh)
    first, second = unknown
    assert 1 < first < second
    # nobody has kept a state before; then one stands where the first one left the known
    assert heard[0].list_again() == [*range(1, 9)]
    assert heard[1].list_again() == [*range(first, 9)]
