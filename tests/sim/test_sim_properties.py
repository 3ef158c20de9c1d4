"""One world written out."""

from pathlib import Path

import sim_worlds as sim

from simfed.net import Star


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
