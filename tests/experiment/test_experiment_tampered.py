"""Tampering: a value that was changed, with the digests recomputed by whoever changed it, is
found."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from struck import TINY

import simfed
from simfed import audit
from simfed.record import fingerprint, open_run
from simfed.record.digest import manifest_digest
from simfed.record.schema import TABLES, columns

LEARNS = (
    TINY.replace(
        "policy: {kind: uniform, strategy: random-k}",
        "policy: {kind: ascend, warmup: 1, reward: {local_loss: {samples: 16}}}",
    )
    .replace("rounds: 3", "rounds: 5")
    .replace("up: {file: up.csv, format: csv, end: hold}", "up: 20 Mbps")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tampered")
    (folder / "tiny.yaml").write_text(LEARNS)
    scenario = simfed.load_scenario(folder / "tiny.yaml", {"server.device": None})
    return simfed.run(
        scenario, folder / "run", source=folder / "tiny.yaml", workers=1, progress=False
    )


def reseal(run, **changes):
    """Write the digests that whoever changed the tables would write."""
    manifest = json.loads((run / "manifest.json").read_text())
    manifest |= {"fingerprint": fingerprint(lambda name: [open_run(run).table(name)]), **changes}
    manifest["digest"] = manifest_digest(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))


def tamper(run, path, table, column, change):
    shutil.copytree(run.path, path)
    rows = run.table(table)
    at = rows.column_names.index(column)
    field = rows.schema.field(column)
    changed = rows.set_column(
        at, field, pa.array(change(rows.column(column).to_pylist()), field.type)
    )
    pq.write_table(changed, path / f"{table}.parquet")
    reseal(path)
    return audit.verify(path)


def at(row, change):
    return lambda values: [change(v) if i == row else v for i, v in enumerate(values)]


def first_known(change):
    def changed(values):
        row = next(i for i, value in enumerate(values) if value is not None)
        return at(row, change)(values)

    return changed


CHANGES = {
    "int64": first_known(lambda v: v + 1),
    "float64": first_known(lambda v: v * 1.01 + 1e-3),
    "str": first_known(lambda v: v + "x"),
    "bool": first_known(lambda v: not v),
}
TRUE_CHOICES = {
    ("prototypes", "test_accuracy"), ("prototypes", "test_loss"), ("prototypes", "kd_loss"),
    ("participations", "local_loss"),  # what a model came to: the world's, not a consequence
    ("links", "capacity_bytes_per_s"), ("links", "flows"), ("rounds", "saved_without_critical_s"),
}  # fmt: skip
"""Columns of which one value may change within bounds and nobody knows from the other files."""

EVERY_COLUMN = [
    (table, column) for table in TABLES if table != "clients" for column in columns(table)
]


def test_a_whole_run_stands(run):
    assert audit.verify(run.path) == []


@pytest.mark.parametrize(
    ("table", "column"), EVERY_COLUMN, ids=lambda value: str(getattr(value, "name", value))
)
def test_a_changed_value_of_any_column_is_found(run, tmp_path, table, column):
    values = run.table(table).column(column.name).to_pylist()
    if all(value is None for value in values):  # energy of a device whose power is unknown
        change = at(0, lambda v: {"str": "x", "int64": 1, "float64": -1.0}[column.dtype])
    else:
        change = CHANGES[column.dtype]
    broken = tamper(run, tmp_path / "copy", table, column.name, change)
    assert broken or (table, column.name) in TRUE_CHOICES
    assert all("\n" not in sentence for sentence in broken)
