"""Capacity in time: pieces, ends, offsets, readers, generators."""

from __future__ import annotations

import pickle
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed import InputError
from simfed.ground import csv_files
from simfed.net import (
    LinkTrace,
    Trace,
    lognormal_ar1,
    markov_on_off,
    read_csv,
    read_mahimahi,
    read_pensieve,
)
from simfed.net.engine import Engine
from simfed.net.flows import Flow
from simfed.net.traces import Moment


def parse(tmp_path, text, *options, read=read_csv, **named):
    path = tmp_path / "trace.txt"
    path.write_text(text, encoding="utf-8", newline="")
    return read(path, *options, **named)


def took(trace, size, *, at_s=0.0, epoch_s=0.0):
    engine = Engine([trace.trace.peak_bytes_per_s], {0: trace})
    engine.epoch_s = epoch_s
    flow = Flow(0, size, (0,))
    engine.start(flow, at_s=at_s)
    engine.advance(inf)
    return flow.spent_s


def bytes_until(trace, at_s):
    """What a link can carry from 0 to `at_s`.

    An `error` trace carries nothing after its end.
    """
    rates, starts_s, end_s = trace.rates_bytes_per_s, trace.starts_s, trace.duration_s
    turns = at_s // end_s if trace.end == "loop" else 0.0
    rest_s = at_s - turns * end_s
    ends_s = np.array([*starts_s[1:], end_s])
    turn = np.dot(rates, ends_s - starts_s)
    part = np.dot(rates, np.maximum(np.minimum(ends_s, rest_s) - starts_s, 0.0))
    after_s = max(rest_s - end_s, 0.0) if trace.end == "hold" else 0.0
    return float(turns * turn + part + after_s * rates[-1])


@st.composite
def drawn_traces(draw):
    """Pieces of eighths, of which the last carries something."""
    eighths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    rates = [draw(st.integers(0, 9)) for _ in eighths]
    rates[-1] += 1
    *starts_s, end_s = np.cumsum([0, *eighths]) / 8
    return Trace.of(
        starts_s, rates, float(end_s), draw(st.sampled_from(["loop", "hold"]))
    )


