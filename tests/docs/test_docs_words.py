"""Pages are in plain English: phrases that readers stumbled over do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = """
README CONTRIBUTING CHANGELOG scenarios/README calibration/README analysis/ANSWERS
analysis/METHODS analysis/NOT-WAITING
"""
PAGES = sorted(ROOT.glob("docs/*.md"))
PAGES += [ROOT / f"{name}.md" for name in OTHERS.split()]
PHRASES = {
    r"what that carries": "how far this goes",
    r"looking brought": "what was found, and how",
    r"hangs? on\b": "depends on",
    r"one's own": "your own",
    r"becomes of the late": "happens to late uploads",
    r"that are said\b": "stated",
}
"""What is meant stands beside it."""


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_no_riddle_comes_back(page):
    text = re.sub(r"\s+", " ", page.read_text()).lower()
    for phrase, plain in PHRASES.items():
        assert not re.search(phrase, text), plain
