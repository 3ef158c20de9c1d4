"""The site's navigation can be read: few entries per level, no word twice, every page
of docs in it.
"""

import re
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
    words = [
        word
        for label, _ in entries(NAV)
        for word in set(re.findall(r"\w+", label.lower()))
    ]
    twice = {word for word in words if words.count(word) > 1} - COMMON
    assert not twice


def test_every_page_of_docs_has_its_place():
    pages = {below for _, below in entries(NAV) if isinstance(below, str)}
    docs = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert docs <= pages
    for page in pages - {"gallery.md", "docs/tour.md"}:
        where = ROOT / "docs" / "site" / "pages" / page
        assert where.exists() or (ROOT / page).exists(), page
