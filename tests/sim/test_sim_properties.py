"""A quicker client never makes a round longer, and one world written out."""

from pathlib import Path

import sim_worlds as sim
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed.net import Star

AMOUNTS = st.tuples(*[st.floats(0.01, 5.0)] * 2, *[st.floats(500.0, 50_000.0)] * 2)
"""Seconds of training and of compression, rates up and down."""


@given(
    clients=st.lists(AMOUNTS, min_size=1, max_size=5),
    faster=st.floats(1, 10),
    data=st.data(),
)
@settings(max_examples=10, deadline=None)
def test_a_faster_device_or_dedicated_link_never_makes_a_round_longer(
    clients, faster, data
):
    def length_s(clients):
        training_s, compression_s, up, down = zip(*clients, strict=True)
        world = sim.build(
            sim.scenario(rounds=1, clients=len(clients)),
            star=Star(
                len(clients), up_bytes_per_s=up, down_bytes_per_s=down, latency_s=0.1
            ),
            devices=[
                sim.Fixed(*each) for each in zip(training_s, compression_s, strict=True)
            ],
            downlink_bytes=5000.0,
        )
        return world.run().column("rounds", "duration_s")[0]

    one = data.draw(st.integers(0, len(clients) - 1))
    training_s, compression_s, up, down = clients[one]
    quicker = [*clients]
    quicker[one] = (
        training_s / faster,
        compression_s / faster,
        up * faster,
        down * faster,
    )
    assert length_s(quicker) <= length_s(clients) * (1 + 1e-12)


def test_one_world_written_out():
    """Three clients, shared server links, server work: the timeline as text, in the
    golden file.
    """
    plain = sim.scenario(rounds=2, clients=3)
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
        lines.append(
            f"{row['round']}  {times}  {row['track']:<20} {row['kind']:<14} "
            f"{row['name']}"
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"
