"""The page's server: on the loopback alone, with a token in the address.

Addresses below the token: the page and its scripts, `/about` (what a page needs once),
`/ask` (a question, answered in parts), `/take` (a setting as files), `/real` (the real
run). Hosts other than the loopback's names are refused, so that no other site's page
can ask. Starlette and uvicorn come with the extra `explore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from simfed.explore.page import build_page, join_scripts
from simfed.explore.player import QuestionQueue
from simfed.explore.real import RealRun
from simfed.explore.world import ExploredWorld
from simfed.ground.errors import InputError, SimfedError
from simfed.report.page import read_plotly_script
from simfed.scenario import dump_scenario

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
except ModuleNotFoundError as error:
    raise InputError(
        where="simfed explore",
        problem=f"the package {error.name}, which serves the page, is missing",
        hint="pip install 'simfed[explore]'",
    ) from None

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src "
    "'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LONGEST = 100_000
"""Bytes of a question."""


_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Pages:
    """The server's answers to pages of a world.

    Whatever a page sends is checked here; errors of settings go back as sentences with
    the status 400.
    """

    def __init__(self, world: ExploredWorld) -> None:
        """Begin to play questions about a world."""
        self.world, self.player, self.real = world, QuestionQueue(world), RealRun(world)

    def list_routes(self) -> list[Route]:
        """Return what is answered where."""
        script, library = join_scripts(), read_plotly_script()
        return [
            Route("/", _make_text(build_page(self.world), "text/html")),
            Route("/page.js", _make_text(script, "text/javascript")),
            Route("/plotly.js", _make_text(library, "text/javascript")),
            Route("/about", lambda _: JSONResponse(self.world.describe())),
            Route("/ask", self.ask, methods=["POST"]),
            Route("/take", _refusing(self.take), methods=["POST"]),
            Route("/real", _refusing(self.start), methods=["POST"]),
            Route("/real", lambda _: JSONResponse(self.real.state)),
        ]

    async def ask(self, request: Request) -> Response:
        """Answer a question in parts, a line of JSON each.

        Args:
            request: its body has `tab` (the page's name), `seq` (the question's
                number), and the question, see `ClockRun`.
        """
        try:
            asked = await _read_question(request)
            name, number = str(asked["tab"])[:40], int(asked["seq"])
        except (SimfedError, KeyError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        parts = self.player.ask(name, number, asked)

        async def lines() -> AsyncIterator[str]:
            try:
                while (part := await asyncio.to_thread(next, parts, None)) is not None:
                    yield json.dumps(part, separators=(",", ":")) + "\n"
            except asyncio.CancelledError:  # the tab was closed
                self.player.forget(name, number)
                raise

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    def take(self, asked: dict[str, Any]) -> Any:
        """Return a setting as a scenario, a command line and, over a slider, a study.

        Args:
            asked: `setting`, `anew`, and for a study `over` and `values`; see
                `ExploredWorld.write_study`.
        """
        setting, over, values = asked["setting"], asked.get("over"), asked.get("values")
        study = None
        if over and isinstance(values, list) and values:
            study = self.world.write_study(setting, str(over), values)
        return {
            "scenario": dump_scenario(self.world.apply(setting)),
            "command": self.world.write_command(
                setting, anew=bool(asked.get("anew", True))
            ),
            "study": study,
        }

    def start(self, asked: dict[str, Any]) -> Any:
        """Begin the real run of a setting, and return what pages show of it."""
        self.real.start(asked["setting"])
        return self.real.state

    @contextlib.asynccontextmanager
    async def until_end(self, _: Starlette) -> AsyncIterator[None]:
        """End the real run with the server."""
        yield
        self.real.close()  # before the signal that ended the server ends the process


def _make_text(content: str, kind: str) -> Callable[[Request], Response]:
    """Return what answers with a text, under the policy of all pages."""
    return lambda _: Response(content, media_type=kind, headers=_HEADERS)


async def _read_question(request: Request) -> dict[str, Any]:
    """Return what a page asks.

    Raises:
        InputError: for what is no question, or longer than one.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST:
            break
    try:
        asked = json.loads(body[: _LONGEST + 1])
        return {**asked, "setting": dict(asked["setting"])}
    except (ValueError, TypeError, KeyError):
        raise InputError("a setting as JSON", where="question", got=len(body)) from None


def _refusing(answer: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what answers a question with JSON, and mistakes with their sentence."""

    async def respond(request: Request) -> Response:
        try:
            return JSONResponse(answer(await _read_question(request)))
        except SimfedError as error:
            return JSONResponse({"error": str(error)}, 400)

    return respond


def build_app(world: ExploredWorld, token: str) -> Starlette:
    """Return the server's application for what is explored.

    Args:
        world: the run or scenario.
        token: the secret part of the address; everything else is not found.
    """
    pages = Pages(world)
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    mounted = [Mount(f"/{token}", routes=pages.list_routes())]
    return Starlette(routes=mounted, middleware=[guard], lifespan=pages.until_end)


def announce(address: str, *, browser: bool = True) -> None:
    """Print the page's address, and open it in the browser where `browser` is true."""
    print(address, flush=True)
    if browser:
        import webbrowser

        if not webbrowser.open(address):
            print(
                "no browser found; open this address in one",
                file=sys.stderr,
                flush=True,
            )


def serve(world: ExploredWorld, port: int, say: Callable[[str], None]) -> None:
    """Serve the page of a world until Ctrl-C.

    Args:
        world: the run or scenario.
        port: of the loopback; 0: any that is free.
        say: is told the page's address, once it can be opened.

    Raises:
        InputError: for a port that is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise InputError(
            "a free port, or 0 for any",
            where="--port",
            got=f"{port} ({error.strerror})",
        ) from None
    with listener:
        token = secrets.token_urlsafe(16)
        app = build_app(world, token)
        # without its configuration, which would close the handlers of everybody's logs
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False
        )
        listener.listen()  # whoever follows the address at once waits a moment
        with contextlib.suppress(KeyboardInterrupt):  # from the first moment on
            say(f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/")
            uvicorn.Server(config).run(sockets=[listener])
