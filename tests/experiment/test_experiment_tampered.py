"""Tampering: a value that was changed, with the digests recomputed by whoever changed it, is
found."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from struck import TINY

import simfed
from simfed import again, audit
from simfed.record import fingerprint, open_run
from simfed.record.digest import manifest_digest
from simfed.record.schema import TABLES, columns

LEARNS = (
    TINY.replace(
        "policy: {kind: uniform, strategy: random-k}",
        "policy: {kind: ascend, warmup: 1, reward: {local_loss: {samples: 16}}}",
    )
    .replace("rounds: 3", "rounds: 5")
    .replace("device: rtx3090-ryzen4800h", "device: powered.yaml")
    .replace("evaluation: {every: 3}", "evaluation: {every: 3, clients: true}")
    .replace("up: {file: up.csv, format: csv, end: hold}", "up: 20 Mbps")
)


def powered(folder):
    """A device profile beside the scenario whose power is known."""
    measured = Path(__file__).parents[2] / "calibration" / "rtx3090-ryzen4800h.yaml"
    phases = {"training": 90, "compression": 60, "uplink": 20, "downlink": 19, "idle": 10}
    watts = ", ".join(f"{phase}: {watt} W" for phase, watt in phases.items())
    (folder / "powered.yaml").write_text(measured.read_text() + f"power: {{{watts}}}\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tampered")
    powered(folder)
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
LEARNED = {
    ("prototypes", "test_loss"), ("clients", "accuracy"), ("clients", "loss"),
    ("clients", "own_accuracy"), ("clients", "own_loss"),
}  # fmt: skip
"""What a model came to, of which nothing else follows: learning again finds it."""
PLAYED = {("links", "flows"), ("rounds", "saved_without_critical_s")}
"""What only playing the clock again comes to."""

EVERY_COLUMN = [(table, column) for table in TABLES for column in columns(table)]


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
    assert all("\n" not in sentence for sentence in broken)
    if (table, column.name) in PLAYED:
        broken += again.replay_draws(tmp_path / "copy")
    assert bool(broken) is ((table, column.name) not in LEARNED)


def test_a_run_of_any_mode_stands_and_what_is_played_again_is_the_same(run):
    assert again.replay_draws(run.path) == []
    found = again.recompute(run.path, 2, workers=1)
    assert found == []
    assert found.said.startswith("rounds ")


@pytest.mark.parametrize(("table", "column"), sorted(LEARNED))
def test_what_was_learned_is_learned_again(run, tmp_path, table, column):
    tamper(run, tmp_path / "copy", table, column, CHANGES["float64"])
    found = again.recompute(tmp_path / "copy", 5, workers=1)
    assert any(f"{table}.parquet: {column} of 1 rows" in sentence for sentence in found)


MODES = {
    "deadline": {"aggregation": {"mode": "deadline", "deadline": "0.12 s", "late": "merge"}},
    "buffered": {"aggregation": {"mode": "buffered", "buffer": 2, "concurrency": 3}},
    "first": {"aggregation": {"mode": "first", "over_selection": 0.5},
              "participation.clients_per_round": 2},
    "oort": {"participation": {"clients_per_round": 2, "selection": "oort"}},
    "rollback": {"safeguard.rollback": {"threshold": 0.9}},
    "lost": {"clients[*].availability": {"markov": {"on": "1 s", "off": "1 s"}},
             "clients[*].failure": {"training": 0.2, "upload": 0.2}},
    "faults": {"faults": {
        "stalls": {"between": "0.5 s", "lasts": "0.1 s", "links": "clients"},
        "freezes": {"between": "0.05 s", "lasts": "0.02 s"},
        "messages": {"lost": 0.2, "doubled": 0.1, "timeout": "0.1 s", "tries": 3}}},
    "slow": {"clients[*].link.up": "0.001 bps"},
    "trace": {"clients[*].link.down": {
        "generate": {"kind": "lognormal-ar1", "mean": "20 Mbps", "cv": 0.4, "correlation": 0.5,
                     "step": "10 ms", "length": "10 s"}, "end": "loop"}},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_runs_of_every_kind_stand_and_are_played_again_to_the_same_rows(tmp_path, mode):
    powered(tmp_path)
    (tmp_path / "tiny.yaml").write_text(LEARNS.replace("count: 2", "count: 4"))
    scenario = simfed.load_scenario(tmp_path / "tiny.yaml", MODES[mode])
    made = simfed.run(
        scenario, tmp_path / "run", source=tmp_path / "tiny.yaml", workers=1, progress=False
    )
    assert audit.verify(made.path) == []
    assert again.replay_draws(made.path) == []
    assert again.recompute(made.path, 5, workers=1) == []