@settings(deadline=None)
@given(drawn_traces(), st.floats(0.01, 300), st.floats(0, 50), st.floats(0, 50))
def test_a_transfer_ends_when_the_trace_has_carried_its_bytes(
    trace, size, offset, start
):
    end = start + took(LinkTrace(trace, offset), size, at_s=start)
    carried = bytes_until(trace, end + offset) - bytes_until(trace, start + offset)
    assert carried == pytest.approx(size, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize(
    ("end", "carried", "then"),
    [
        ("loop", 20.0, (Moment(1, 0), 3.0)),
        ("hold", 16.0, (None, inf)),
        ("error", 8.0, (None, 3.0)),
    ],
)
def test_the_three_ends(end, carried, then):
    trace = Trace.of([0.0, 1.0], [4.0, 2.0], 3.0, end)
    assert bytes_until(trace, 7.0) == carried
    assert trace.next_moment(Moment(0, 1)) == then


def test_neighbouring_pieces_of_one_capacity_are_one():
    assert tuple(Trace.of([0, 1, 2, 3], [5, 5, 7, 7], 4, "loop").starts_s) == (0, 2)


def test_a_million_turns_on_the_loop_is_where_it_should_be():
    trace = LinkTrace(Trace.of([0.0, 0.1], [10.0, 1.0], 0.3, "loop"))
    assert took(trace, 1.0, epoch_s=300_000.0 + 0.05) == pytest.approx(
        0.05 + 0.2 + 0.3 / 10, rel=1e-6
    )


def test_mahimahi_counts_packets_of_1500_bytes(tmp_path):
    # 3 packets by 100 ms (one on the edge), 1 by 200, none by 300, 2 in the last 50 ms
    text = "10\n10\n100\n101\n340\n350\n"
    trace = parse(tmp_path, text, read=read_mahimahi)
    assert trace.duration_s == 0.35
    assert trace.starts_s == pytest.approx((0.0, 0.1, 0.2, 0.3))
    assert trace.rates_bytes_per_s == pytest.approx((45000.0, 15000.0, 0.0, 60000.0))


def test_pensieves_rate_holds_until_the_time_of_its_line(tmp_path):
    text = "0.5\t9.9\n1.5 8\n3.5 1.6\n"
    trace = parse(tmp_path, text, "hold", read=read_pensieve)
    assert trace == Trace((0.0, 1.0), (1e6, 2e5), 3.0, "hold")


@pytest.mark.parametrize(
    ("text", "options", "trace"),
    [
        (  # with a header and declared units
            "# of a drive\nwhen,cell,rate\n1000,a,80\n3000,b,8\n",
            {
                "time_column": "when",
                "rate_column": "rate",
                "time_unit": "ms",
                "rate_unit": "kbps",
            },
            Trace((0.0, 2.0), (1e4, 1e3), 4.0, "loop"),
        ),
        (  # with a duration
            "0,8\n1,16\n",
            {"end": "error", "until_s": 1.25},
            Trace((0.0, 1.0), (1e6, 2e6), 1.25, "error"),
        ),
        (  # repeated seconds are shared out
            "7,8\n7,16\n",
            {},
            Trace((0.0, 0.5), (1e6, 2e6), 1.0, "loop"),
        ),
        (  # lengths follow each other
            "1500 8 3000\n500 16 500\n",
            {"elapsed_column": 0, "time_unit": "ms", "separator": "blanks"},
            Trace((0.0, 1.5), (1e6, 2e6), 2.0, "loop"),
        ),
        (
            "1500 8 3000\n500 16 500\n",
            {
                "elapsed_column": 0,
                "bytes_column": 2,
                "time_unit": "ms",
                "separator": "blanks",
            },
            Trace((0.0, 1.5), (2e3, 1e3), 2.0, "loop"),
        ),
        (  # bytes of one time are added up and came since the one before
            "at;bytes\n5;900\n6;100\n6;300\n8;200\n",
            {"time_column": "at", "bytes_column": "bytes", "separator": "semicolon"},
            Trace((0.0, 1.0), (400.0, 100.0), 3.0, "loop"),
        ),
    ],
)
def test_csv_is_read_as_its_options_say(tmp_path, text, options, trace):
    assert parse(tmp_path, text, **options) == trace


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("0,8,wifi\n1,16,lte\n", (0, 1)),
        ("2024-01-01T00:00:00,0,8\n2024-01-01T00:00:01,1,16\n", (1, 2)),
        ("\ufeff0,8\n1,16\n", (0, 1)),
        ("\ufefftime,rate\r\n0,8\r\n1,16\r\n", ("time", "rate")),
        ('time,"ra\nte"\n0,8\n\n1,16\n', (0, 1)),
        ("1,2\n0,8\n1,16\n", ("1", "2")),
        ('t,r,x\n0,8,"a\nb"\n1,16,c\n', ("t", "r")),
    ],
)
def test_the_first_row_of_a_csv_is_lost_only_if_it_is_a_header(tmp_path, text, columns):
    time, rate = columns
    trace = parse(tmp_path, text, time_column=time, rate_column=rate)
    assert trace == Trace((0.0, 1.0), (1e6, 2e6), 2.0, "loop")


@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [
        ("date", "2019-12-14T08:16:31+01:00", "2019-12-14 07:16:33.5Z"),
        ("date", "14-Dec-2019 08:16:31.0", "14-Dec-2019 08:16:33.5"),
        ("%d.%m.%Y %H:%M:%S.%f", "14.12.2019 08:16:31.0", "14.12.2019 08:16:33.5"),
        ("ns", "1576307791000000000", "1576307793500000000"),
        ("min", "0", "0.0416666666666666667"),
    ],
)
def test_times_are_numbers_or_dates_with_their_zones(tmp_path, unit, first, second):
    trace = parse(tmp_path, f"{first},8\n{second},16\n", time_unit=unit)
    assert trace == Trace((0.0, 2.5), (1e6, 2e6), 5.0, "loop")


