"""The page of `simfed explore` in a real browser: sliders, tabs, names, keyboard, both
widths.

Its Content-Security-Policy forbids `wait_for_function`, so tests ask again and again.
"""

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml
from chromium import draw_all, find_barriers, press_tab
from worlds import TINY

import simfed

pytestmark = pytest.mark.browser
pytest_plugins = ["chromium"]

LINKED = {**TINY["clients"][0], "link": {"up": "5 Mbps", "down": "9 Mbps"}}
WORLD = {**TINY, "rounds": 4, "evaluation": {"every": 1}, "clients": [LINKED]}


@pytest.fixture
def explored():
    """A function that serves the page of a run, and gives its address."""
    servers = []

    def start(path):
        command = [sys.executable, "-m", "simfed", "explore", path, "--no-browser"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        servers.append(server)
        return server.stdout.readline().strip()

    yield start
    for server in servers:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=30)


@pytest.fixture
def opened(explored, open_page, tmp_path):
    """A function that opens the page of a run, or of one under way."""

    def start(under_way=False, **look):
        if not under_way:
            simfed.run(WORLD, tmp_path / "run", progress=False, workers=1)
        page = open_page(explored(tmp_path / "run"), **look)
        until(page, "document.documentElement.dataset.ready !== undefined")
        return page

    return start


def until(page, what):
    """Ask until something holds; return it."""
    for _ in range(300):
        if found := page.evaluate(what):
            return found
        time.sleep(0.1)
    raise AssertionError(f"never: {what}; {page.locator('body').inner_text()[:500]}")


def settled(page):
    """Return the newest question's last answer, as soon as it is there."""
    said = until(
        page,
        """(() => {
          const status = document.querySelector("#status").textContent;
          if (!status.includes("Played in")) return "";
          return JSON.stringify(window.answers.at(-1)) })()""",
    )
    return json.loads(said)


def fill(page, name, value):
    field = page.get_by_label(name)
    field.fill(value)
    field.press("Enter")
    return settled(page)


def expected_end(overrides):
    scenario = simfed.load_scenario(WORLD, overrides=overrides)
    run = simfed.run(scenario, time_only=True, progress=False)
    return float(run.rounds["finished_at_s"].iloc[-1])


def test_a_dragged_slider_shows_answers_and_ends_at_its_last_setting(opened):
    page = opened()
    before = settled(page)
    assert before["end_s"] == expected_end({})
    slider = page.locator("#knobs input[type=range]").first
    slider.focus()
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    value = page.locator("#knobs input[type=number]").first.input_value()
    told = settled(page)
    assert told["end_s"] == expected_end({"clients[0].link.up": f"{value} Mbps"})
    assert told["end_s"] > before["end_s"]
    numbers = page.evaluate("window.answers.map((one) => one.seq)")
    assert numbers == sorted(numbers)
    wanted = f"clients[0].link.up={value} Mbps"
    page.locator("#command", has_text=wanted).wait_for()
    names = page.evaluate(
        "document.querySelector('[data-panel=curve]').data.map((t) => t.name)"
    )
    assert names == ["a, recorded", "a"]
    assert page.locator(".chart.timeline").count() == 2


def test_what_nobody_knows_is_greyed_and_a_real_run_makes_it_known(opened):
    page = opened()
    told = fill(page, "server: clients per round", "1")
    assert told["unknown"] == 1
    why = page.locator("#why").inner_text()
    assert "From round 1 on something else would be learned" in why
    colours = """() => document.querySelector("[data-panel=curve]").data
      .filter((t) => t.name.endsWith("not known")).map((t) => t.line.color)"""
    assert page.evaluate(colours) == ["#999999"]
    page.locator("#real").click()
    until(page, "window.answers.at(-1).done && window.answers.at(-1).unknown === null")
    assert page.evaluate(colours) == []
    assert page.locator("#unknown").is_hidden()


def test_what_is_taken_away_is_a_scenario_a_study_and_pictures(opened, tmp_path):
    page = opened()
    fill(page, "2 × a: uplink in Mbps", "2")
    page.get_by_label("A study over").select_option("2 × a: downlink")
    for what in ("scenario", "study"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save the {what}").click()
        download.value.save_as(tmp_path / f"{what}.yaml")
    taken = simfed.load_scenario(tmp_path / "scenario.yaml")
    assert taken.clients[0].link.up == 2e6 / 8
    study = yaml.safe_load((tmp_path / "study.yaml").read_text())
    assert study["set"] == {"clients[0].link.up": "2 Mbps"}
    (values,) = study["grid"].values()
    assert (len(values), values[3]) == (7, "9 Mbps")
    draw_all(page)
    for chart, format, begins in (
        ("the curve", "PNG", b"\x89PNG"),
        ("the Gantt, as asked", "SVG", b"<svg"),
    ):
        page.get_by_label("A picture of").select_option(chart)
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save as {format}").click()
        download.value.save_as(tmp_path / format)
        assert (tmp_path / format).read_bytes().startswith(begins)
        assert (tmp_path / format).stat().st_size > 5000


def test_a_page_goes_on_as_the_run_does(opened, tmp_path):
    slow = {**WORLD, "rounds": 600}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(slow))
    command = [sys.executable, "-m", "simfed", "run", str(tmp_path / "scenario.yaml")]
    run = subprocess.Popen([*command, "--out", str(tmp_path / "run"), "--quiet"])
    while not (tmp_path / "run/scenario.yaml").exists():
        time.sleep(0.05)
    page = opened(under_way=True)
    said = "document.querySelector('#status').textContent"
    until(page, f"{said}.includes('The run is at round')")
    charts = page.locator(".chart.timeline:visible")
    assert charts.count() == 1
    before = page.evaluate("window.answers.length")
    until(page, f"window.answers.length > {before + 3}")
    told = fill(page, "2 × a: uplink in Mbps", "1")
    assert told["unknown"] > 1
    assert "The run has learned up to round" in page.locator("#why").inner_text()
    page.get_by_role("button", name="As recorded").click()
    assert run.wait(200) == 0
    until(
        page,
        ("window.answers.at(-1).done && document.querySelector('#following').hidden"),
    )
    told = page.evaluate("window.answers.at(-1)")
    rounds = simfed.load_run(tmp_path / "run").rounds
    assert told["end_s"] == rounds["finished_at_s"].iloc[-1]
    assert told["unknown"] is None
    assert charts.count() == 2


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_axe_finds_no_barrier_and_nothing_is_cut(opened, width, scheme):
    page = opened(width=width, scheme=scheme)
    settled(page)
    draw_all(page)
    fill(page, "server: clients per round", "1")
    assert find_barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = min(width - 30, 230)
    assert page.locator("#knobs").bounding_box()["width"] > wide


def test_the_keyboard_reaches_every_knob(opened):
    page = opened()
    settled(page)
    reached = press_tab(page, 60)
    knobs = page.evaluate(
        "[...document.querySelectorAll('#knobs [id]')].map((one) => one.id)"
    )
    assert {*knobs, "timeline-from", "timeline-clients", "copy", "save"} <= reached
