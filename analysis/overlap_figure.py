"""How much compressing and sending at once saves: docs/models-clock.md.

    python analysis/overlap_figure.py [--draw-only]

Runs one client's participation of one local step, time alone, for every codec, device,
link and number of chunks, keeps a row for each in analysis/overlap_rows.csv, draws
docs/images/overlap.png from those rows and makes the page's table. `--draw-only` does
the latter from the kept rows.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from pages import markdown, write_page

import simfed
from simfed.report.pictures import picture_style, save_picture
from simfed.report.style import SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("overlap_rows.csv")
PAGE = ROOT / "docs" / "models-clock.md"
PICTURE = ROOT / "docs" / "images" / "overlap.png"
CODECS = ("top-k", "random-k", "periodic-k")
SPEEDS = {"measured": 1.0, "a tenth": 0.1}
"""Of the device xeon-2core-vm."""
LINKS = {"1 Mbps": 1e6, "10 Mbps": 1e7, "100 Mbps": 1e8, "1 Gbps": 1e9}
CHUNKS = ("1", "2", "8", "32")
MODEL = "resnet18"
K = "1%"
LATENCY = "10 ms"


def cases() -> list[tuple[str, str, str, str]]:
    """Codec, speed, link, overlap: of each row."""
    return list(itertools.product(CODECS, SPEEDS, LINKS, CHUNKS))


def play(codec: str, speed: str, link: str, overlap: str) -> dict[str, object]:
    """One participation: what is exposed of it, and how long it took from the
    compression on.
    """
    device = {"profile": "xeon-2core-vm", "speed": SPEEDS[speed]}
    group = {
        "prototype": "model",
        "device": device,
        "link": {"up": link, "down": link, "latency": LATENCY},
        "overlap": {"chunks": int(overlap)},
    }
    run = simfed.run(
        {
            "name": "overlap",
            "rounds": 1,
            "method": "fedavg",
            "training": {"local_steps": 1},
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
    sent_s = row["compression_s"] + row["uplink_s"]
    return {
        "codec": codec,
        "speed": speed,
        "link": link,
        "overlap": overlap,
        "compression_s": round(row["compression_s"], 6),
        "exposed_upload_s": round(row["uplink_s"], 6),
        "sent_s": round(sent_s, 6),
    }


def read_rows() -> pd.DataFrame:
    return pd.read_csv(ROWS, dtype={"overlap": str})


def saved(rows: pd.DataFrame) -> dict[tuple[str, str, str, str], float]:
    """(codec, speed, link, overlap) → the share of compression and upload that overlap
    saves.
    """
    seconds = rows.set_index(["codec", "speed", "link", "overlap"])["sent_s"].to_dict()
    return {
        (codec, speed, link, overlap): 1 - s / seconds[codec, speed, link, "1"]
        for (codec, speed, link, overlap), s in seconds.items()
    }


def table(rows: pd.DataFrame) -> str:
    """What 8 chunks save of compression and upload, as Markdown."""
    shares = saved(rows)
    lines = [["codec", "device", *LINKS]]
    for codec, speed in itertools.product(CODECS, SPEEDS):
        cells = (f"{100 * shares[codec, speed, link, '8']:.0f} %" for link in LINKS)
        lines.append([codec, speed, *cells])
    return markdown(lines)


def page_parts() -> dict[str, str]:
    """What stands between the page's comments, by their names."""
    return {"overlap": table(read_rows())}


def draw(rows: pd.DataFrame) -> Figure:
    """What overlap saves over the link, a panel per speed."""
    with picture_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 2.6), layout="constrained")
        panels = figure.subplots(1, len(SPEEDS), sharey=True)
        shares = saved(rows)
        for panel, (speed, factor) in zip(panels, SPEEDS.items(), strict=True):
            for codec, colour in zip(CODECS, SERIES_COLOURS, strict=False):
                for chunks, line in (("8", "-"), ("2", ":")):
                    panel.plot(
                        range(len(LINKS)),
                        [100 * shares[codec, speed, link, chunks] for link in LINKS],
                        line,
                        marker="o",
                        markersize=3,
                        color=colour,
                        label=codec if line == "-" else None,
                    )
            title = "device as measured" if factor == 1 else f"{factor:g} × its speed"
            panel.set_title(title, loc="left")
            panel.set_xticks(range(len(LINKS)), LINKS)
            panel.set_ylim(0, 32)
        panels[0].set_ylabel("saved of compression\nand upload, %")
        panels[0].legend(frameon=False, title="8 chunks (dotted: 2)", loc="upper left")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw-only", action="store_true")
    if not parser.parse_args().draw_only:
        pd.DataFrame([play(*case) for case in cases()]).to_csv(ROWS, index=False)
    save_picture(draw(read_rows()), PICTURE)
    write_page("overlap_figure")


if __name__ == "__main__":
    main()
