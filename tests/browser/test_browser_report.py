"""The HTML report in a real browser: what it draws, says and lets one do."""

from __future__ import annotations

import pytest
from chromium import watch

from simfed.ground import format_duration
from simfed.ground.units import format_bytes
from simfed.record import open_run
from simfed.report import write_page

pytestmark = pytest.mark.browser
pytest_plugins = ["chromium"]

ROWS = """() => document.querySelector("#timeline-chart").layout.yaxis.ticktext"""
# the raster's codes by row of the picture: [first column, last column, code] of each
# stretch
STRETCHES = """() => document.querySelector("#timeline-chart").data[0].z.map((line) => {
  const found = [];
  line.forEach((code, c) => {
    if (found.length && found.at(-1)[2] === code) found.at(-1)[1] = c;
    else found.push([c, c, code]);
  });
  return found.filter(([, , code]) => code) })"""


@pytest.fixture
def opened(browser, report_folder, tmp_path):
    """A function that opens the page of some made-up runs.

    At the end it checks that the browser complained of nothing and asked for nothing.
    """
    seen, pages = [], []

    def start(*worlds: dict, scheme: str = "light", width: int = 1280):
        runs = [open_run(report_folder(**world)) for world in worlds or [{}]]
        path = write_page(runs, tmp_path / "page.html")
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        page.set_default_timeout(30_000)
        watch(page, seen, path.as_uri(), "data:", "blob:")
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        pages.append(page)
        return page

    yield start
    for page in pages:
        page.close()
    assert seen == []


