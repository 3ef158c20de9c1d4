"""What clients own, as a table of the report."""

from simfed.cli import main
from simfed.report.owned import (
    build_owned_table,
    format_label_lines,
    format_owned_lines,
)


def test_bars_stand_where_there_are_classes_only():
    owned = {"clients": 2, "samples": (3, 4, 5), "public": 0, "names": []}
    rows = [(0, "n" * 20, 3, []), (1, "o" * 21, 5, [])]
    table = build_owned_table("texts", owned | {"rows": rows})
    assert table.header == ("client", "owner", "samples")
    assert table.rows[1] == ("1", "o" * 21, "5")
    assert "Bars" not in table.note
    # a name is cut where it is wider than its column
    lines = format_owned_lines(owned | {"rows": rows})
    assert [line.split()[1] for line in lines[-2:]] == ["n" * 20, "o" * 19 + "…"]
    with_classes = owned | {"names": ["a", "b"], "rows": [(0, "Ada", 3, [1, 2])]}
    table = build_owned_table("pictures", with_classes)
    assert table.header[-1] == "classes a … b"
    assert [len(row) for row in table.rows] == [4]
    assert table.note.endswith("Bars are classes beside the client's largest one.")


def test_the_balance_of_labels_is_told_in_eighty_columns():
    assert format_label_lines([("a", 5, 1), ("b", 5, 2)]) == [
        "labels: 2, each of 5 training samples"
    ]
    lines = format_label_lines([(f"class-{k}", k * k, 1) for k in range(40)])
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines)
    assert text.startswith("labels: class-39: 1,521 (7.41 %), class-38: 1,444 (7.03 %)")
    assert "…, class-9: 81" in text
    assert "class-0: 0 (0 %)" in text
    assert text.endswith("always class-39: right for 2.5 % of the test samples")


def test_the_inputs_of_a_table_are_listed_an_id_as_one(tmp_path, capsys):
    rows = "".join(
        f"{k},{'no' if k % 4 else 'yes'},{k / 7},{'abc'[k % 3]}\n" for k in range(40)
    )
    (tmp_path / "t.csv").write_text(f"id,ill,age,city\n{rows}")
    (tmp_path / "x.yaml").write_text(
        "{name: x, method: fedavg, rounds: 1, dataset: {table: t.csv, target: ill}, "
        "prototypes: {p: {model: logistic-regression}}, clients: [{count: 2, "
        "prototype: p, link: {}, device: {training: 0 s, compression: 0 s}}]}"
    )
    assert main(["data", "show", str(tmp_path / "x.yaml")]) == 0
    printed = capsys.readouterr().out
    assert (
        "\ninputs: id (another in every row), age, city (3 texts)\nlabels: no: "
        in printed
    )
