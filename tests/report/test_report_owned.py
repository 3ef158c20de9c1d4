"""What clients own, as a table of the report."""

from simfed.report.owned import build_owned_table, format_owned_lines


def test_bars_stand_where_there_are_classes_only():
    rows = [(0, "Ada", 3, []), (1, "Ben", 5, [])]
    owned = {"clients": 2, "samples": (3, 4, 5), "public": 0, "names": [], "rows": rows}
    table = build_owned_table("texts", owned)
    assert table.header == ("client", "owner", "samples")
    assert table.rows == [("0", "Ada", "3"), ("1", "Ben", "5")]
    assert "Bars" not in table.note
    with_classes = owned | {"names": ["a", "b"], "rows": [(0, "Ada", 3, [1, 2])]}
    table = build_owned_table("pictures", with_classes)
    assert table.header[-1] == "classes a … b"
    assert [len(row) for row in table.rows] == [4]
    assert table.note.endswith("Bars are classes beside the client's largest one.")


def test_a_name_is_cut_where_it_is_wider_than_its_column():
    owned = {"clients": 2, "samples": (3, 4, 5), "public": 0, "names": []}
    names = ["n" * 20, "o" * 21]
    lines = format_owned_lines(
        {**owned, "rows": [(k, name, 3, []) for k, name in enumerate(names)]}
    )
    assert [line.split()[1] for line in lines[-2:]] == ["n" * 20, "o" * 19 + "…"]
