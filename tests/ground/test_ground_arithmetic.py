"""Arithmetic that users write in files."""

from hypothesis import given
from hypothesis import strategies as st

from simfed import InputError
from simfed.ground import read_arithmetic

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
