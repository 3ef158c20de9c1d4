"""The README's recording: the page of `simfed explore`, whose sliders somebody turns.

pip install 'simfed[explore]' playwright pillow     # and a Chromium
simfed run scenarios/quickstart.yaml --out runs/quickstart
python analysis/recording.py runs/quickstart --out docs/images/explore.webp
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, SHOWN_WIDTH = 1240, 1240, 880
"""Of the window, and of the picture, in pixels."""
ANSWER, GANTT = "#said", "#timeline-chart"
"""What stands at the top of a picture: the curve, or who did what when."""
ABOVE = 190
"""Pixels that stay free above the Gantt for what is said of it."""
FRAME_MS, REST_MS = 160, 1800
"""How long a picture stands while something moves, and where one stops to look."""
QUALITY = 55
FIELD, VALUES = "5 × large: uplink in Mbps", (15, 11, 8, 6, 4.5, 3.5, 2.6, 2)
"""What is turned, and what is written into its field, one after the other."""
PROGRESS = 8
"""Pictures of a real run on its way."""


def take_frames(page: Any) -> Iterator[tuple[bytes, int]]:
    """Yield pictures of a page, each with its milliseconds.

    An uplink gets slower, until nobody knows what would be learned; then it is run.
    """
    yield look(page, ANSWER), REST_MS
    yield look(page, GANTT), REST_MS
    for value in VALUES:
        field = page.get_by_label(FIELD)
        field.fill(str(value))
        field.press("Enter")
        wait_for(
            page,
            ("document.querySelector('#status').textContent.includes('Played in')"),
        )
        yield look(page, GANTT), 3 * FRAME_MS
    yield look(page, GANTT), REST_MS
    yield look(page, ANSWER), REST_MS
    page.get_by_role("button", name="Run it for real").click()
    known = "document.querySelector('#unknown').hidden"
    said = (
        "/ ([0-9]+) of ([0-9]+)/.exec(document.querySelector('#progress').textContent)"
    )
    for i in range(1, PROGRESS + 1):
        far = f"((m) => m && m[1] / m[2] >= {i / (PROGRESS + 1)})({said})"
        wait_for(page, f"{known} || {far}")
        yield look(page, ANSWER), FRAME_MS
    wait_for(page, known)
    wait_for(
        page, ("document.querySelector('#status').textContent.includes('Played in')")
    )
    yield look(page, ANSWER), 2 * REST_MS


def look(page: Any, at: str) -> bytes:
    """Return a picture of a place of the page."""
    page.evaluate("document.activeElement.blur()")
    place = (
        f"document.querySelector('{at}').getBoundingClientRect().top + scrollY - "
        f"{ABOVE}"
    )
    top = 0 if at == ANSWER else place
    page.evaluate(f"scrollTo({{top: {top}, behavior: 'instant'}})")
    time.sleep(0.2)
    picture: bytes = page.screenshot()
    return picture


def wait_for(page: Any, what: str) -> None:
    """Wait until something holds, which is a line of JavaScript."""
    until_s = time.monotonic() + 600
    while not page.evaluate(what):
        if time.monotonic() > until_s:
            raise TimeoutError(page.locator("#said").inner_text())
        time.sleep(0.05)
    time.sleep(0.3)  # for the charts


def write(frames: list[tuple[bytes, int]], out: Path) -> None:
    """Write pictures as one that moves."""
    from PIL import Image

    size = SHOWN_WIDTH, round(SHOWN_WIDTH * HEIGHT / WIDTH)
    opened = [Image.open(io.BytesIO(frame)).convert("RGB") for frame, _ in frames]
    first, *others = [image.resize(size, Image.Resampling.LANCZOS) for image in opened]
    stands_ms = [stands for _, stands in frames]
    first.save(
        out,
        save_all=True,
        append_images=others,
        duration=stands_ms,
        loop=0,
        quality=QUALITY,
        method=6,
    )


def main() -> None:
    """Record the page of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images/explore.webp"))
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    command = [
        sys.executable,
        "-m",
        "simfed",
        "explore",
        str(asked.run),
        "--no-browser",
    ]
    chromium = os.environ.get("SIMFED_CHROMIUM") or shutil.which("chromium")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(server.stdout.readline().strip())
        wait_for(page, "document.documentElement.dataset.ready !== undefined")
        wait_for(
            page,
            ("document.querySelector('#status').textContent.includes('Played in')"),
        )
        write(list(take_frames(page)), asked.out)
        browser.close()
        server.send_signal(signal.SIGINT)
    print(f"{asked.out}: {asked.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
