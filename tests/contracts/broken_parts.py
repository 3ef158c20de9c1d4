"""Tests that a contract's check names the clause that a part breaks."""

import pytest


def naming(check, clauses, **options):
    """Return a test that `check` finds of each part the clause that it breaks.

    Args:
        check: the contract's check of `simfed.testing`.
        clauses: broken part → a pattern of the sentence.
        options: with which each part is checked.
    """

    @pytest.mark.parametrize(("part", "clause"), clauses.items())
    def test(part, clause):
        with pytest.raises(AssertionError, match=clause):
            check(part, **options)

    return test
