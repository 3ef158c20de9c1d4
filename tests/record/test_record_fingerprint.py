"""The fingerprint sees every value, and nothing else."""

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


def of(spans, rows_in_memory=100):
    recorder = Recorder(rows_in_memory=rows_in_memory)
    for span in spans:
        recorder.spans.append(span)
        recorder.settle()
    return fingerprint(recorder.batches)


def test_equal_rows_have_equal_fingerprints_however_they_were_cut():
    assert of(SPANS) == of(SPANS, rows_in_memory=1) == of(SPANS, rows_in_memory=2)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_changed_value_changes_it(data):
    row = data.draw(st.integers(0, len(SPANS) - 1))
    column = data.draw(st.sampled_from(columns("spans")))
    was = getattr(SPANS[row], column.name)
    new = data.draw(
        {
            "str": st.text(),
            "int64": st.integers(0, 9),
            "float64": st.floats(allow_nan=False),
        }[column.dtype].filter(lambda value: value != was)
    )
    changed = list(SPANS)
    changed[row] = SPANS[row]._replace(**{column.name: new})
    assert of(changed) != of(SPANS)


def test_no_round_is_not_round_zero():
    missing = SPANS[2]
    assert of([missing]) != of([missing._replace(round=0)])


def test_text_cannot_move_from_one_row_to_the_next():
    a, b = SPANS[0], SPANS[1]
    assert of([a._replace(name="ab"), b._replace(name="c")]) != of(
        [a._replace(name="a"), b._replace(name="bc")]
    )


def test_the_order_of_rows_counts():
    assert of(SPANS) != of(SPANS[::-1])


def test_every_not_a_number_is_the_same():
    def one(value):
        recorder = Recorder()
        recorder.policies.append(PolicyValue(1, 0, "top-k", value))
        return fingerprint(recorder.batches)

    assert one(float("nan")) == one(-float("nan"))
    assert one(float("nan")) != one(None)


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
    running = Fingerprint()
    assert {table for table, _ in running._columns} == set(TABLES) - set(
        OPTIONAL_TABLES
    )
    recorder = Recorder()
    recorder.clients.append(ClientResult(1, 0, 0.5, 1.0, 0.75, 0.5))
    running.add("clients", recorder.table("clients"))
    recorder.merges.append(Merge("edge-0", 1, 1, 0.0, 1.0, 2, 8.0, 8.0))
    running.add("merges", recorder.table("merges"))
    recorder.processor.append(ProcessorUse(1, 1, 0, 0.0, 1.0, 0.5, 0.25))
    running.add("processor", recorder.table("processor"))
    covered = set(running._columns)
    assert covered == {
        (table, column.name) for table in TABLES for column in columns(table)
    }


def test_an_empty_optional_table_and_no_table_are_the_same():
    running = Fingerprint()
    running.add("clients", Recorder().table("clients"))
    assert running.hexdigest() == Fingerprint().hexdigest()


def test_airtime_counts_where_a_link_is_a_cells():
    def recorded(airtimes):
        recorder = Recorder()
        for airtime_s in airtimes:
            recorder.links.append(LinkUse("edge", 0.0, 1.0, 5.0, 9.0, 1, airtime_s))
        return recorder.batches

    hashes = [
        fingerprint(recorded(seen)) for seen in ([None, None], [None, 0.5], [0.5, 0.5])
    ]
    # as of versions that knew no cells
    assert hashes[0] == "ac44cb80be01c06d999dc2243a9e588f"
    assert len(set(hashes)) == 3
