"""REAL.md is that of the results beside it."""

import real


def test_the_page_is_made_from_the_kept_results():
    assert real.page_text() == real.PAGE.read_text(encoding="utf-8")
