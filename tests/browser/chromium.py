"""A headless Chromium for pages: no screen, no network but the loopback.

A plugin and no conftest.py, of which doctest collection bears only one.
PYTEST_DONT_REWRITE: it may have been imported before it is a plugin.
"""

import functools
import http.server
import os
import shutil
import threading

import pytest

pytest_plugins = ["report_runs"]

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium (or the one $SIMFED_CHROMIUM names), driven by Playwright."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SIMFED_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path or "/usr/bin/chromium", args=ARGUMENTS
        )
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """A function that makes a page, which shows an address.

    At the end it checks that the browser complained of nothing and asked nobody but the
    addresses that begin as said.
    """
    seen, pages = [], []

    def start(address, *allowed, width=1280, scheme="light"):
        size = {"width": width, "height": 900}
        page = browser.new_page(viewport=size, color_scheme=scheme)
        page.set_default_timeout(30_000)
        inside = (address, "data:", "blob:", *allowed)
        bad = ("error", "warning")
        page.on("console", lambda said: said.type in bad and seen.append(said.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda said: (seen.append(said.message), said.dismiss()))
        page.on("request", lambda r: r.url.startswith(inside) or seen.append(r.url))
        pages.append(page)
        page.goto(address)
        return page

    yield start
    for page in pages:
        page.close()
    assert seen == []


def draw(chart):
    """A chart draws itself when it comes near."""
    chart.scroll_into_view_if_needed()
    chart.locator(".main-svg").first.wait_for()
    return chart


def draw_all(page):
    for chart in page.locator(".chart").all():
        draw(chart)


def find_barriers(page):
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
    return Axe().run(page, options=options).response["violations"]


def press_tab(page, times):
    """What is reached, by its id or else its tag."""
    reached = set()
    for _ in range(times):
        page.keyboard.press("Tab")
        active = "document.activeElement.id || document.activeElement.tagName"
        reached.add(page.evaluate(active))
    return reached


@pytest.fixture
def serve():
    """A function that serves a folder (and further files by URL path) on the loopback,
    and gives its address.
    """
    servers = []

    def start(folder, more):
        handler = functools.partial(_Files, directory=str(folder), more=more)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class _Files(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args, directory, more):
        self.more = more
        super().__init__(*args, directory=directory)

    def translate_path(self, path):
        extra = self.more.get(path.partition("?")[0])
        return str(extra) if extra else super().translate_path(path)

    def log_message(self, *_):
        pass
