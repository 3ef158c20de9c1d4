"""The README's recording shows what the run says, and no more."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from recording import recording

import simfed

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).resolve().parents[2]
SCENARIO = {
    "name": "tiny",
    "rounds": 3,
    "method": "fedavg",
    "dataset": {"name": "mnist-mini"},
    "prototypes": {"net": {"model": "logistic-regression"}},
    "clients": [
        {
            "count": 2,
            "prototype": "net",
            "device": {"training": "9 ms", "compression": "1 ms"},
            "link": {"up": "1 Mbps", "down": "5 Mbps"},
        },
        {
            "count": 1,
            "prototype": "net",
            "device": {"training": "90 ms", "compression": "1 ms"},
            "link": {"up": "1 Mbps", "down": "5 Mbps"},
        },
    ],
    "policy": {"kind": "uniform", "strategy": "top-k"},
    "evaluation": {"every": 1},
}


@pytest.fixture(scope="module")
def run():
    return simfed.run(SCENARIO, progress=False)


def test_bars_are_the_spans_of_the_first_rounds(run):
    root = ElementTree.fromstring(recording(run, "simfed run tiny.yaml", rounds=2))
    bars = sum(path.get("d").count("z") for path in root.iter(f"{SVG}path"))
    early = run.spans[(run.spans["round"] <= 2) & run.spans["client"].notna()]
    assert bars == len(early)
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert {"client 0", "client 1", "client 2", "$ simfed run tiny.yaml"} <= set(texts)
    assert sum("It waited for client 2, mostly for its " in text for text in texts) == 2
    final = run.summary["accuracy"]["mean"]["final"]
    assert f"round 3: {final:.0%}" in texts


def test_one_frame_of_each_kind_stays_where_nothing_moves(run):
    """Without animation the last sentence and number are there, and no curtain."""
    text = recording(run, "simfed run tiny.yaml", rounds=2)
    assert len(re.findall(r'class="shown last"', text)) == 2
    assert "prefers-reduced-motion: reduce" in text
    assert "translateX(100%)" in text


def test_the_committed_one_is_small_and_loads_nothing():
    text = (ROOT / "docs" / "images" / "recording.svg").read_text()
    root = ElementTree.fromstring(text)
    assert len(text) < 60_000
    assert "600" in "".join(root.itertext())
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|<image|url\(", text)
