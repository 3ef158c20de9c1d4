"""What the page says of the cell is what the kept rows say."""

import cell_figure
import pandas as pd

PAGE = cell_figure.ROOT / "scenarios" / "README.md"


def test_the_page_has_the_table_of_the_kept_rows():
    assert cell_figure.table(pd.read_csv(cell_figure.ROWS)) in PAGE.read_text(encoding="utf-8")
