"""What clients own, as a table of the report."""

from simfed.report.owned import owned_table


def test_bars_stand_where_there_are_classes_only():
    rows = [(0, "Ada", 3, []), (1, "Ben", 5, [])]
    owned = {"clients": 2, "samples": (3, 4, 5), "public": 0, "names": [], "rows": rows}
    table = owned_table("texts", owned)
    assert table.header == ("client", "owner", "samples")
    assert table.rows == [("0", "Ada", "3"), ("1", "Ben", "5")]
    assert "Bars" not in table.note
    with_classes = owned | {"names": ["a", "b"], "rows": [(0, "Ada", 3, [1, 2])]}
    table = owned_table("pictures", with_classes)
    assert table.header[-1] == "classes a … b"
    assert [len(row) for row in table.rows] == [4]
    assert table.note.endswith("Bars are classes beside the client's largest one.")
