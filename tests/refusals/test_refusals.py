"""Each thing that is wrong has its sentences, kept in the files beside this one."""

import re
from pathlib import Path

import pytest
import refusals

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_wrong_is_refused_in_the_sentences_of_its_file(path):
    rows = list(refusals.read(path))
    assert rows
    answers = [(row, refusals.answer(row)) for row in rows]
    wrong = [f"{row.place}:\n{said}" for row, said in answers if said != row.said or not said]
    assert not wrong, "\n\n".join(wrong)


def test_a_sentence_says_what_is_wrong_before_what_is_expected():
    """`where: what is wrong, expected what is allowed (a hint)`."""
    rows = [row for path in FILES for row in refusals.read(path)]
    for row in rows:
        assert not re.search(r"(: |^)expected ", row.said, re.MULTILINE), row.place
