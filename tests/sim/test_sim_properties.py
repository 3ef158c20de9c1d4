"""Facts about the clock that hold in every world, and one world written out."""

from pathlib import Path

import numpy as np
import pytest
import sim_worlds as sim
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simfed.net import Star
from simfed.verify.invariants import verify

TIMES = (
    "downlink_s",
    "training_s",
    "compression_s",
    "uplink_s",
    "waiting_s",
    "slack_s",
    "started_at_s",
    "finished_at_s",
)
seconds = st.floats(0.01, 5.0)
rates = st.floats(500.0, 50_000.0)


def clients(count):
    return [{"count": count, "prototype": "small", "device": "rtx3090-ryzen4800h"}]


@st.composite
def worlds(draw):
    """Devices and links of some clients, with or without a limit at the server."""
    count = draw(st.integers(1, 5))
    many = {"min_size": count, "max_size": count}
    limit = st.one_of(st.just(np.inf), rates)
    return {
        "training_s": draw(st.lists(seconds, **many)),
        "compression_s": draw(st.lists(seconds, **many)),
        "up": draw(st.lists(st.one_of(st.just(np.inf), rates), **many)),
        "down": draw(st.lists(rates, **many)),
        "latency_s": draw(st.lists(st.floats(0.0, 1.0), **many)),
        "receive": draw(limit),
        "send": draw(limit),
        "server": draw(st.one_of(st.none(), seconds)),
    }


def build(world, plain, *, scale=1.0, recorder=None, **options):
    """The world with everything `scale` times as slow."""
    server = world["server"] and sim.Fixed(
        decompression=world["server"] * scale,
        inference=world["server"] * scale,
        distillation=world["server"] * scale,
    )
    star = Star(
        len(world["up"]),
        up_bytes_per_s=np.array(world["up"]) / scale,
        down_bytes_per_s=np.array(world["down"]) / scale,
        latency_s=np.array(world["latency_s"]) * scale,
        receive_bytes_per_s=world["receive"] / scale,
        send_bytes_per_s=world["send"] / scale,
    )
    devices = [
        sim.Fixed(training_s * scale, compression_s * scale)
        for training_s, compression_s in zip(
            world["training_s"], world["compression_s"], strict=True
        )
    ]
    return sim.build(
        plain,
        star=star,
        devices=devices,
        downlink_bytes=5000.0,
        server_device=server,
        recorder=recorder,
        **options,
    )


@given(world=worlds(), per_round=st.integers(1, 5), rounds=st.integers(1, 3))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_run_keeps_its_invariants(tmp_path_factory, world, per_round, rounds):
    count = len(world["up"])
    plain = sim.scenario(
        rounds=rounds,
        clients=clients(count),
        participation={"clients_per_round": min(per_round, count)},
    )
    path = tmp_path_factory.mktemp("world") / "run"
    sim.write(path, lambda recorder: build(world, plain, recorder=recorder), plain)
    assert verify(path) == []


@given(world=worlds())
@settings(max_examples=10, deadline=None)
def test_a_world_that_is_twice_as_slow_takes_exactly_twice_as_long(world):
    plain = sim.scenario(rounds=2, clients=clients(len(world["up"])))
    one, two = build(world, plain).run(), build(world, plain, scale=2.0).run()
    for name in TIMES:
        once, twice = (np.array(w.column("participations", name)) for w in (one, two))
        assert np.array_equal(2 * once, twice), name
    assert one.column("participations", "uplink_bytes") == two.column(
        "participations", "uplink_bytes"
    )


@given(world=worlds())
@settings(max_examples=10, deadline=None)
def test_without_a_limit_at_the_server_nobody_notices_a_further_client(world):
    world = {**world, "receive": np.inf, "send": np.inf, "server": None}
    count = len(world["up"])
    fewer = {name: each[:-1] if isinstance(each, list) else each for name, each in world.items()}
    if count == 1:
        return
    with_it = build(world, sim.scenario(rounds=1, clients=clients(count))).run()
    without = build(fewer, sim.scenario(rounds=1, clients=clients(count - 1))).run()
    for name in ("downlink_s", "training_s", "compression_s", "uplink_s"):
        assert with_it.column("participations", name)[:-1] == without.column("participations", name)


@given(world=worlds(), faster=st.floats(1.0, 10.0), data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_faster_device_or_dedicated_link_never_makes_a_round_longer(world, faster, data):
    world = {**world, "receive": np.inf, "send": np.inf}
    client = data.draw(st.integers(0, len(world["up"]) - 1))
    quicker = {name: list(each) if isinstance(each, list) else each for name, each in world.items()}
    for name in ("up", "down"):
        quicker[name][client] *= faster
    for name in ("training_s", "compression_s"):
        quicker[name][client] /= faster
    plain = sim.scenario(rounds=1, clients=clients(len(world["up"])))
    (before,), (after,) = (
        build(w, plain).run().column("rounds", "duration_s") for w in (world, quicker)
    )
    assert after <= before * (1 + 1e-12)


def test_one_world_written_out():
    """Three clients, shared server links, server work: the timeline as text, in the golden file."""
    plain = sim.scenario(rounds=2, clients=clients(3))
    world = sim.build(
        plain,
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
        server_device=sim.Fixed(decompression=0.125, inference=0.25, distillation=0.5),
    ).run()
    golden = Path(__file__).parents[1] / "golden" / "clock_timeline.txt"
    assert timeline(world) == golden.read_text(encoding="utf-8")


def timeline(world):
    lines = []
    for row in world.rows("spans"):
        times = f"{row['started_at_s']:8.4f} {row['finished_at_s']:8.4f}"
        lines.append(f"{row['round']}  {times}  {row['track']:<20} {row['kind']:<14} {row['name']}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_the_golden_world_shares_as_max_min_does():
    # all three downloads at once over 10 kB/s: 1.5 s and the latency
    first = (Path(__file__).parents[1] / "golden" / "clock_timeline.txt").read_text().split("\n")[0]
    assert float(first.split()[2]) == pytest.approx(0.125 + 3 * 5000 / 1e4)
