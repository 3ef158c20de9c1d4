"""How much compressing and sending at once saves: docs/models-clock.md.

    python analysis/overlap_figure.py [--draw-only]

Runs one client's participation, time alone, for every compressor, device, link and number of
chunks, keeps a row for each in analysis/overlap_rows.csv, draws docs/images/overlap.png from those
rows and prints the table. `--draw-only` draws and prints from the kept rows.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

import simfed
from simfed.report.pictures import picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("overlap_rows.csv")
PICTURE = ROOT / "docs" / "images" / "overlap.png"
CODECS = ("top-k", "random-k", "periodic-k")
SPEEDS = {"measured": 1.0, "a tenth": 0.1}
"""Of the device xeon-2core-vm."""
LINKS = {"1 Mbps": 1e6, "10 Mbps": 1e7, "100 Mbps": 1e8, "1 Gbps": 1e9}
CHUNKS = (1, 2, 8, 32)
MODEL = "resnet18"
K = "1%"
LATENCY = "10 ms"


def play(codec: str, speed: str, link: str, chunks: int) -> dict[str, object]:
    """One participation: what is exposed of it, and how long it took from the compression on."""
    device = {"profile": "xeon-2core-vm", "speed": SPEEDS[speed]}
    group = {
        "prototype": "model",
        "device": device,
        "link": {"up": link, "down": link, "latency": LATENCY},
        "overlap": {"chunks": chunks},
    }
    run = simfed.run(
        {
            "name": "overlap",
            "rounds": 1,
            "method": "fedavg",
            "dataset": {"name": "mnist-mini"},
            "prototypes": {"model": {"model": MODEL}},
            "compression": {"k": K},
            "policy": {"kind": "uniform", "strategy": codec},
            "clients": [group],
        },
        time_only=True,
        progress=False,
    )
    row = run.participations.iloc[0]
    return {
        "codec": codec,
        "speed": speed,
        "link": link,
        "chunks": chunks,
        "compression_s": round(row["compression_s"], 6),
        "exposed_upload_s": round(row["uplink_s"], 6),
        "sent_s": round(row["compression_s"] + row["uplink_s"], 6),
    }


def saved(rows: pd.DataFrame) -> pd.DataFrame:
    """The same rows with `saved`, the share of compression and upload that chunks save."""
    keys = ["codec", "speed", "link"]
    whole = rows[rows["chunks"] == 1].set_index(keys)["sent_s"].rename("whole_s")
    rows = rows.join(whole, on=keys)
    return rows.assign(saved=1 - rows["sent_s"] / rows["whole_s"])


def table(rows: pd.DataFrame, chunks: int = 8) -> str:
    """What `chunks` save, as Markdown."""
    lines = [
        "| compressor | device | " + " | ".join(LINKS) + " |",
        "|---|---|" + "---|" * len(LINKS),
    ]
    shares = saved(rows[rows["chunks"].isin((1, chunks))]).set_index(
        ["codec", "speed", "link", "chunks"]
    )["saved"]
    for codec, speed in itertools.product(CODECS, SPEEDS):
        cells = (f"{100 * shares[codec, speed, link, chunks]:.0f} %" for link in LINKS)
        lines.append(f"| {codec} | {speed} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """What chunks save over the link, one panel per speed."""
    with picture_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 2.6), layout="constrained")
        panels = figure.subplots(1, len(SPEEDS), sharey=True)
        shares = saved(rows)
        for panel, (speed, factor) in zip(panels, SPEEDS.items(), strict=True):
            for colour, codec in zip(SERIES_COLOURS, CODECS, strict=False):
                for chunks, line in ((2, ":"), (8, "-")):
                    mine = shares[
                        (shares["codec"] == codec)
                        & (shares["speed"] == speed)
                        & (shares["chunks"] == chunks)
                    ].set_index("link")["saved"]
                    label = codec if chunks == 8 else None
                    heights = [100 * mine[link] for link in LINKS]
                    panel.plot(
                        range(len(LINKS)),
                        heights,
                        line,
                        marker="o",
                        markersize=3,
                        color=colour,
                        label=label,
                    )
            panel.set_title(
                "device as measured" if factor == 1 else f"{factor:g} × its speed", loc="left"
            )
            panel.set_xticks(range(len(LINKS)), LINKS)
            panel.set_ylim(0, 32)
        panels[0].set_ylabel("saved of compression\nand upload, %")
        panels[0].legend(frameon=False, title="8 chunks (dotted: 2)", loc="upper left")
    return figure


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw-only", action="store_true")
    if not parser.parse_args().draw_only:
        cases = itertools.product(CODECS, SPEEDS, LINKS, CHUNKS)
        pd.DataFrame([play(*case) for case in cases]).to_csv(ROWS, index=False)
    rows = pd.read_csv(ROWS)
    save_picture(draw(rows), PICTURE)
    print(table(rows))


if __name__ == "__main__":
    main()
