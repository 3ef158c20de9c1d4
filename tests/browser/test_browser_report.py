"""The HTML report in a real browser: what it draws, says and lets one do."""

import pytest
from chromium import draw, draw_all, find_barriers, press_tab

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
def opened(open_page, report_folder, tmp_path):
    """A function that opens the page of some made-up runs."""

    def start(*worlds, scheme="light"):
        runs = [open_run(report_folder(**world)) for world in worlds or [{}]]
        path = write_page(runs, tmp_path / "page.html")
        page = open_page(path.as_uri(), scheme=scheme)
        page.wait_for_selector("html[data-ready]")
        return page

    return start


def show_timeline(page):
    return draw(page.locator("#timeline-chart"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "worlds", [[{}], [{"seed": 0}, {"seed": 1}], [{"learns": False}]]
)
def test_every_chart_is_drawn_without_a_complaint_or_a_request(opened, worlds, scheme):
    page = opened(*worlds, scheme=scheme)
    draw_all(page)
    assert page.locator("#failure").is_hidden()
    marks = ".cartesianlayer .trace path, .cartesianlayer image"
    for chart in page.locator(".chart").all():
        chart.locator(marks).first.wait_for(state="attached")


def point(page, x, y, about):
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
    page = opened()
    draw_all(page)  # nothing above it grows any longer
    page.locator("#timeline-chart").evaluate(
        "chart => chart.scrollIntoView({behavior: 'instant'})"
    )
    run = open_run(report_folder())
    parts = run.participations.query("round == 1").set_index("client")
    uploads = run.spans.query("round == 1 and kind == 'upload'").set_index("client")
    for row, client in enumerate((0, 2, 4)):  # the rows from above
        part, span = parts.loc[client], uploads.loc[client]
        start_s, end_s = span["started_at_s"], span["finished_at_s"]
        middle_s = 0.4 * start_s + 0.6 * end_s
        said = point(page, middle_s, 5 * row + 1, f"client {client} ")
        assert said[:3] == [
            f"upload {format_duration(end_s - start_s)}",
            f"client {client} (small), round 1",
            f"{format_bytes(part['uplink_bytes'])}, {part['outcome']}",
        ]
        assert said[3].startswith(part["arm"])


def test_the_raster_is_the_record(opened, report_folder):
    page = opened()
    show_timeline(page)
    spans = open_run(report_folder()).spans.query("round <= 3")
    columns = 1000 / spans["finished_at_s"].max()
    drawn = page.evaluate(STRETCHES)
    for row, client in enumerate((0, 2, 4, 6)):  # of 8 an upload fails, and is hatched
        ends_s = spans.loc[spans["track"] == f"client {client}", "finished_at_s"]
        ends = set((columns * ends_s).round())
        # ends of bars, but for a latency's, are where a stretch ends
        found = {last + 1 for _, last, _ in drawn[5 * row + 1]}
        assert ends <= found
        assert len(found) <= len(ends) + 2 * 3


def test_zooming_rasters_anew_and_a_double_click_goes_back(opened):
    page = opened()
    show_timeline(page)
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
    page = opened()
    show_timeline(page)
    title = "() => document.querySelector('#timeline-chart').layout.xaxis.title.text"
    status = page.locator("#timeline-status")
    first, last, who = (
        page.locator(f"#timeline-{x}") for x in ("from", "to", "clients")
    )

    def fill(field, text):
        field.fill(text)
        field.press("Enter")

    first.fill("5")
    fill(last, "6")
    assert "since round 5 began" in page.evaluate(title)
    assert "Rounds 5 to 6 of 20" in status.inner_text()
    page.locator("#timeline-next").click()
    assert "since round 7 began" in page.evaluate(title)
    assert first.input_value() == "7"
    page.locator("#timeline-previous").click()
    fill(who, "0, 3-4, nobody")
    assert page.evaluate(ROWS) == ["small · 0", "4", "large · 3", "server"]
    fill(who, "large")
    assert "5 clients" in status.inner_text()
    assert len(page.evaluate(ROWS)) == 5 + 1


def test_one_switch_shows_another_run_in_every_chart(opened):
    page = opened({"clients": 4, "rounds": 4}, {"clients": 6, "rounds": 4})
    draw_all(page)
    rows = "() => new Set(document.querySelector('[data-panel=time]').data[0].y).size"
    assert page.evaluate(rows) == 4
    page.locator("#run").select_option(index=1)
    assert page.evaluate(rows) == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(opened, scheme):
    world = {"clients": 6, "rounds": 5}
    page = opened(world, {**world, "seed": 1}, scheme=scheme)
    draw_all(page)
    page.evaluate(
        "document.querySelectorAll('details').forEach(d => { d.open = true })"
    )
    assert find_barriers(page) == []


def test_the_keyboard_reaches_everything_that_can_be_used(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    draw_all(page)
    ids = {f"timeline-{what}" for what in ("from", "to", "next", "clients")}
    assert ids | {"SELECT", "SUMMARY"} <= press_tab(page, 80)


def test_the_theme_follows_the_system_and_can_be_switched(opened):
    page = opened(scheme="dark")
    draw(page.locator("[data-panel=learning]"))
    colours = """[
      getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector(
        "[data-panel=learning] .xtick text")).fill,
    ]"""
    dark = page.evaluate(colours)
    page.get_by_role("button", name="Switch to light colours").click()
    light = page.evaluate(colours)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    page.get_by_role("button", name="Switch to dark colours").wait_for()


def test_printing_draws_every_chart_in_light_colours_at_the_papers_width(opened):
    page = opened(scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => c.layout.width)"
    )
    assert widths == [680] * 8
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(paper) != "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000
