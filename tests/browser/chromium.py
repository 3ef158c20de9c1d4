"""A headless Chromium for pages: no screen, no network but the loopback.

A plugin and no conftest.py, of which doctest collection bears only one.
PYTEST_DONT_REWRITE: it has no assertions, and may have been imported before it is a
plugin.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

pytest_plugins = ["report_runs"]

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium (or the one $SIMFED_CHROMIUM names), driven by Playwright."""
    from playwright.sync_api import sync_playwright

    path = (
        os.environ.get("SIMFED_CHROMIUM")
        or shutil.which("chromium")
        or "/usr/bin/chromium"
    )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=list(ARGUMENTS)
        )
        yield chromium
        chromium.close()


def watch(page, seen: list[str], *allowed: str) -> None:
    """Have `seen` collect what a page complains of, and whom it asks but the addresses
    that begin as allowed.
    """
    page.on("console", lambda m: m.type in ("error", "warning") and seen.append(m.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda r: r.url.startswith(allowed) or seen.append(r.url))


@pytest.fixture
def serve():
    """A function that serves a folder (and further files by URL path) on the loopback,
    and gives its address.
    """
    servers = []

    def start(folder: Path, more: dict[str, Path] | None = None) -> str:
        handler = functools.partial(_Files, directory=str(folder), more=more or {})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class _Files(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args, directory: str, more: dict[str, Path]) -> None:
        self.more = more
        super().__init__(*args, directory=directory)

    def translate_path(self, path: str) -> str:
        extra = self.more.get(path.partition("?")[0])
        return str(extra) if extra else super().translate_path(path)

    def log_message(self, *_) -> None:
        pass
