"""A made-up method on the clock: units of work in any order, several fields, nothing
up, nothing down.
"""

from dataclasses import dataclass

import pytest
import sim_worlds as sim

from simfed import InputError
from simfed.device import DeviceSpec, build_processor, load_profile
from simfed.ground import Field, Method, Plan, Streams, Work
from simfed.net import Star
from simfed.record import explain_rounds

MODEL = "lenet5-half"


@dataclass(frozen=True)
class MadeUp(Method):
    """Does a bit of everything."""

    up: bool = True
    down: bool = True

    def plan(self, setting, who, round):
        down = {
            "weights": Field("weights", who.parameters),
            "targets": Field("logits", 30),
        }
        work = (
            Work("distillation", MODEL, 8, 2, kind="digest"),
            Work("training", MODEL, 32, 3),
            Work("inference", MODEL, 8, 1, kind="logits", name="public"),
            Work("training", MODEL, 32, 1, name="again"),
            Work("auxiliary", "generator", 8, 4),
        )
        up = {
            "update": Field("update", who.parameters, compressed=True),
            "logits": Field("logits", 600, compressed=True, feedback=False),
            "counts": Field("counts", 10, value_bytes=8.0),
        }
        return Plan(down if self.down else {}, work, up if self.up else {})


@pytest.fixture(autouse=True)
def _registered(add_part):
    add_part("method", "made-up", MadeUp)


def device(factor=1.0):
    others = {"inference": 0.25, "distillation": 0.5, "auxiliary": 0.125}
    return sim.Fixed(factor, 0.5, **{name: factor * s for name, s in others.items()})


def world(clients=2, method="made-up", devices=None, **options):
    plain = sim.scenario(rounds=1, clients=clients, method=method)
    devices = devices or [device(1.0 + client) for client in range(clients)]
    return sim.build(plain, devices=devices, downlink_bytes=None, **options).run()


def test_units_are_played_in_the_order_of_the_plan_and_their_seconds_add_up():
    played = world(clients=1)
    assert played.spans("client 0") == [
        ("digest", "digest", 0.0, 1.0),
        ("training", "training", 1.0, 4.0),
        ("logits", "public", 4.0, 4.25),
        ("training", "again", 4.25, 5.25),
        ("auxiliary", "auxiliary", 5.25, 5.75),
        ("compression", "random-k", 5.75, 6.25),
        ("compression", "random-k", 6.25, 6.75),
    ]
    spent = played.rows("participations", "training_s", "compression_s")
    assert spent == [(5.75, 1.0)]


def test_bytes_are_those_of_every_field():
    played = world(star=Star(2, up_bytes_per_s=1e3, down_bytes_per_s=1e3))
    names = "downlink_bytes", "uplink_bytes", "k", "uplink_s"
    # K of the update, all of the shorter logits (values and a seed each), counts as
    # they are
    up_bytes = (4 * 1998 + 8) + (4 * 600 + 8) + 8 * 10
    row = (4 * (sim.D + 30), up_bytes, 1998, pytest.approx(10.488, rel=1e-12))
    assert played.rows("participations", *names)[0] == row


def test_a_method_that_sends_nothing_up_plays_no_arm():
    method = {"kind": "made-up", "up": False}
    played = world(method=method, star=Star(2, up_bytes_per_s=1.0))
    names = "uplink_bytes", "uplink_s", "compression_s", "arm", "choice", "outcome"
    row = (0, 0, 0, "dense", "fixed", "aggregated")
    assert played.rows("participations", *names) == [row] * 2
    kinds = {kind for kind, *_ in played.spans("client 0")}
    assert kinds.isdisjoint({"upload", "compression"})


def test_a_method_that_sends_nothing_down_starts_with_its_work():
    method = {"kind": "made-up", "down": False}
    played = world(method=method, star=Star(2, down_bytes_per_s=1.0))
    assert played.spans("client 0")[0] == ("digest", "digest", 0.0, 1.0)
    assert played.column("rounds", "downlink_bytes") == [0.0]


def test_blame_names_the_kind_of_unit_that_took_longest():
    slow = sim.Fixed(0.01, 0.01, inference=0.01, distillation=4.0, auxiliary=0.01)
    played = world(devices=[device(0.1), slow])
    blamed = played.rows("rounds", "critical_client", "critical_phase")
    assert blamed == [(1, "digest")]
    told = explain_rounds(played.recorder.table)
    assert told == {1: "round 1: client 1, 99 % digest"}


def test_two_units_of_one_kind_are_blamed_together():
    quick = sim.Fixed(0.5, 0.0, inference=0.0, distillation=0.9, auxiliary=0.0)
    # 2 × 0.9 s of digesting is longer than each training (1.5 s, 0.5 s), not than both
    played = world(clients=1, devices=[quick])
    assert played.column("rounds", "critical_phase") == ["training"]


def noisy(units):
    spec = DeviceSpec.model_validate({"profile": "p", "noise": {"cv": 0.3}})
    processor = build_processor(spec, load_profile("rtx3090-ryzen4800h"))
    seen = processor.client(Streams(0), 0)
    return [
        seen.duration_s(1.0, 0.0, round=1, phase=phase, nth=nth) for phase, nth in units
    ]


def test_the_second_unit_of_a_quantity_draws_noise_of_its_own():
    first, second, other = noisy([("training", 0), ("training", 1), ("inference", 0)])
    assert len({first, second, other}) == 3
    assert noisy([("training", 1), ("training", 0)]) == [second, first]


def test_draws_count_units_by_quantity_whatever_is_between_them():
    counting = device()
    world(clients=1, devices=[counting])
    assert counting.asked == [
        ("distillation", 0),
        ("training", 0),
        ("inference", 0),
        ("training", 1),
        ("auxiliary", 0),
        ("compression", 0),
        ("compression", 1),
    ]


def test_what_the_device_does_not_know_of_a_unit_is_an_input_error():
    plain = sim.scenario(rounds=1, method="made-up")
    with pytest.raises(InputError, match="rtx3090-ryzen4800h: distillation"):
        sim.build(plain).run()


def test_server_work_of_a_method_is_played_after_decompression(add_part):
    class Serving(MadeUp):
        def server_work(self, setting, arrived, round):
            return [Work("auxiliary", "critic", 1, len(arrived), kind="critic")]

    add_part("method", "made-up", Serving)
    played = world(server_device=sim.Fixed(decompression=0.25, auxiliary=1.0))
    assert played.column("rounds", "server_s") == [2 * 2 * 0.25 + 2 * 1.0]
    kinds = [kind for kind, *_ in played.spans("server")]
    assert kinds == ["decompression"] * 4 + ["critic"]
