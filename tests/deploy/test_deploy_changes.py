"""What a real client makes of changes of the model, and what it does not take."""

import deploy_worlds as worlds
import numpy as np
import pytest
import torch

from simfed import InputError
from simfed.ground import Streams
from simfed.learn import ChangesDown, ChangesHeld, HostedWorkload, Parcel, read_answer
from simfed.learn.changes import Changes

CHANGES = {"compression": {"k": 300, "strategy": "top-k"}}


@pytest.fixture(scope="module")
def tasks():
    plan = worlds.scenario(downlink=CHANGES)
    work = HostedWorkload(plan, Streams(0), learns=False)
    yield plan, work.tasks
    work.close()


def ends(tasks):
    _, setting = tasks
    who = setting.who(0)
    changes = Changes(setting, who, setting.task(1, 0, 0).plan.down["weights"])
    return changes, ChangesDown({"weights": changes}), ChangesHeld({"weights": changes})


def grown(changes, held, version):
    rng = np.random.default_rng(version)
    model = held + torch.from_numpy(rng.normal(size=len(held)).astype(np.float32))
    return held + changes.next(model, held, rng)


def test_many_small_changes_add_up_and_many_large_ones_are_a_model(tasks):
    changes, down, there = ends(tasks)
    held = torch.zeros(changes.whole_bytes // 4)
    model = {"weights": held, "buffers": torch.ones(2)}
    said, parts = down.parts(None, 0, model, ("buffers",))
    assert there.arrived(said, parts, to_keep=True)["weights"].equal(held)
    for version in range(1, 60):
        held = grown(changes, held, version)
        down.add(version)
        model = {"weights": held, "buffers": torch.full((2,), float(version))}
        said, parts = down.parts(0, version, model, ("buffers",))
        sent = sum(
            len(part) for name, part in parts.items() if name.startswith("weights/")
        )
        assert ("weights" in parts) == (sent == 0)
        arrival = there.arrived(said, parts, to_keep=False)
        for name, value in model.items():
            assert arrival[name].equal(value)
    assert "weights" in parts  # 59 changes are more than the whole
    assert len(down._written) < 59
    there.arrived(said, parts, to_keep=True)
    said, parts = down.parts(59, 59, model, ("buffers",))
    assert not parts
    assert there.arrived(said, parts, to_keep=True)["weights"].equal(held)


def test_changes_of_what_it_does_not_have_are_not_added(tasks):
    changes, down, there = ends(tasks)
    model = {"weights": torch.zeros(changes.whole_bytes // 4)}
    down.parts(None, 0, model, ())
    model["weights"] = grown(changes, model["weights"], 1)
    down.add(1)
    said, parts = down.parts(0, 1, model, ())
    assert [*parts] == ["weights/0"]
    assert there.arrived(said, parts, to_keep=True) is None  # it has nothing yet
    down.undo(1)
    assert [*down.parts(0, 1, model, ())[1]] == ["weights"]


@pytest.mark.parametrize("data", [b"", b"\xff" * 50, np.zeros(3, np.float32)], ids=repr)
def test_changes_that_no_encoder_wrote_are_refused(tasks, data):
    changes, down, there = ends(tasks)
    model = {"weights": torch.zeros(changes.whole_bytes // 4)}
    there.arrived(*down.parts(None, 0, model, ()), to_keep=True)
    said = {"version": 1, "held": 0, "changes": {"weights": [None]}}
    with pytest.raises(InputError):
        there.arrived(said, {"weights/0": data}, to_keep=True)


@pytest.mark.parametrize("method", ["fedkd", "scaffold"])
def test_who_lacks_what_changes_build_on_fails_once_and_is_sent_the_whole(
    method, monkeypatch
):
    """As where another process took a client's place between two messages."""
    arrived, tasks = ChangesHeld.arrived, []

    def forgets(self, said, parts, *, to_keep):
        if to_keep and said["held"] is not None:
            tasks.append(said["version"])
            if len(tasks) == 1:
                return None
        return arrived(self, said, parts, to_keep=to_keep)

    monkeypatch.setattr(ChangesHeld, "arrived", forgets)
    plan = worlds.scenario(rounds=4, method=method, downlink=CHANGES)
    rows = worlds.deployed(plan).participations.set_index(["client", "round"])
    [(client, round)] = rows.index[rows["outcome"] == "failed"]
    first, after = rows.loc[client, 1], rows.loc[client, round + 1]
    assert after["outcome"] == "aggregated"
    assert after["downlink_bytes"] == pytest.approx(first["downlink_bytes"], abs=99)


@pytest.mark.parametrize("said", [None, "x", float("nan"), float("inf"), [1.0], {}])
def test_loss_that_is_no_number_is_none(said):
    assert read_answer(Parcel({"loss": said})) is None
    assert read_answer(Parcel({})) is None
    assert read_answer(None) is None
    assert read_answer(Parcel({"loss": 1})) == 1.0
