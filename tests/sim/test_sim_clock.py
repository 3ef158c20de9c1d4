"""The clock, in tiny worlds whose every instant can be worked out by hand."""

import gc
from pathlib import Path

import numpy as np
import pytest
import sim_worlds as sim

from simfed import RunFailed
from simfed.net import Star
from simfed.record.schema import PHASES

K_BYTES = 4 * 1998 + 8  # values, and a seed in place of indices
SERVER = sim.Fixed(decompression=0.125, inference=0.25, distillation=0.5)


def test_one_world_written_out():
    """Three clients, shared server links, server work: the timeline as text, in the
    golden file.
    """
    world = sim.build(
        sim.scenario(rounds=2, clients=3),
        star=Star(
            3,
            up_bytes_per_s=[8e3, 4e3, 8e3],
            down_bytes_per_s=2e4,
            latency_s=0.125,
            receive_bytes_per_s=8e3,
            send_bytes_per_s=1e4,
        ),
        devices=[sim.Fixed(1.0, 0.25), sim.Fixed(0.5, 0.5), sim.Fixed(2.0, 0.25)],
        downlink_bytes=5000.0,
        server_device=SERVER,
    ).run()
    line = (
        "{round}  {started_at_s:8.4f} {finished_at_s:8.4f}  {track:<20} {kind:<14} "
        "{name}"
    )
    golden = Path(__file__).parents[1] / "golden" / "clock_timeline.txt"
    lines = [line.format(**row).rstrip() for row in world.rows("spans")]
    assert lines == golden.read_text(encoding="utf-8").splitlines()


def test_a_round_is_download_training_compression_upload_then_waiting_for_the_slowest():
    world = sim.build(
        sim.scenario(rounds=1, clients=2),
        star=Star(
            2, up_bytes_per_s=[8000.0, 4000.0], down_bytes_per_s=1000.0, latency_s=0.25
        ),
        devices=[sim.Fixed(3.0, 0.5), sim.Fixed(1.0, 0.25)],
        downlink_bytes=2000.0,
    ).run()
    assert world.rows("participations", *PHASES) == [
        # download 2 s + latency, training, compression, upload + latency, waiting
        (2.25, 3.0, 0.5, 1.25, 0.0, 0.0),
        (2.25, 1.0, 0.25, 2.25, 1.25, 0.0),
    ]
    names = "started_at_s", "finished_at_s", "uplink_bytes", "downlink_bytes"
    assert world.rows("rounds", *names) == [(0.0, 7.0, 2 * K_BYTES, 4000.0)]
    assert world.spans("link client-1/up") == [("busy", "busy", 3.75, 5.75)]


def test_an_uncharged_downlink_and_an_unlimited_link_take_no_time_and_leave_no_span():
    world = sim.build(sim.scenario(rounds=1), devices=[sim.Fixed()] * 4).run()
    assert world.spans("client 0") == [
        ("training", "training", 0.0, 1.0),
        ("compression", "random-k", 1.0, 1.5),
    ]
    assert world.rows("links") == []


@pytest.mark.parametrize("rounds", [1, 400])
def test_a_dedicated_upload_takes_size_over_rate_to_1e12_however_late_it_is(rounds):
    plain = sim.scenario(rounds=rounds, compression={"k": 500, "index_code": "ideal"})
    devices = [sim.Fixed(1000.1 + client, 0.3) for client in range(4)]
    star = Star(4, up_bytes_per_s=50e6 / 8)
    world = sim.build(plain, star=star, devices=devices).run()
    closed_form_s = 500 * (32 + np.log2(sim.D)) / 50e6
    uplink_s = np.array(world.column("participations", "uplink_s"))
    assert np.abs(uplink_s / closed_form_s - 1).max() < 1e-12


def test_local_epochs_take_as_many_steps_as_a_client_has_batches():
    plain = sim.scenario(rounds=1, training={"local_epochs": 2, "batch_size": 30})
    owned = [1, 30, 31, 61]
    devices = [sim.Fixed(0.5)] * 4
    world = sim.build(plain, devices=devices, samples_of=owned.__getitem__).run()
    assert world.column("participations", "training_s") == [1.0, 1.0, 2.0, 3.0]


def test_a_device_that_gives_no_number_ends_the_run_with_a_sentence():
    world = sim.build(sim.scenario(), devices=[sim.Fixed(float("nan"))] * 4)
    sentence = "client 0, round 1: the device model gave nan seconds"
    with pytest.raises(RunFailed, match=sentence):
        world.run()


def test_server_work_comes_after_the_last_upload_while_clients_wait():
    plain = sim.scenario(rounds=2, clients=2, distillation={"steps": 3})
    devices = [sim.Fixed(1.0), sim.Fixed(2.0)]
    world = sim.build(plain, devices=devices, server_device=SERVER).run()
    assert world.column("rounds", "server_s") == [2 * 0.125 + 2 * 0.25 + 3 * 0.5] * 2
    assert world.column("rounds", "duration_s") == [2.5 + 2.25] * 2
    assert world.column("participations", "waiting_s")[:2] == [3.25, 2.25]


def test_every_prototype_is_distilled_whoever_took_part():
    plain = sim.scenario(
        prototypes={"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        clients=[sim.group(1, "small"), sim.group(1, "large")],
        participation={"clients_per_round": 1},
    )
    world = sim.build(plain, devices=[sim.Fixed()] * 2, server_device=SERVER).run()
    assert world.column("rounds", "server_s") == [0.125 + 0.25 + 2 * 0.5] * 3
    work = world.spans("server")
    distilled = [name for kind, name, *_ in work if kind == "distillation"]
    assert distilled == ["small", "large"] * 3


def test_fedavg_charges_the_server_for_decompression_only():
    plain = sim.scenario(rounds=1, method="fedavg")
    world = sim.build(plain, devices=[sim.Fixed()] * 4, server_device=SERVER).run()
    assert world.column("rounds", "server_s") == [0.5]


def test_wall_time_is_split_without_a_gap():
    wall = sim.build(sim.scenario()).run().simulation.wall_s()
    assert set(wall) == {"learning", "simulation", "recording"}
    assert all(seconds > 0 for seconds in wall.values())


def test_a_run_leaves_pythons_garbage_collector_as_it_was():
    others, seen = gc.get_threshold(), []
    gc.set_threshold(700, 10, 10)
    before = gc.get_threshold()
    world = sim.build(sim.scenario(rounds=1, clients=500))
    try:
        world.run(progress=lambda *_: seen.append(gc.get_threshold()[0]))
        assert seen == [25_000]
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*others)


def test_a_run_is_saved_every_so_many_rounds_and_after_its_last():
    saved = []
    world = sim.build(sim.scenario(rounds=5))
    world.run(save=lambda round: not saved.append(round), save_every=2)
    assert saved == [2, 4, 5]