def test_repeated_seconds_are_shared_out_and_missing_ones_go_on(tmp_path):
    # the clock's step is a second: 7, 7 has two halves, and the last of 8, 8, 8 goes on
    trace = parse(tmp_path, "7,8\n7,16\n8,24\n8,32\n8,40\n12,48\n12,56\n")
    assert [*trace.starts_s] == pytest.approx([0, 1 / 2, 1, 4 / 3, 5 / 3, 5, 5.5])
    assert trace.duration_s == 9.0


@pytest.mark.parametrize("block_bytes", [60, 4_000_000])
def test_a_file_read_cell_by_cell_is_the_same_trace(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", block_bytes)
    rows = ["t,r,note\n", *(f"{k},{k % 7}.5,x\n" for k in range(30))]
    whole = parse(tmp_path, "".join(rows))
    rows[4] = rows[4].replace("x", '5" wide')
    rows[19] = rows[19].replace("x", '"a, b"').replace("\n", ",\n")
    rows[10:10] = ["# a pause\n", "\n"]
    assert parse(tmp_path, "".join(rows)) == whole


TEXTS = (
    "at,mbps,lasts\n0,8,1\n0,8,2\n3,4,1.5\n",
    "2019-12-14T08:16:31+01:00;5 MB;x\n2019-12-14T08:16:32+01:00;6;7\n",
    "1289406399 5496 59.8 100000 1007\n1289406400 6503 59.9 0 998\n",
)
COLUMNS = st.sampled_from([0, 1, 2, 3, 9, -1, "at", "mbps", "lasts", "ms"])


@settings(max_examples=300)
@given(
    st.sampled_from(TEXTS),
    st.fixed_dictionaries(
        {},
        optional={
            "time_column": COLUMNS,
            "rate_column": COLUMNS,
            "elapsed_column": COLUMNS,
            "bytes_column": COLUMNS,
            "time_unit": st.sampled_from(["s", "ms", "d", "date", "%H", "MB", "%"]),
            "rate_unit": st.sampled_from(["kbps", "B/s", "Tbps", "ms", ""]),
            "separator": st.sampled_from(["comma", "semicolon", "tab", "blanks"]),
            "until_s": st.sampled_from([1e-9, 2.0, 1e9]),
        },
    ),
)
def test_columns_swapped_and_units_mistaken_are_a_trace_or_one_sentence(
    tmp_path_factory, text, options
):
    path = tmp_path_factory.getbasetemp() / "swapped.csv"
    path.write_text(text)
    try:
        said = f"{path}: {read_csv(path, **options).peak_bytes_per_s}"
    except InputError as error:
        said = str(error)
    assert said.startswith((str(path), "time_unit: ", "rate_unit: ", "until: "))
    assert "\n" not in said


@pytest.mark.parametrize(("at", "said"), [(3, "line 5"), (47, "line 52")])
def test_an_error_of_order_is_found_in_its_block(tmp_path, monkeypatch, at, said):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 60)
    rows = [f'{k},1,"a\nb"\n' if k == 20 else f"{k},1,x\n" for k in range(50)]
    rows[30] += "# said\n\n"
    rows[at] = "-1,1,x\n"
    columns = {"rate_column": "r", "time_column": "t"}
    with pytest.raises(InputError, match=f"{said}, column t: got '-1', expected a t"):
        parse(tmp_path, "t,r,note\n" + "".join(rows), **columns)


