"""Each thing that is wrong has its sentences, kept in the files beside this one."""

import re
import subprocess
import sys

import refusals


def test_what_is_wrong_is_refused_in_the_sentences_of_its_file():
    """In a process of its own, which knows no part that a test has registered."""
    script = [sys.executable, refusals.__file__]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_first_mistake_is_told_before_what_is_expected():
    """`where: what is wrong, expected what is allowed (a hint)`."""
    for row in refusals.read(refusals.HERE / "first-hour.txt"):
        assert not re.search(r"(: |^)expected ", row.said, re.MULTILINE), row.place
