"""Every page says what the kept rows of its studies say."""

import doctest

import pages
import pytest
import theory_rows


@pytest.mark.parametrize("name", pages.STUDIES)
def test_the_page_has_the_tables_of_the_kept_rows(name):
    study = pages.study(name)
    page = study.PAGE.read_text(encoding="utf-8")
    parts = study.page_parts()
    assert parts
    for place, text in parts.items():
        assert page == pages.put_between(page, place, text), place


@pytest.mark.parametrize("module", [pages, theory_rows])
def test_its_helpers_do_what_their_examples_say(module):
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed
