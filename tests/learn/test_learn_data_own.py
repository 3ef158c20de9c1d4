"""Data of one's own, without code: arrays, tables, pictures, LEAF, torchvision, Hugging
Face.
"""

import json
import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from learn_tiny import load, spec, write_tiny
from PIL import Image
from pyarrow import csv, parquet
from test_learn_data import python2_batch
from worlds import TINY, change, world

import simfed
from simfed import InputError
from simfed.cli import main
from simfed.ground import Streams
from simfed.learn import (
    Dataset,
    dataset_facts,
    deal,
    files_digest,
    labels_in,
    load_data,
    load_federation,
)
from simfed.learn.data.hub import fetch_hub_set
from simfed.learn.data.looks import apply_looks
from simfed.learn.data.owned import count_owned
from simfed.scenario.dataset import Partition

rng = np.random.default_rng(0)


def write_npz(path, **changes):
    """40 samples of 2 classes and 4 owners, 8 of them test samples."""
    arrays = {}
    for part, count in (("train", 32), ("test", 8)):
        rows = np.arange(count)
        images = rng.integers(0, 256, (count, 1, 6, 6), dtype=np.uint8)
        arrays |= {f"x_{part}": images, f"y_{part}": rows % 2}
        arrays[f"owner_{part}"] = rows % 4
    arrays |= changes
    np.savez(path, **{name: one for name, one in arrays.items() if one is not None})
    return arrays


# ---- arrays --------------------------------------------------------------------------


def test_arrays_are_read_as_they_are(tmp_path):
    arrays = write_npz(tmp_path / "mine.npz")
    one = spec(tmp_path, file="mine.npz")
    data = load_data(one)
    assert (data.train_images == arrays["x_train"]).all()
    assert (data.test_labels == arrays["y_test"]).all()
    assert (data.train_owners == arrays["owner_train"]).all()
    assert data.facts == dataset_facts(one)
    assert (one.partition.kind, one.label) == ("natural", "mine.npz")


def test_a_fifth_of_each_owners_rows_is_the_test_set_where_there_is_none(tmp_path):
    write_npz(tmp_path / "mine.npz", x_test=None, y_test=None, owner_test=None)
    data = load(tmp_path, file="mine.npz")
    assert np.bincount(data.test_owners).tolist() == [1, 1, 1, 1]
    assert np.bincount(data.train_owners).tolist() == [7, 7, 7, 7]
    again = labels_in(spec(tmp_path, file="mine.npz"))
    assert sorted([*again.train_rows, *again.test_rows]) == list(range(32))


def test_a_class_that_only_test_rows_have_counts(tmp_path):
    write_npz(tmp_path / "mine.npz", y_test=np.arange(8) % 3)
    write_table(tmp_path)
    rows = CSV.replace("60,green,4.5,no", "60,green,4.5,zero")
    (tmp_path / "test.csv").write_text(rows)
    table = {"table": "rows.csv", "test": "test.csv", "target": "ill"}
    for keys in ({"file": "mine.npz"}, table):
        data = load(tmp_path, **keys)
        assert (data.classes, set(data.train_labels)) == (3, {0, 1})
        assert set(data.test_labels) == {0, 1, 2}
        assert data.facts == dataset_facts(spec(tmp_path, **keys))


