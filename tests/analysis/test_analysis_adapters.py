"""The page on adapters says what its rows say."""

from pathlib import Path

import adapters
import pandas as pd


def test_the_pages_table_is_that_of_the_rows():
    rows = pd.read_csv(adapters.ROWS)
    assert set(rows.groupby("trains").size()) == {5}
    page = (Path(adapters.HERE) / "ADAPTERS.md").read_text()
    assert "\n".join(adapters.list_table(rows)) in page