def scroll_through(page) -> None:
    """Every chart draws itself when it comes near."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()


def show(page, selector: str):
    chart = page.locator(selector)
    chart.scroll_into_view_if_needed()
    chart.locator(".main-svg").first.wait_for()
    return chart


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "worlds", [[{}], [{"seed": 0}, {"seed": 1}], [{"learns": False}]]
)
def test_every_chart_is_drawn_without_a_complaint_or_a_request(opened, worlds, scheme):
    page = opened(*worlds, scheme=scheme)
    scroll_through(page)
    assert page.locator("#failure").is_hidden()
    for chart in page.locator(".chart").all():
        chart.locator(
            ".cartesianlayer .trace path, .cartesianlayer image"
        ).first.wait_for(state="attached")


def point(page, x: float, y: float, about: str) -> list[str]:
    """Return what the Gantt says at a point of its axes, once it is about this."""
    at = page.evaluate(
        """([x, y]) => {
          const chart = document.querySelector("#timeline-chart");
          const { xaxis, yaxis } = chart._fullLayout;
          const { left, top } = chart.getBoundingClientRect();
          return [
            left + xaxis._offset + xaxis.l2p(x), top + yaxis._offset + yaxis.l2p(y),
          ]
        }""",
        [x, y],
    )
    page.mouse.move(at[0] - 3, at[1])
    page.mouse.move(*at)
    tip = page.locator("#timeline-tip", has_text=about)
    tip.wait_for()
    return tip.inner_text().split("\n")


def test_pointing_at_a_bar_shows_its_facts(opened, report_folder):
    page = opened({})
    scroll_through(page)  # nothing above it grows any longer
    show(page, "#timeline-chart").evaluate(
        "chart => chart.scrollIntoView({behavior: 'instant'})"
    )
    run = open_run(report_folder())
    first = run.participations.query("round == 1").set_index("client")
    for row, client in enumerate((0, 2, 4)):  # the rows from above
        span = run.spans.query(
            "round == 1 and client == @client and kind == 'upload'"
        ).iloc[0]
        middle_s = 0.4 * span["started_at_s"] + 0.6 * span["finished_at_s"]
        said = point(page, middle_s, 5 * row + 1, f"client {client} ")
        part = first.loc[client]
        length_s = span["finished_at_s"] - span["started_at_s"]
        assert said[0] == f"upload {format_duration(length_s)}"
        assert said[1] == f"client {client} (small), round 1"
        assert said[2] == f"{format_bytes(part['uplink_bytes'])}, {part['outcome']}"
        assert said[3].startswith(part["arm"])


def test_the_raster_is_the_record(opened, report_folder):
    page = opened({})
    show(page, "#timeline-chart")
    run = open_run(report_folder())
    shown = run.rounds[run.rounds["round"] <= 3]
    columns = 1000 / shown["finished_at_s"].max()
    drawn = page.evaluate(STRETCHES)
    for row, client in enumerate((0, 2, 4, 6, 8)):
        spans = run.spans[(run.spans["client"] == client) & (run.spans["round"] <= 3)]
        ends = {round(columns * at_s) for at_s in spans["finished_at_s"]}
        # ends of bars, but for a latency's, are where a stretch ends
        found = {last + 1 for _, last, _ in drawn[5 * row + 1]}
        assert ends <= found
        assert len(found) <= len(ends) + 2 * 3


def test_zooming_rasters_anew_and_a_double_click_goes_back(opened):
    page = opened({})
    show(page, "#timeline-chart")
    cells = """() => {
      const { x0, dx } = document.querySelector("#timeline-chart").data[0];
      return [x0 - dx / 2, dx]
    }"""
    before = page.evaluate(cells)
    page.evaluate("Plotly.relayout('timeline-chart', {'xaxis.range': [0.2, 0.4]})")
    assert page.evaluate(cells) == pytest.approx([200, 0.2])  # ms now
    page.evaluate(
        "document.querySelector('#timeline-chart').emit('plotly_doubleclick')"
    )
    assert page.evaluate(cells) == pytest.approx(before)


def test_the_round_filter_changes_the_chart(opened, report_folder):
    page = opened({})
    run = open_run(report_folder())
    show(page, "#timeline-chart")
    title = "() => document.querySelector('#timeline-chart').layout.xaxis.title.text"
    page.locator("#timeline-from").fill("5")
    page.locator("#timeline-to").fill("6")
    page.locator("#timeline-to").press("Enter")
    assert "since round 5 began" in page.evaluate(title)
    assert "Rounds 5 to 6 of 20" in page.locator("#timeline-status").inner_text()
    page.locator("#timeline-next").click()
    assert "since round 7 began" in page.evaluate(title)
    assert page.locator("#timeline-from").input_value() == "7"
    page.locator("#timeline-previous").click()
    page.locator("#timeline-clients").fill("0, 3-4, nobody")
    page.locator("#timeline-clients").press("Enter")
    assert page.evaluate(ROWS) == ["small · 0", "4", "large · 3", "server"]
    page.locator("#timeline-clients").fill("large")
    page.locator("#timeline-clients").press("Enter")
    assert "5 clients" in page.locator("#timeline-status").inner_text()
    large = run.participations.query("prototype == 'large'")["client"].unique()
    assert len(page.evaluate(ROWS)) == len(large) + 1


def test_one_switch_shows_another_run_in_every_chart(opened):
    page = opened({"clients": 4, "rounds": 4}, {"clients": 6, "rounds": 4})
    scroll_through(page)
    rows = "() => new Set(document.querySelector('[data-panel=time]').data[0].y).size"
    assert page.evaluate(rows) == 4
    page.locator("#run").select_option(index=1)
    assert page.evaluate(rows) == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(opened, scheme):
    page = opened(
        {"clients": 6, "rounds": 5},
        {"clients": 6, "rounds": 5, "seed": 1},
        scheme=scheme,
    )
    scroll_through(page)
    page.evaluate(
        "document.querySelectorAll('details').forEach(d => { d.open = true })"
    )
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page, options=options)
    assert results.response["violations"] == []


def test_the_keyboard_reaches_everything_that_can_be_used(opened):
    page = opened({})
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    scroll_through(page)
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.tagName")
        )
    assert {
        "timeline-from",
        "timeline-to",
        "timeline-next",
        "timeline-clients",
        "SELECT",
        "SUMMARY",
    } <= reached


def test_the_theme_follows_the_system_and_can_be_switched(opened):
    page = opened({}, scheme="dark")
    show(page, "[data-panel=learning]")
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = (
        "getComputedStyle(document.querySelector('[data-panel=learning] .xtick "
        "text')).fill"
    )
    dark = page.evaluate(f"[{paper}, {ink}]")
    page.get_by_role("button", name="Switch to light colours").click()
    light = page.evaluate(f"[{paper}, {ink}]")
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    page.get_by_role("button", name="Switch to dark colours").wait_for()


def test_printing_draws_every_chart_in_light_colours_at_the_papers_width(opened):
    page = opened({}, scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => c.layout.width)"
    )
    assert len(widths) == 8
    assert set(widths) == {680}
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    assert len(page.pdf(format="A4")) > 20_000
