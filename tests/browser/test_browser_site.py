"""The documentation as a site: built without a warning, whole, searchable, and asking
nothing of anybody while it is read.
"""

import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import simfed
from simfed import compress, device, net, policy, record, testing
from simfed.ground import method

pytestmark = pytest.mark.site
pytest_plugins = ["chromium"]

ROOT = Path(__file__).resolve().parents[2]
NEVER_SHOWN = {"__version__", "compress", "flower", "net"}
"""Public names without an entry of their own: a number, and modules that have pages."""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", "docs/site/mkdocs.yml"]
    # the theme's own notice of its end of life is no warning about these pages
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "-d", folder], cwd=ROOT, capture_output=True, text=True, env=quiet
    )
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^WARNING", done.stderr, re.M), done.stderr
    return folder


class Targets(HTMLParser):
    """Where a page leads, what it loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given.get("id"), given.get("name")}
        if "src" in given:
            self.loaded.append(given["src"])
        if "href" in given:
            (self.links if tag == "a" else self.loaded).append(given["href"])


@pytest.fixture(scope="session")
def pages(site):
    """All but the one that only a web server shows, whose links begin at its root."""
    paths = (path for path in sorted(site.rglob("*.html")) if path.name != "404.html")
    return {path: Targets(path.read_text()) for path in paths}


def is_outside(link):
    return bool(urlsplit(link).scheme) or link.startswith("//")


def test_what_a_page_loads_lies_beside_it(site, pages):
    for path, page in pages.items():
        for at in page.loaded:
            if not at.startswith("data:"):
                assert not is_outside(at), path
                assert (path.parent / urlsplit(at).path).exists(), (path, at)
    for sheet in site.rglob("*.css"):
        outside = re.findall(r"""url\((?!["']?data:)[^)]*//""", sheet.read_text())
        assert outside == [], sheet


def test_every_link_leads_to_a_page_and_a_place_on_it(pages):
    for path, page in pages.items():
        for link in page.links:
            if is_outside(link):
                continue
            to, _, anchor = link.partition("#")
            target = (path.parent / unquote(to)).resolve() if to else path
            assert target.is_file(), (path, link)
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].anchors, (path, link)


def test_every_public_name_is_in_the_reference(site):
    body = (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
    lines = zlib.decompress(body).decode().splitlines()
    listed = {line.split(" ", 1)[0] for line in lines}
    for room in (simfed, method, compress, policy, device, net, record, testing):
        homes = room._HOMES if room is record else {}
        for name in {*room.__all__} - NEVER_SHOWN:
            names = {
                f"{room.__name__}.{name}",
                f"simfed.record.{homes.get(name)}.{name}",
            }
            # a constant has no docstring
            assert names & listed or not getattr(room, name).__doc__, name


def test_pages_fit_a_phone(open_page, site, pages):
    page = open_page("about:blank", site.as_uri(), width=400)
    wide = []
    for path in (path for path in pages if ".yaml" not in path.name):
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        if page.evaluate("document.documentElement.scrollWidth") > 400:
            wide.append(path.name)
    assert wide == []


def test_what_is_searched_for_is_found_without_a_server(open_page, site):
    page = open_page(
        (site / "docs" / "servers.html").as_uri(), site.as_uri(), width=1400
    )
    page.wait_for_selector("html.js")
    page.keyboard.press("/")
    page.keyboard.type("straggler")
    page.wait_for_selector(".md-search-result__link")
    assert "Example scenarios" in page.inner_text(".md-search-result__list")
