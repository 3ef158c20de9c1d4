"""The fingerprint sees every value, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfed.record import (
    TABLES,
    LinkUse,
    PolicyValue,
    Recorder,
    Span,
    columns,
    fingerprint,
)
from simfed.record.digest import Fingerprint
from simfed.record.schema import OPTIONAL_TABLES, ClientResult, Merge, ProcessorUse

SPANS = [
    Span("client 0", "training", "training", 1, 0, 0.0, 1.0),
    Span("client 0", "upload", "top-k", 1, 0, 1.0, 2.5),
    Span("link é", "busy", "busy", None, None, 1.0, 2.5),
]


def of(table, *rows, **options):
    recorder = Recorder(**options)
    for row in rows:
        getattr(recorder, table).append(row)
        recorder.settle()
    return fingerprint(recorder.batches)


@pytest.mark.parametrize("rows_in_memory", [1, 2])
def test_equal_rows_have_equal_fingerprints_however_they_were_cut(rows_in_memory):
    assert of("spans", *SPANS) == of("spans", *SPANS, rows_in_memory=rows_in_memory)


VALUES = {
    "str": st.text(),
    "int64": st.integers(0, 9),
    "float64": st.floats(allow_nan=False),
}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_changed_value_changes_it(data):
    row = data.draw(st.integers(0, len(SPANS) - 1))
    column = data.draw(st.sampled_from(columns("spans")))
    was = getattr(SPANS[row], column.name)
    new = data.draw(VALUES[column.dtype].filter(lambda value: value != was))
    changed = list(SPANS)
    changed[row] = SPANS[row]._replace(**{column.name: new})
    assert of("spans", *changed) != of("spans", *SPANS)


def names(*names):
    return [span._replace(name=name) for span, name in zip(SPANS, names, strict=False)]


@pytest.mark.parametrize(
    ("some", "others"),
    [
        (SPANS[2:], [SPANS[2]._replace(round=0)]),
        (names("ab", "c"), names("a", "bc")),
        (SPANS, SPANS[::-1]),
    ],
    ids=["no round is not round 0", "text does not move to the next row", "order"],
)
def test_other_rows_have_other_fingerprints(some, others):
    assert of("spans", *some) != of("spans", *others)


def test_every_not_a_number_is_the_same():
    nan, negative, none = (
        of("policies", PolicyValue(1, 0, "top-k", value))
        for value in (float("nan"), -float("nan"), None)
    )
    assert nan == negative != none


def test_slices_of_columns_hash_like_the_rows_they_show():
    recorder = Recorder()
    recorder.spans += SPANS * 50
    whole = recorder.table("spans")
    pieces, once = Fingerprint(), Fingerprint()
    for start in range(0, len(whole), 7):
        pieces.add("spans", whole.slice(start, 7))
    once.add("spans", whole)
    assert pieces.hexdigest() == once.hexdigest()


def test_it_covers_every_column_of_every_table():
    running, recorder = Fingerprint(), Recorder()
    assert {table for table, _ in running._columns} == set(TABLES) - set(
        OPTIONAL_TABLES
    )
    for table in OPTIONAL_TABLES:
        running.add(table, recorder.table(table))
    # an empty one and none are the same
    assert running.hexdigest() == Fingerprint().hexdigest()
    recorder.clients.append(ClientResult(1, 0, 0.5, 1.0, 0.75, 0.5))
    recorder.merges.append(Merge("edge-0", 1, 1, 0.0, 1.0, 2, 8.0, 8.0))
    recorder.processor.append(ProcessorUse(1, 1, 0, 0.0, 1.0, 0.5, 0.25))
    for table in OPTIONAL_TABLES:
        running.add(table, recorder.table(table))
    assert {*running._columns} == {
        (table, column.name) for table in TABLES for column in columns(table)
    }


def test_airtime_counts_where_a_link_is_a_cells():
    prints = [
        of("links", *(LinkUse("edge", 0.0, 1.0, 5.0, 9.0, 1, s) for s in airtimes_s))
        for airtimes_s in ([None, None], [None, 0.5], [0.5, 0.5])
    ]
    # as of versions that knew no cells
    assert prints[0] == "ac44cb80be01c06d999dc2243a9e588f"
    assert len({*prints}) == 3
