"""Arithmetic that users write in files."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.ground.arithmetic import read_arithmetic
from simfed.ground.errors import InputError

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(a=NUMBERS, b=NUMBERS, c=st.floats(0.5, 10))
def test_it_is_pythons_arithmetic(a, b, c):
    text = "-(a + 2 * b) / c ** 2 - min(a, b, 3) + max(b, c)"
    expected = -(a + 2 * b) / c**2 - min(a, b, 3) + max(b, c)
    assert read_arithmetic(text)({"a": a, "b": b, "c": c}) == expected


@given(st.text(max_size=40))
def test_any_text_is_arithmetic_or_a_sentence(text):
    said = ""
    try:
        read = read_arithmetic(text)
        read(dict.fromkeys(read.names, 1.0))
    except InputError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        "a[0]",
        "lambda: 1",
        "f(1)",
        "min()",
        "max(x=1)",
        "a if b else c",
        "'a' * 9",
        "1 < 2",
        "[1]",
        "a := 1",
        "True",
        "9" * 2000,
    ],
)
def test_nothing_else_is_arithmetic(text):
    with pytest.raises(InputError, match=r"arithmetic such as"):
        read_arithmetic(text)


@pytest.mark.parametrize(
    ("text", "values", "sentence"),
    [
        ("1 / n", {"n": 0}, "a number"),
        ("10.0 ** n", {"n": 400}, "a number"),
        ("(0 - 1) ** 0.5", {}, "a number"),
        ("n", {"n": "many"}, "a number"),
        ("n", {"n": math.inf}, "a finite number"),
        ("num_exampels", {"num-examples": 3}, "did you mean 'num_examples'?"),
    ],
)
def test_what_has_no_value_is_said(text, values, sentence):
    with pytest.raises(InputError) as refused:
        read_arithmetic(text)(values)
    assert sentence in str(refused.value)
