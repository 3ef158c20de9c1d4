"""The page of `simfed explore`: the report's template, with settings beside it."""

from __future__ import annotations

from importlib import resources

from simfed.explore.world import ExploredWorld
from simfed.ground.units import counted
from simfed.ground.version import VERSION
from simfed.report import page
from simfed.report.panels import Panel


def _read(name: str) -> str:
    """Return the text of an asset: of this room, or of the report's."""
    if not name.startswith("explore."):
        return page.read_asset(name)
    assets = resources.files("simfed.explore") / "assets"
    return (assets / name).read_text(encoding="utf-8")


def join_scripts() -> str:
    """Return the page's code: the report's and its own."""
    return page.join_scripts(_read("explore.js"), main="explore")


def build_page(world: ExploredWorld) -> str:
    """Return the page as HTML, which asks the server for everything else.

    Args:
        world: whose name, size and kind of curve the page says.
    """
    scenario, before = world.scenario, "as recorded" if world.is_run else "as written"
    curve = Panel(
        "curve",
        "Learning curve" if world.learned else "When rounds end",
        f"Solid as asked, dotted {before}; grey where nobody knows what would have "
        "been learned, with what was recorded in its place.",
        {},
    )
    parts: dict[str, page.PageSection] = {
        "answer": {
            "title": "What would have been",
            "facts": [("simulated time", "…", "")],
            "panels": [curve],
        },
        "timeline": {"title": "Who did what when", "timelines": ["as asked", before]},
    }
    words = [
        counted(scenario.client_count, "client"),
        counted(scenario.rounds, "round"),
        f"recorded in {world.path}" if world.is_run else "a scenario, not run yet",
    ]
    text: str = page.load_template("explore.html", _read).render(
        title=f"What if: {scenario.name}",
        subtitle=" · ".join(words),
        parts=parts,
        style=page.read_asset("page.css") + _read("explore.css"),
        policy="",
        version=VERSION,
        runs=[],
    )
    return text