def test_cells_of_all_exponents_are_what_float_makes_of_them(tmp_path):
    numbers = np.random.default_rng(3).integers(0, 2**64, 4_000, np.uint64)
    numbers = np.abs(numbers.view(np.float64))
    cells = [
        [repr(x), f"{x:.30e}", f"{x:.17g}", f" {x:.5g} "][k % 4]
        for k, x in enumerate(numbers[np.isfinite(numbers)].tolist())
    ]
    rows = "".join(f"{k},{cell}\n" for k, cell in enumerate(cells))
    trace = parse(tmp_path, rows, rate_unit="B/s")
    assert [*trace.rates_bytes_per_s] == [*map(float, cells)]


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ("net.trace_files.MOST_ROWS", "got 'more', expected a file of at most 2 rows"),
        (
            "ground.csv_files.MOST_TABLE_BYTES",
            "got '17 bytes', expected a file of at most 2 bytes",
        ),
    ],
)
def test_a_file_beyond_the_bounds_is_refused(tmp_path, monkeypatch, bound, sentence):
    monkeypatch.setattr(f"simfed.{bound}", 2)
    with pytest.raises(InputError, match=sentence):
        parse(tmp_path, "0,1\n1,1\n2,1\n3,1.5")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "trace.txt"
    for read in (read_csv, read_pensieve, read_mahimahi):
        path.write_bytes(b"1\n\xff\n" if read is read_mahimahi else b"0,1\n1,\xff\n")
        with pytest.raises(InputError, match="cannot be read: not UTF-8 text"):
            read(path)


def test_a_column_costs_eight_bytes_a_number_and_goes_to_other_processes():
    trace = Trace.of([0, 1, 2], np.array([4.0, 5.0, 6.0]), 3, "loop")
    column = trace.rates_bytes_per_s
    assert (column.itemsize, column[1], [*column]) == (8, 5.0, [4.0, 5.0, 6.0])
    assert pickle.loads(pickle.dumps(trace)) == trace
    assert Trace.of([0.0], (5.0,), 3, "loop") != trace


def on_off(seed, mean_on_s=1.0, mean_off_s=1.0, duration_s=1.0):
    return markov_on_off(
        np.random.default_rng(seed),
        on_bytes_per_s=10.0,
        off_bytes_per_s=0.0,
        mean_on_s=mean_on_s,
        mean_off_s=mean_off_s,
        duration_s=duration_s,
    )


def test_markov_on_off_spends_its_time_as_asked():
    trace = on_off(1, mean_on_s=3.0, duration_s=40_000.0)
    rates = np.array(trace.rates_bytes_per_s)
    assert set(rates) == {0.0, 10.0}
    # share of time on: sd of the mean over about 10,000 cycles is 0.4 %
    assert trace.mean_bytes_per_s == pytest.approx(7.5, rel=0.02)
    stays = np.diff([*trace.starts_s, trace.duration_s])[rates > 0]
    # exponential: sd = mean
    assert [stays.mean(), stays.std()] == pytest.approx([3.0, 3.0], rel=0.05)


def test_a_markov_link_is_never_silent_for_ever():
    for seed in range(40):
        trace = on_off(seed, mean_off_s=1e3, duration_s=2.0)
        assert trace.peak_bytes_per_s == 10.0


def test_lognormal_ar1_has_the_mean_spread_and_memory_asked_for():
    trace = lognormal_ar1(
        np.random.default_rng(2),
        mean_bytes_per_s=1e6,
        cv=0.5,
        correlation=0.8,
        step_s=1.0,
        duration_s=60_000.0,
    )
    rates = np.array(trace.rates_bytes_per_s)
    assert len(rates) == 60_000
    # 60,000 steps of correlation 0.8 are worth about 6,700 independent ones: sd of the
    # mean 0.6 %
    assert rates.mean() == pytest.approx(1e6, rel=0.03)
    assert rates.std() / rates.mean() == pytest.approx(0.5, rel=0.05)
    logs = np.log(rates)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.8, abs=0.02)
