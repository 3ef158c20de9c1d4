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
    medians = compute_medians(table.rows_of(("compression", "lenet5", "top-k")))
    assert [size for size, *_ in medians] == [500, 1000, 5000]


def test_the_shipped_law_of_the_source_is_the_fit_of_its_tables():
    table, profile = read_table(SOURCE), load_profile("rtx3090-ryzen4800h-law")
    datasets = table.datasets()
    for model, dataset in datasets.items():
        profile.models[model] = ModelWork.of(facts(model, dataset))
    for point in compare(profile, table).points:
        bound = 0.01 if datasets[point.key[1]] == "mnist" else 0.20
        assert abs(point.error) < bound, point
    digests = [entry["sha256"] for entry in profile.provenance["files"]]
    assert digests == [digest for _, digest in table.files]


def test_threads_are_a_whole_number_however_it_is_written(tmp_path):
    path = tmp_path / "table.csv"
    for text in ("2", "2.0"):
        rows = f"m,8,0.1,{text}\nm,16,0.2,{text}\n"
        path.write_text(f"model,batch_size,seconds,threads\n{rows}")
        document = fit_profile(read_table([path]), name="x").document
        assert document["provenance"]["threads"] == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the column model and seconds"),
        (b"\xff\xfe\x00\x01", "UTF-16, not UTF-8 text"),
        (b"model,samples,seconds\n" + 200_000 * b"m", "field larger than field limit"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content, said):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_table([tmp_path / "table.csv"])


def test_one_straggler_among_many_is_no_contradiction(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(HEAD + "training,m,,,32,0.1\n" * 9 + "training,m,,,32,30\n")
    assert len(read_table([path]).rows) == 10


def four_sizes(path, factor):
    """Training of `m`, in seconds that are `factor` times those of another device."""
    path.parent.mkdir(exist_ok=True)
    rows = [
        f"training,m,,,{batch},{factor * batch * (0.01 + 1e-5 * i)}\n"
        for batch in (8, 16, 32, 64)
        for i in range(5)
    ]
    path.write_text(HEAD + "".join(rows))
    return path


def test_two_files_are_two_sessions_whatever_their_names(tmp_path):
    first = four_sizes(tmp_path / "1" / "m.csv", 1.0)
    spreads = []
    for name in ("m.csv", "n.csv"):
        table = read_table([first, four_sizes(tmp_path / "2" / name, 1.3)])
        assert table.sessions == 2
        document = fit_profile(table, name="x").document
        spreads.append(document["training"]["m"]["uncertainty"])
    assert spreads[0] == spreads[1] > 0.1
