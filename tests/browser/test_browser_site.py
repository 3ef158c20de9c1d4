"""The documentation as a site: built without a warning, whole, searchable, and asking
nothing of anybody while it is read.
"""

from __future__ import annotations

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

pytestmark = pytest.mark.site
pytest_plugins = ["chromium"]

ROOT = Path(__file__).resolve().parents[2]
NEVER_SHOWN = {"__version__", "compress", "flower", "net"}
"""Public names without an entry of their own: a number, and modules that have pages."""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "-f",
        "docs/site/mkdocs.yml",
        "-d",
        folder,
    ]
    # the theme's own notice of its end of life is no warning about these pages
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^WARNING", done.stderr, re.M), done.stderr
    return folder


@pytest.fixture
def opened(browser, site):
    """A function that opens pages of the site, from the folder itself.

    At the end it checks that nothing was asked for outside it and that the browser
    complained of nothing.
    """
    seen = []
    pages = []

    def start(**options):
        page = browser.new_page(**options)
        page.set_default_timeout(30_000)
        page.on("console", lambda m: seen.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda r: None if is_inside(r.url) else seen.append(r.url))
        pages.append(page)
        return page

    def is_inside(url: str) -> bool:
        return url.startswith((site.as_uri(), "data:", "blob:", "about:"))

    yield start
    for page in pages:
        page.close()
    assert seen == []


class Targets(HTMLParser):
    """Where a page leads, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(filter(None, (given.get("id"), given.get("name"))))
        if "src" in given:
            self.loaded.append(given["src"])
        if "href" in given:
            (self.links if tag == "a" else self.loaded).append(given["href"])


@pytest.fixture(scope="session")
def pages(site):
    """All but the one that only a web server shows, whose links begin at its root."""
    paths = (path for path in sorted(site.rglob("*.html")) if path.name != "404.html")
    return {path: Targets(path.read_text()) for path in paths}


def is_outside(link: str) -> bool:
    return bool(urlsplit(link).scheme) or link.startswith("//")


def test_what_a_page_loads_lies_beside_it(site, pages):
    for path, page in pages.items():
        loaded = [link for link in page.loaded if not link.startswith("data:")]
        assert [link for link in loaded if is_outside(link)] == [], path
        missing = [
            at for at in loaded if not (path.parent / urlsplit(at).path).exists()
        ]
        assert missing == [], path
    for sheet in site.rglob("*.css"):
        assert re.findall(r"""url\((?!["']?data:)[^)]*//""", sheet.read_text()) == [], (
            sheet
        )


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
    listed = {
        line.split(" ", 1)[0] for line in zlib.decompress(body).decode().splitlines()
    }
    from simfed import compress, device, net, policy, record, testing
    from simfed.ground import method

    for module in (simfed, method, compress, policy, device, net, record, testing):
        wanted = {
            f"{module.__name__}.{name}"
            for name in module.__all__
            if name not in NEVER_SHOWN
        }
        homes = getattr(module, "_HOMES", {}) if module is record else {}
        documented = {name for name in wanted if name in listed} | {
            f"simfed.record.{name}"
            for name, home in homes.items()
            if f"simfed.record.{home}.{name}" in listed
        }
        undocumented = {
            name
            for name in wanted - documented
            if not getattr(_at(name), "__doc__", None)
        }  # a constant
        assert wanted - documented - undocumented == set()


def _at(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(sys.modules[module], last)


def test_pages_fit_a_phone(opened, pages):
    page = opened(viewport={"width": 400, "height": 800})
    wide = []
    for path in (path for path in pages if ".yaml" not in path.name):
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        if page.evaluate("document.documentElement.scrollWidth") > 400:
            wide.append(path.name)
    assert wide == []


def test_what_is_searched_for_is_found_without_a_server(opened, site):
    page = opened(viewport={"width": 1400, "height": 900})
    page.goto((site / "docs" / "servers.html").as_uri())
    page.wait_for_selector("html.js")
    page.keyboard.press("/")
    page.keyboard.type("straggler")
    page.wait_for_selector(".md-search-result__link")
    assert "Example scenarios" in page.inner_text(".md-search-result__list")
