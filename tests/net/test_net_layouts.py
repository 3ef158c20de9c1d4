"""Traces in the layouts of public sets, as `docs/traces.md` says that they are read.

The files beside are made anew, a few rows each.
"""

import re
from pathlib import Path

import pytest
import yaml

from simfed.ground import Streams
from simfed.net import FlowStart, build, play
from simfed.net.spec import LinkSpec, NetworkSpec

HERE = Path(__file__).parent / "traces"
PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
SECTIONS = dict(re.findall(r"^## (\d+)\. [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
TAKES = {
    # 15 kB are ten packets, one in 20 ms
    "1": (15_000, [0.2]),
    # 100 kB/s for a second, then 200 kB/s
    "2": (200_000, [1.5]),
    # 100 kB/s, with a pause of 1.5 s after 1.5 s
    "3": (200_000, [3.5]),
    "4": (5_000_000, [1.5]),
    # the first second is halved: 50 and 100 kB; the next row fills a missing second
    "5": (200_000, [1.5, 0.5 + 0.25]),
    "6": (20_000_000, [1.5]),
    "7": (1_250_000 * 3600 + 625_000, [3601.0]),
    "8": (500_000, [1.0, 2.0]),
    "9": (2_000_000, [1.5]),
    # one packet in 10 ms, the second in two halves; then one in 20 ms
    "10": (3_750, [0.03]),
    "11": (20_000_000, [50.0]),
}
"""Section → bytes of an upload, and the seconds that it takes clients 0, 1, …"""


def blocks(section, language):
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.M | re.S)


@pytest.mark.parametrize("number", SECTIONS)
def test_the_yaml_of_a_layout_plays_its_file(number):
    (written,) = blocks(SECTIONS[number], "yaml")
    link = yaml.safe_load(written)["link"]
    for trace in link.values():
        trace["offset"] = "0 s"
    spec = LinkSpec.model_validate(link, context={"folder": HERE})
    size_bytes, takes_s = TAKES[number]
    clients = range(len(takes_s))
    star = build(NetworkSpec(), [spec], Streams(0), link_of_client=[0 for _ in clients])
    starts = [FlowStart(0.0, client, size_bytes, "up") for client in clients]
    assert [flow.duration_s for flow in play(star, starts)] == pytest.approx(takes_s)


@pytest.mark.parametrize("number", SECTIONS)
def test_the_first_lines_on_the_page_are_those_of_the_file(number):
    (lines,) = blocks(SECTIONS[number], "")
    (written,) = blocks(SECTIONS[number], "yaml")
    named = yaml.safe_load(written)["link"]["up"]["file"]
    path = HERE / named.replace("{client}", "0")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    assert files[0].read_text().startswith(lines)


def test_every_layout_has_a_section_and_a_row():
    assert TAKES.keys() == SECTIONS.keys()
    assert {*re.findall(r"\[(\d+)\]\(#\1-", PAGE)} == SECTIONS.keys()
