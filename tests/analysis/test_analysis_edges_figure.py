"""What the page says of edge servers is what the kept rows say."""

from pathlib import Path

import edges_figure

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text(encoding="utf-8")


def test_the_page_has_the_numbers_of_the_kept_rows():
    section = PAGE.split("### What edge servers save")[1]
    for line in edges_figure.table(edges_figure.load())[2:]:
        _, _, moved, against, accuracy, time = (cell.strip() for cell in line.split("|")[:6])
        of_page = next(row for row in section.splitlines() if f"| {moved} | {accuracy} |" in row)
        assert f"| {time} |" in of_page
        assert against.split(" ")[0].replace("-", "−").replace("+0.0", "0.0") in of_page