HEADER = "{{'descr': '<f8', 'fortran_order': False, 'shape': {}, }}"


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (HEADER.format("(1000000000000, 784)"), "as its"),
        (HEADER.format("(3, 4)"), "got '64', expected 96 bytes, as its header says"),
        (HEADER.format("(2, -4)"), "axes of at least 0"),
        ("((((", "cannot be read"),
        ("[1, 2]", "cannot be read"),
        ("word", "cannot be read"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, header, sentence):
    np.savez(tmp_path / "a.npz", y_train=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        said = b"\x93NUMPY\x01\x00v\x00" + f"{header:<117}\n".encode()
        archive.writestr("x_train.npy", said + bytes(64))
    with pytest.raises(InputError, match=rf"a\.npz: .*{sentence}") as refused:
        load(tmp_path, file="a.npz")
    assert "0x" not in str(refused.value)


def test_archives_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    write_npz(tmp_path / "mine.npz")
    monkeypatch.setattr("simfed.learn.data.arrays.MOST_FILE_BYTES", 1000)
    with pytest.raises(InputError, match="unpacks to at most 1,000 bytes"):
        load(tmp_path, file="mine.npz")


# ---- tables --------------------------------------------------------------------------

CSV = """age,colour,score,ill,ward
30,red,1.5,yes,A
40,blue,2.5,no,A
50,red,3.5,yes,B
60,green,4.5,no,B
35,red,2.0,yes,A
45,blue,3.0,no,B
"""


def write_table(folder, text=CSV):
    (folder / "rows.csv").write_text(text)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_become_standardised_numbers_and_categories(tmp_path, kind):
    write_table(tmp_path)
    table = csv.read_csv(tmp_path / "rows.csv")
    parquet.write_table(table, tmp_path / "rows.parquet")
    one = spec(tmp_path, table=f"rows.{kind}", target="ill", owner="ward")
    data = load_data(one)
    assert data.facts == dataset_facts(one)
    assert data.facts.input_shape == (5,)  # age, blue, green, red, score
    assert (data.class_names, data.owners) == (("no", "yes"), ("A", "B"))
    assert one.partition.kind == "natural"
    for rows in (data.train_images, data.test_images):
        assert (rows[:, 1:4].sum(axis=1) == 1).all()
    numbers = data.normalise(data.train_images)[:, [0, 4]]
    assert np.allclose(numbers.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(numbers.std(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize(("missing", "age"), [("mean", 44.0), ("median", 45.0)])
def test_missing_values_are_imputed_as_the_scenario_says(tmp_path, missing, age):
    write_table(tmp_path, CSV.replace("40,blue", ","))
    data = load(tmp_path, table="rows.csv", target="ill", missing=missing)
    rows = np.concatenate([data.train_images, data.test_images])
    [put] = rows[np.isclose(rows[:, 4], 2.5)]
    # red, the most frequent
    assert put[:4].tolist() == [pytest.approx(age), 0, 0, 1]


@pytest.mark.parametrize(
    ("kind", "missing"),
    [(pa.string(), "mean"), (pa.null(), "median"), (pa.float64(), "mean")],
)
def test_a_column_without_a_value_is_refused_and_leaves_its_neighbours_alone(
    tmp_path, kind, missing
):
    rows = np.arange(20)
    columns = {"empty": pa.nulls(20, kind), "next": rows + 5, "ill": rows % 2}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    keys = {"table": "t.parquet", "target": "ill", "missing": missing}
    with pytest.raises(InputError) as error:
        load(tmp_path, **keys)
    assert str(error.value).endswith(
        "t.parquet: column empty: got 'none', expected a value in some training row "
        "(leave it out: features)"
    )
    data = load(tmp_path, **keys, features=["next"])
    read = np.concatenate([data.train_images, data.test_images])
    assert sorted(read[:, 0]) == [*range(5, 25)]


@pytest.mark.parametrize(
    ("ask", "file", "text", "sentence"),
    [
        (load_data, "rows", CSV.replace("red", "r\xe9d"), "colour, row 1: .*UTF-8"),
        (labels_in, "test", CSV.replace("40,", "4\xe9,"), "age, row 2"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(tmp_path, ask, file, text, sentence):
    for name in ("rows", "test"):
        rows = text if name == file else CSV
        (tmp_path / f"{name}.csv").write_bytes(rows.encode("latin-1"))
    with pytest.raises(InputError, match=rf"{file}\.csv: column {sentence}"):
        ask(spec(tmp_path, table="rows.csv", test="test.csv", target="ill"))


def test_a_second_table_is_the_test_set(tmp_path):
    write_table(tmp_path)
    (tmp_path / "test.csv").write_text("".join(CSV.splitlines(True)[:3]))
    keys = {"table": "rows.csv", "test": "test.csv", "target": "ill"}
    data = load(tmp_path, **keys, owner="ward")
    assert (len(data.train_images), len(data.test_images)) == (6, 2)
    assert data.owners[data.test_owners[0]] == "A"
    # whose texts may all look like numbers
    (tmp_path / "rows.csv").write_text("code,ill\n007,yes\nA1,no\n007,yes\nA1,no\n")
    (tmp_path / "test.csv").write_text("code,ill\n007,yes\n")
    assert load(tmp_path, **keys).test_images.tolist() == [[1, 0]]


# ---- pictures, LEAF, torchvision, Hugging Face ---------------------------------------


def write_pictures(folder, owners=("",)):
    for owner in owners:
        for label in ("cat", "dog"):
            place = folder / owner / label
            place.mkdir(parents=True)
            for i in range(5):
                Image.new("RGB", (5, 5), (i, i, i)).save(place / f"{i}.png")


def test_folders_name_classes_and_owners(tmp_path):
    write_pictures(tmp_path / "plain")
    data = load(tmp_path, folder="plain")
    assert data.facts.input_shape == (3, 5, 5)
    assert (data.class_names, len(data.train_images)) == (("cat", "dog"), 8)
    first = [*data.train_images[:, 0, 0, 0], *data.test_images[:, 0, 0, 0]]
    assert sorted(first) == sorted([*range(5)] * 2)  # each picture has its grey
    write_pictures(tmp_path / "owned", owners=("ann", "bob"))
    one = spec(tmp_path, folder="owned", pixels=4)
    assert (load_data(one).owners, one.partition.kind) == (("ann", "bob"), "natural")
    assert load_data(one).facts == dataset_facts(one)
    assert dataset_facts(one).input_shape == (3, 4, 4)


def test_pictures_of_two_sizes_and_damaged_ones_are_named(tmp_path):
    write_pictures(tmp_path / "plain")
    Image.new("RGB", (7, 7)).save(tmp_path / "plain/dog/9.png")
    with pytest.raises(InputError, match=r"9\.png: .*pixels: 32 scales all"):
        load(tmp_path, folder="plain")
    (tmp_path / "plain/dog/9.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"9\.png: cannot be read"):
        load(tmp_path, folder="plain", pixels=5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no picture"):
        load(tmp_path, folder="empty")


def write_leaf(folder, users):
    plain = {
        "users": list(users),
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        (folder / part / "all_data.json").write_text(json.dumps(plain))


def test_leafs_users_are_owners(tmp_path):
    images = {f"f{i}": ([[0.5] * 784] * 3, [i, 1, 2]) for i in range(3)}
    write_leaf(tmp_path / "femnist", images)
    one = spec(tmp_path, leaf="femnist")
    assert load_data(one).facts == dataset_facts(one)
    assert dataset_facts(one).input_shape == (1, 28, 28)
    assert one.partition.kind == "natural"
    texts = {
        "HAMLET": (["to be or", "o be or "], [" ", "n"]),
        "YORICK": (["........"] * 2, ["n"] * 2),
    }
    write_leaf(tmp_path / "shakespeare", texts)
    data = load(tmp_path, leaf="shakespeare")
    assert data.tokens
    assert (data.facts.input_shape, data.classes) == ((8,), len(set("to be orn.")))
    assert data.train(np.array([0]))[0].dtype == np.int64


def test_leafs_files_are_utf_8(tmp_path):
    (tmp_path / "all_data.json").write_bytes(b'{"users": ["\xff"]}')
    with pytest.raises(InputError, match="line 1: cannot be read: not UTF-8 text, by"):
        load(tmp_path, leaf=".")


def test_torchvisions_raw_files_are_read_without_it_and_anew_once_changed(tmp_path):
    one = spec(tmp_path, torchvision="MNIST", root=".")
    labels = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    write_tiny(labels.parent)
    files, data = files_digest(one), load_data(one)
    assert data.facts == dataset_facts(one)
    assert data.facts.train_samples == 20
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x00")
    os.utime(labels, (7, 7))  # the clock of a file system may be coarse
    assert files_digest(one) != files
    assert load_data(one).digest != data.digest
    with pytest.raises(InputError, match="torchvision's folder cifar-10-batches-py"):
        load(tmp_path, torchvision="CIFAR10", root=".")


@pytest.mark.parametrize(
    ("name", "folder", "files", "key"),
    [
        (
            "CIFAR10",
            "cifar-10-batches-py",
            [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"],
            b"labels",
        ),
        ("CIFAR100", "cifar-100-python", ["train", "test"], b"fine_labels"),
    ],
)
def test_torchvisions_pickles_are_all_read(tmp_path, name, folder, files, key):
    (tmp_path / folder).mkdir()
    for number, file in enumerate(files):
        images = np.full((2, 3, 32, 32), number, np.uint8)
        batch = python2_batch([number, number], images, key=key)
        (tmp_path / folder / file).write_bytes(batch)
    data = load(tmp_path, torchvision=name, root=".")
    last = len(files) - 1
    numbers = np.repeat(np.arange(last), 2)
    assert data.train_labels.tolist() == numbers.tolist()
    assert (data.train_images == numbers[:, None, None, None]).all()
    assert data.test_labels.tolist() == [last, last]


def write_saved(folder, *parts):
    """As `save_to_disk` does it."""
    info = {
        "info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}
    }
    rows = [[[float(i)] * 3] * 3 for i in range(10)]
    columns = {
        "pixels": pa.array(rows, pa.list_(pa.list_(pa.float32()))),
        "label": [i % 2 for i in range(10)],
        "who": ["ann", "bob"] * 5,
    }
    table = pa.table(columns, metadata={"huggingface": json.dumps(info)})
    state = {"_data_files": [{"filename": "data.arrow"}], "_indices_data_files": None}
    for part in parts:
        place = folder / part
        place.mkdir(parents=True)
        with pa.ipc.new_stream(str(place / "data.arrow"), table.schema) as stream:
            stream.write_table(table)
        (place / "state.json").write_text(json.dumps(state))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": parts}))


def test_hugging_faces_folders_are_read_without_the_library(tmp_path):
    write_saved(tmp_path / "saved", "train", "test")
    one = spec(tmp_path, huggingface="saved", owner="who", features=["pixels"])
    data = load_data(one)
    assert data.facts == dataset_facts(one)
    assert (data.facts.input_shape, data.class_names) == ((1, 3, 3), ("no", "yes"))
    assert data.owners == ("ann", "bob")
    (tmp_path / "files").mkdir()
    table = pa.table({"f": np.arange(10.0), "label": np.arange(10) % 2})
    parquet.write_table(table, tmp_path / "files/train-00000.parquet")
    assert load(tmp_path, huggingface="files").facts.train_samples == 8


class FetchedSplits(dict):
    """What the library gives for a name."""

    def save_to_disk(self, place):
        write_saved(Path(place), "train")


def test_a_name_of_the_hub_is_read_where_it_was_fetched_alone(
    tmp_path, monkeypatch, capsys
):
    asked = []

    def load_dataset(*name, **switches):
        asked.append((name, switches))
        return FetchedSplits(train=None)

    library = SimpleNamespace(load_dataset=load_dataset, __version__="3.6.0")
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setenv("SIMFED_DATA", str(tmp_path / "data"))
    named = spec(tmp_path, huggingface="ylecun/mnist", features=["pixels"])
    for ask in (load_data, files_digest):
        with pytest.raises(
            InputError, match=r"is not on this machine.*get huggingface:ylecun/mnist"
        ):
            ask(named)
    assert asked == []
    assert main(["data", "get", "huggingface:ylecun/mnist"]) == 0
    assert asked == [(("ylecun/mnist",), {"trust_remote_code": False})]
    assert "ylecun--mnist" in capsys.readouterr().out
    assert load_data(named).facts.train_samples == 8
    assert len(files_digest(named)) == 64
    assert len(asked) == 1


def fail(name):
    raise ValueError("\n  no such\nconfiguration")


@pytest.mark.parametrize(
    ("library", "sentence"),
    [
        (None, r"simfed\[huggingface\]"),
        # a version that runs code of a repository unasked
        (
            SimpleNamespace(__version__="2.19.2"),
            "'2.19.2', expected datasets 2.20 ",
        ),
        (
            SimpleNamespace(__version__="4.1.0", load_dataset=fail),
            r"ylecun/mnist: .*no such.*save_to_disk\(\)",
        ),
    ],
)
def test_a_hub_that_gives_nothing_is_one_sentence(
    tmp_path, monkeypatch, library, sentence
):
    monkeypatch.setenv("SIMFED_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", library)
    with pytest.raises(InputError, match=sentence) as said:
        fetch_hub_set("ylecun/mnist")
    assert "\n" not in str(said.value)


# ---- who owns what -------------------------------------------------------------------


def dealt(count, clients, public, **more):
    labels = np.zeros(count, int)
    return deal(labels, Streams(0), clients=clients, public=public, **more)


def test_a_client_is_an_owner():
    owners = np.repeat([0, 2, 3, 5], [10, 20, 30, 40])
    split = dealt(100, 3, 5, kind="natural", owners=owners)
    assert len(split.owners) == 3
    private = np.delete(owners, split.public)
    for owner, mine in zip(split.owners, split.clients, strict=True):
        assert set(owners[mine]) == {owner}
        assert len(mine) == sum(private == owner)


def test_log_normal_sizes_spread_as_sigma_says():
    def sizes(sigma):
        split = dealt(20_000, 200, 0, kind="quantity", sigma=sigma)
        return [len(part) for part in split.clients]

    assert set(sizes(0.0)) == {100}
    assert np.log(sizes(1.0)).std() == pytest.approx(1.0, abs=0.15)


def test_noise_is_a_share_of_black_to_white_however_images_are_stored():
    def seen(images):
        samples = images, np.arange(8) % 2
        data = Dataset(*samples, *samples, classes=2)
        partition = Partition(kind="feature", rotation=0, noise=0.2)
        split = SimpleNamespace(clients=[np.arange(4), np.arange(4, 8)])
        return apply_looks(data, split, partition, Streams(0)).train_images

    grey = np.full((8, 1, 5, 5), 128, np.uint8)
    of_floats = seen(grey.astype(np.float32) / 255)
    assert of_floats.std() > 0.01
    assert np.abs(seen(grey) / 255 - of_floats.clip(0, 1)).max() < 0.51 / 255


# ---- in scenarios --------------------------------------------------------------------


def scenario(folder, dataset, clients=2, **keys):
    """A scenario file beside its data."""
    made = change(TINY, {"dataset": dataset, "clients[0].count": clients, **keys})
    (folder / "own.yaml").write_text(json.dumps(made))
    return folder / "own.yaml"


def test_feature_skew_turns_every_clients_images(tmp_path):
    write_npz(tmp_path / "mine.npz")
    skew = {"kind": "feature", "rotation": 45, "noise": 0}
    path = scenario(tmp_path, {"file": "mine.npz", "partition": skew})
    plain, skewed = (
        load_federation(simfed.load_scenario(path, changes), Streams(0))
        for changes in ({"dataset.partition": {"kind": "iid"}}, {})
    )
    assert (plain.test_samples == skewed.test_samples).all()
    assert all((a == b).all() for a, b in zip(plain.owned, skewed.owned, strict=True))
    assert not (plain.at(plain.owned[0])[0] == skewed.at(skewed.owned[0])[0]).all()


def test_the_public_set_may_be_a_file(tmp_path):
    write_npz(tmp_path / "mine.npz")
    np.savez(tmp_path / "public.npz", x=np.full((6, 1, 6, 6), 9, np.uint8))
    data = {"file": "mine.npz", "public": 4, "public_file": "public.npz"}
    path = scenario(tmp_path, data, method="feddf")
    world = simfed.load_scenario(path)
    federation = load_federation(world, Streams(0))
    assert len(federation.public) == 4
    # two of four owners, and nothing kept back
    assert sum(map(len, federation.owned)) == 16
    with pytest.raises(InputError, match=r"at most the 6 samples"):
        load_federation(simfed.load_scenario(path, {"dataset.public": 7}), Streams(0))


# ---- what is shown -------------------------------------------------------------------


def test_what_clients_own_is_shown_in_eighty_columns(tmp_path, capsys):
    write_npz(tmp_path / "mine.npz", owner_train=np.repeat([0, 1, 2, 3], [4, 4, 4, 20]))
    path = scenario(tmp_path, {"file": "mine.npz"}, clients=4)
    assert main(["data", "show", str(path), "--out", str(tmp_path / "owned.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert lines[2] == "4 clients own 4 to 20 samples, median 4"
    assert lines[-2].split() == ["3", "3", "20", "██"]
    with Image.open(tmp_path / "owned.png") as picture:
        assert picture.width == 2100
    result = simfed.run(path, workers=1, progress=False)
    assert result.manifest["owned"]["rows"][-1] == [3, "3", 20, [10, 10]]


@pytest.mark.parametrize(
    ("classes", "columns"), [(40, 40), (41, 21), (80, 40), (81, 27)]
)
def test_of_many_classes_neighbours_are_counted_together(add_part, classes, columns):
    labels = np.repeat(np.arange(classes), 6)
    samples = np.zeros((len(labels), 1, 2, 2), np.uint8), labels
    add_part("dataset", "many", lambda: Dataset(*samples, *samples, classes))
    owned = count_owned(world("tiny", {"dataset.name": "many"}), Streams(1))
    assert owned.classes.shape == (2, columns)
    assert owned.classes.sum() == owned.samples.sum() == len(labels)
    assert len(owned.names) == (classes if classes == columns else 2)
    assert (owned.names[0], owned.names[-1]) == ("0", str(classes - 1))
