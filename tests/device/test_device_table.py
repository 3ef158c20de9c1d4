"""Measured tables: what is read, and what is refused in one sentence."""

from pathlib import Path

import pytest

from simfed import InputError
from simfed.calibrate import compare, fit_profile
from simfed.device import ModelWork, load_profile, read_table
from simfed.device.table import compute_medians
from simfed.learn.catalogue import facts

CALIBRATION = Path(__file__).parents[2] / "calibration"
SOURCE = [
    CALIBRATION / f"rtx3090-ryzen4800h.{kind}.csv"
    for kind in ("compression", "training")
]

HEAD = "quantity,model,strategy,k,samples,seconds\n"


def test_the_sources_tables_are_read_without_a_quantity_column():
    table = read_table(SOURCE)
    assert len(table.rows) == 40
    assert table.datasets()["resnet18"] == "cifar10"
    assert [
        x
        for x, _, _, _ in compute_medians(
            table.rows_of(("compression", "lenet5", "top-k"))
        )
    ] == [
        500,
        1000,
        5000,
    ]


def test_the_shipped_law_of_the_source_is_the_fit_of_its_tables():
    table = read_table(SOURCE)
    models = {m: facts(m, data) for m, data in table.datasets().items()}
    profile = load_profile("rtx3090-ryzen4800h-law")
    for model, size in models.items():
        profile.models[model] = ModelWork(
            size.parameters, size.forward_flops, size.train_flops
        )
    check = compare(profile, table)
    for point in check.points:
        mnist = table.datasets()[point.key[1]] == "mnist"
        assert abs(point.error) < (0.01 if mnist else 0.20), point
    assert [entry["sha256"] for entry in profile.provenance["files"]] == [
        d for _, d in table.files
    ]


def test_threads_are_a_whole_number_however_it_is_written(tmp_path):
    path = tmp_path / "table.csv"
    for text in ("2", "2.0"):
        path.write_text(
            f"model,batch_size,seconds,threads\nm,8,0.1,{text}\nm,16,0.2,{text}\n"
        )
        assert (
            fit_profile(read_table([path]), name="x").document["provenance"]["threads"]
            == 2
        )
    for text in ("four", "1.5", "0", "inf"):
        path.write_text(
            f"model,batch_size,seconds,threads\nm,8,0.1,1\nm,16,0.2,{text}\n"
        )
        with pytest.raises(
            InputError,
            match=r"line 3: threads: got '(four|1\.5|0|inf)', expected a whole number",
        ):
            read_table([path])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "the column model and seconds"),
        (
            HEAD + "training," + 200_000 * "m" + ",,,32,0.1\n",
            "cannot be read: field larger than field limit (131072)",
        ),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path, text, names):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_table([path])
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_table([tmp_path / "none.csv"])
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="UTF-16, not UTF-8 text"):
        read_table([tmp_path / "binary.csv"])


def test_one_straggler_among_many_is_no_contradiction(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(HEAD + "training,m,,,32,0.1\n" * 9 + "training,m,,,32,30\n")
    assert len(read_table([path]).rows) == 10


def four_sizes(folder, name, factor):
    """Training of `m`, in seconds that are `factor` times those of another device."""
    folder.mkdir(exist_ok=True)
    rows = [
        f"training,m,,,{batch},{factor * batch * (0.01 + 1e-5 * i)}"
        for batch in (8, 16, 32, 64)
        for i in range(5)
    ]
    path = folder / name
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def test_two_files_are_two_sessions_whatever_their_names(tmp_path):
    first, second = four_sizes(tmp_path / "1", "m.csv", 1.0), tmp_path / "2"
    spreads = []
    for name in ("m.csv", "n.csv"):
        table = read_table([first, four_sizes(second, name, 1.3)])
        assert table.sessions == 2
        document = fit_profile(table, name="x").document
        spreads.append(document["training"]["m"]["uncertainty"])
    assert spreads[0] == spreads[1] > 0.1


def test_a_table_that_is_given_twice_is_refused(tmp_path):
    path, copy = (
        four_sizes(tmp_path, "m.csv", 1.0),
        four_sizes(tmp_path, "copy.csv", 1.0),
    )
    for again in (path, copy):
        with pytest.raises(
            InputError,
            match=f"^{again}: another table holds the same, expected each table once",
        ):
            read_table([path, again])
