"""Quantities: what is read, what is refused, and that prefixes are decimal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfed.ground import units


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("rate", "50 Mbps", 6.25e6),
        ("rate", "50Mbps", 6.25e6),
        ("rate", "1 kbit/s", 125.0),
        ("rate", "6.25 MB/s", 6.25e6),
        ("rate", "0 bps", 0.0),
        ("rate", "0.00e-400 bps", 0.0),
        ("duration", "20 ms", 0.02),
        ("duration", "2 h", 7200.0),
        ("duration", "1.5e-3 s", 1.5e-3),
        ("duration", 0, 0.0),
        ("size", "10 MB", 1e7),
        ("size", "4 KiB", 4096.0),
        ("size", "8 kbit", 1000.0),
        ("power", "300 mW", 0.3),
    ],
)
def test_reads(kind, text, value):
    assert getattr(units, f"parse_{kind}")(text) == pytest.approx(value, rel=1e-15)


@given(st.just(0.0) | st.floats(min_value=1e-18, max_value=1e15))
def test_a_rate_in_base_units_reads_back_exactly(value):
    assert units.parse_rate(f"{value!r} B/s") == value


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_formatted_duration_is_never_far_off(seconds):
    parts = units.format_duration(seconds).split()
    read = map(
        units.parse_duration, map(" ".join, zip(parts[::2], parts[1::2], strict=True))
    )
    assert sum(read) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9.994e-4, "999 µs"),
        (59.94, "59.9 s"),
        (59.95, "1 min 0 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (48 * 3600 - 31, "47 h 59 min"),
        (48 * 3600, "2 d 0 h"),
        (-3600, "-1 h 0 min"),
    ],
)
def test_a_duration_changes_its_unit_where_the_next_one_begins(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(999.4, "999 B"), (999.6, "1 kB"), (999.6e9, "1 TB")]
)
def test_sizes_are_rounded_before_their_prefix_is_chosen(size_bytes, text):
    assert units.format_bytes(size_bytes) == text


@given(st.floats(min_value=1, max_value=1e14))
def test_formatted_sizes_and_rates_read_back(value):
    assert units.parse_size(units.format_bytes(value)) == pytest.approx(value, rel=6e-3)
    assert units.parse_rate(units.format_rate(value)) == pytest.approx(value, rel=6e-3)
