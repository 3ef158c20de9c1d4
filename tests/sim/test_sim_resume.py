"""A run that stops on its way and goes on is the run that never stopped."""

import pytest
import sim_worlds as sim

from simfed.ground.errors import InputError, Interrupted, RunFailed
from simfed.net import Star
from simfed.verify.invariants import verify

STAR = Star(4, up_bytes_per_s=[1e3, 2e3, 3e3, 4e3], receive_bytes_per_s=6e3, latency_s=0.01)
CLIENTS = [
    {
        "count": 4,
        "prototype": "small",
        "device": {"profile": "rtx3090-ryzen4800h", "noise": {"kind": "lognormal", "cv": 0.3}},
    }
]


class Rewarding:
    """A stand-in for learning whose losses fall, so that policies have something to learn."""

    def __init__(self, sizes):
        self._sizes = sizes

    def __getattr__(self, name):
        return getattr(self._sizes, name)

    def merge(self, round, contributions, weights=()):
        from simfed.fleet.contract import Outcome

        done = self._sizes.merge(round, contributions)
        local = {
            c.task.label: (1.0 / round, 1.0 / round - 1e-3 * len(c.choice.strategy))
            for c in contributions
        }
        return Outcome(round, done.model_version, local_loss=local)


def plain(rounds=7):
    return sim.scenario(
        rounds=rounds, clients=CLIENTS, policy={"kind": "ascend", "warmup": 1, "c": 1}
    )


def world(recorder=None, rounds=7):
    from simfed.device import build_processor, load_profile
    from simfed.ground.seeding import Streams

    sizes = sim.TimeOnlyWorkload(sim.TasksOf(plain(rounds), down_bytes=100.0))
    processor = build_processor({"noise": {"cv": 0.3}}, load_profile("rtx3090-ryzen4800h"))
    devices = [processor.client(Streams(0), client) for client in range(4)]
    return sim.build(
        plain(rounds), star=STAR, devices=devices, workload=Rewarding(sizes), recorder=recorder
    )


def stop_after(rounds):
    """Says yes from the given round on, as a Ctrl-C in that round would."""
    asked = []
    return lambda: asked.append(1) or len(asked) >= rounds


@pytest.mark.parametrize("stop", [1, 6])
def test_an_interrupted_run_goes_on_to_the_same_fingerprint(tmp_path, stop):
    whole = sim.write(tmp_path / "whole", world, plain())
    with pytest.raises(Interrupted, match=f"stopped after round {stop}; --resume goes on"):
        sim.write(tmp_path / "run", world, plain(), stop_requested=stop_after(stop))
    resumed = sim.resume(tmp_path / "run", world, plain())
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.table("participations").equals(whole.table("participations"))
    assert verify(tmp_path / "run") == verify(tmp_path / "whole") == []


def test_a_run_may_stop_and_go_on_many_times(tmp_path):
    whole = sim.write(tmp_path / "whole", world, plain())
    with pytest.raises(Interrupted):
        sim.write(tmp_path / "run", world, plain(), stop_requested=lambda: True)
    for _ in range(5):
        with pytest.raises(Interrupted):
            sim.resume(tmp_path / "run", world, plain(), stop_requested=lambda: True)
    assert sim.resume(tmp_path / "run", world, plain()).fingerprint == whole.fingerprint


def test_a_run_that_died_goes_on_from_its_last_checkpoint(tmp_path):
    whole = sim.write(tmp_path / "whole", world, plain())

    def dies(round, simulated_s, accuracy):
        if round == 6:
            raise RunFailed("the power went")

    with pytest.raises(RunFailed):
        sim.write(tmp_path / "run", world, plain(), save_every=2, progress=dies)
    seen = []
    resumed = sim.resume(
        tmp_path / "run", world, plain(), progress=lambda round, *_: seen.append(round)
    )
    assert seen == [5, 6, 7]
    assert resumed.fingerprint == whole.fingerprint


def test_checkpoints_change_nothing_and_the_last_one_stays(tmp_path):
    without = sim.write(tmp_path / "without", world, plain())
    often = sim.write(tmp_path / "often", world, plain(), save_every=1)
    assert often.fingerprint == without.fingerprint
    assert (tmp_path / "often" / "checkpoint" / "state.json").exists()
    assert not (tmp_path / "often" / "checkpoint" / "segments").exists()
    assert not (tmp_path / "without" / "checkpoint" / "state.json").exists()


def test_an_interrupt_in_the_last_round_comes_too_late(tmp_path):
    run = sim.write(tmp_path / "run", world, plain(), stop_requested=stop_after(7))
    assert run.manifest["status"] == "finished"


def test_an_interrupt_without_a_directory_says_so_and_keeps_nothing():
    with pytest.raises(Interrupted, match=r"^stopped after round 1$"):
        world().run(stop_requested=lambda: True)


def test_another_scenario_is_not_gone_on_with(tmp_path):
    with pytest.raises(Interrupted):
        sim.write(tmp_path / "run", world, plain(), stop_requested=lambda: True)
    with pytest.raises(InputError, match="rounds: 9 in place of rounds: 7"):
        sim.resume(tmp_path / "run", lambda recorder: world(recorder, 9), plain(9))


class Warming(sim.Fixed):
    """A device that is slower the more it has computed: it has a past to remember."""

    heat = 0.0

    def duration_s(self, nominal_s, start_at_s, *, round, phase, nth=0, steps=1.0):
        self.heat += nominal_s
        return nominal_s * (1 + self.heat)

    def state(self):
        return {"heat": self.heat}

    def restore(self, state):
        self.heat = state["heat"]


def test_devices_remember_their_past_across_an_interruption(tmp_path):
    scenario = sim.scenario(rounds=4, participation={"clients_per_round": 2})

    def warm_world(recorder):
        return sim.build(
            scenario,
            devices=[Warming(1.0, 0.1) for _ in range(4)],
            server_device=Warming(decompression=0.1, inference=0.2, distillation=0.3),
            recorder=recorder,
        )

    whole = sim.write(tmp_path / "whole", warm_world, scenario)
    with pytest.raises(Interrupted):
        sim.write(tmp_path / "run", warm_world, scenario, stop_requested=stop_after(2))
    resumed = sim.resume(tmp_path / "run", warm_world, scenario)
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.rounds.server_s.is_monotonic_increasing
