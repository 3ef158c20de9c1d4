"""The site's navigation can be read: few entries per level, no word twice, every page
of docs in it.
"""

import re
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
NAV = yaml.safe_load(
    (ROOT / "docs" / "site" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
)
MOST = 8
COMMON = {"of", "the", "is", "from", "by"}


def entries(level):
    """(label, page or level below) of a level and of all below it."""
    for entry in level:
        for label, below in entry.items():
            yield label, below
            if isinstance(below, list):
                yield from entries(below)


def test_no_level_has_more_than_eight_entries():
    levels = [NAV, *(below for _, below in entries(NAV) if isinstance(below, list))]
    assert max(map(len, levels)) <= MOST


def test_no_word_stands_twice():
    words = Counter()
    for label, _ in entries(NAV):
        words.update({*re.findall(r"\w+", label.lower())} - COMMON)
    assert {*words.values()} == {1}, words.most_common(1)


def test_every_page_of_docs_has_its_place():
    pages = {below for _, below in entries(NAV) if isinstance(below, str)}
    assert pages >= {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")}
    for page in pages - {"gallery.md", "docs/tour.md"}:
        where = ROOT / "docs" / "site" / "pages" / page
        assert where.exists() or (ROOT / page).exists(), page
