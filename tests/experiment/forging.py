"""A forger who knows the format: changes something in a finished run and makes
everything that is computed from the files agree with it again: the fingerprint, the
summary, every digest.
"""

import contextlib
import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file, save_file

from simfed.record import (
    COMPRESSED,
    TABLES,
    columns,
    digest_file,
    digest_manifest,
    digest_scenario,
    digest_value,
    fingerprint,
    open_run,
    summarise,
)
from simfed.record.digest import digest_text, sha256

TINY = """
name: tiny
rounds: 3
dataset: {name: mnist-mini, public: 16}
prototypes: {small: {model: lenet5-half}}
clients:
  - {count: 2, prototype: small, device: rtx3090-ryzen4800h,
     link: {up: {file: up.csv, format: csv, end: hold}}}
training: {batch_size: 4}
compression: {k: 50}
policy: {kind: uniform, strategy: random-k}
safeguard: {rollback: null}
evaluation: {every: 3}
checkpoint: {every: 1}
"""


class Draft:
    """A finished run on its way to be another one."""

    def __init__(self, path):
        self.path = path
        self.manifest = json.loads((path / "manifest.json").read_text())
        self._as_read = {
            file.stem: pq.read_table(file) for file in path.glob("*.parquet")
        }
        self.tables = dict(self._as_read)
        self.said_otherwise = {}
        """What the summary says although the tables do not."""
        self.text = {}
        """File → its new text."""
        self.journal = read_journal(path)

    def read(self, name):
        return self.text.get(name) or (self.path / name).read_text()

    def replace(self, name, old, new):
        text = self.read(name)
        assert old in text, f"{name} has no {old!r}"
        self.text[name] = text.replace(old, new, 1)

    def values(self, table, column):
        return self.tables[table].column(column).to_pylist()

    def set(self, table, column, values):
        rows = self.tables[table]
        at = rows.column_names.index(column)
        field = rows.schema.field(column)
        self.tables[table] = rows.set_column(at, field, pa.array(values, field.type))

    def seal(self):
        """Write it all, with digests that are right."""
        for name, rows in self.tables.items():
            if rows is not self._as_read[name]:
                pq.write_table(rows, self.path / f"{name}.parquet")
        for name, text in self.text.items():
            (self.path / name).write_text(text)
        run, scenario = open_run(self.path), self.read("scenario.yaml")
        self.manifest |= {
            "scenario_sha256": digest_scenario(scenario),
            "files": {
                name: sha256((self.path / name).read_bytes())
                for name in self.manifest["files"]
            },
            "fingerprint": fingerprint(lambda name: [run.table(name)]),
            "journal": digest_text(self.journal),
        }
        write_journal(self.path, self.journal.encode())
        self.manifest["digest"] = digest_manifest(self.manifest)
        (self.path / "manifest.json").write_text(json.dumps(self.manifest))
        summary = run.summary
        with contextlib.suppress(LookupError):  # of a prototype that there is not
            clients = clients_of_prototype(scenario)
            summary = summarise(run.table, clients, run.measure)
        summary |= self.said_otherwise
        (self.path / "summary.json").write_text(json.dumps(summary))


def read_journal(path):
    """The text of a finished run's journal."""
    with pa.input_stream(str(path / COMPRESSED), compression="zstd") as file:
        return file.read().decode()


def write_journal(path, content):
    with pa.CompressedOutputStream(str(path / COMPRESSED), "zstd") as file:
        file.write(content)


@functools.cache
def clients_of_prototype(scenario):
    """How many clients learn each prototype."""
    clients = Counter()
    for group in yaml.safe_load(scenario)["clients"]:
        clients[group["prototype"]] += group["count"]
    return clients


@dataclass(frozen=True)
class Forgery:
    """One thing that is changed."""

    name: str
    change: Callable[[Draft], object]

    def of(self, run: Path, path: Path) -> Path:
        """A forged copy of a run in `path`."""
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(run, path)
        draft = Draft(path)
        self.change(draft)
        draft.seal()
        return path


def forgery(name):
    """A function that changes a draft, as a forgery of this name."""
    return lambda change: Forgery(name, change)


def change_one(change, values):
    """Change the first value that is known; where none is, the first one."""
    row = next((i for i, value in enumerate(values) if value is not None), 0)
    return [change(v) if i == row else v for i, v in enumerate(values)]


def of_value(table, column):
    """Another value in one row of a column."""

    def change(draft):
        values = draft.values(table, column.name)
        draft.set(table, column.name, change_one(CHANGES[column.dtype], values))

    return Forgery(f"{table}.{column.name}", change)


CHANGES = {
    "int64": lambda v: 1 if v is None else v + 1,
    "float64": lambda v: 1.0 if v is None else v * 1.01 + 1e-3,
    "str": lambda v: "x" if v is None else v + "x",
    "bool": lambda v: not v,
}

PLAYED = [table for table in TABLES if table not in ("merges", "processor")]
"""Tables of the runs that are forged here, which have no edge servers and no real
clients."""

VALUES = [of_value(table, column) for table in PLAYED for column in columns(table)]
"""A forgery of each column of each table."""


def swap(rows):
    middle = len(rows) // 2
    order = [*range(middle - 1), middle, middle - 1, *range(middle + 1, len(rows))]
    return rows.take(order)


def narrow(rows):
    at = next(i for i, field in enumerate(rows.schema) if field.type == pa.int64())
    field = rows.schema.field(at).with_type(pa.int32())
    return rows.set_column(at, field, rows.column(at).cast(pa.int32()))


def of_rows(name, how):
    """Other rows of prototypes."""

    def change(draft):
        draft.tables["prototypes"] = how(draft.tables["prototypes"])

    return Forgery(f"prototypes: {name}", change)


ROWS = [
    of_rows("rows reversed", lambda rows: rows[::-1]),
    of_rows("two rows swapped", swap),
    of_rows("the last row left out", lambda rows: rows[:-1]),
    of_rows("the last row twice", lambda rows: pa.concat_tables([rows, rows[-1:]])),
    of_rows("an unknown column", lambda rows: rows.append_column("trust", rows[0])),
    of_rows(
        "columns in another order", lambda rows: rows.select(rows.schema.names[::-1])
    ),
    of_rows("a column of another type", narrow),
]


def of_manifest(what, key, value):
    """Another fact in the manifest; None: it is left out."""

    def change(draft):
        assert draft.manifest.pop(key, None) != value
        if value is not None:
            draft.manifest[key] = value

    return Forgery(f"manifest: {what}", change)


@forgery("manifest: a model more")
def model_more(draft):
    ghost = {"model": "lenet5", "parameters": 1, "buffers": 0}
    draft.manifest["models"]["ghost"] = ghost


@forgery("manifest: data of another digest")
def other_data(draft):
    draft.manifest["data"] = dict.fromkeys(draft.manifest["data"], "0" * 32)


@forgery("manifest: a file left out")
def file_left_out(draft):
    draft.manifest["files"].pop(next(iter(draft.manifest["files"])))


@forgery("scenario: another name everywhere")
def other_name(draft):
    name = draft.manifest["name"]
    draft.manifest["name"] = f"{name}2"
    draft.replace("scenario.yaml", f"name: {name}", f"name: {name}2")


def of_scenario(name, old, new):
    """Another text in the scenario."""
    return Forgery(
        f"scenario: {name}", lambda draft: draft.replace("scenario.yaml", old, new)
    )


@forgery("scenario: a comment")
def comment(draft):
    draft.replace("scenario.yaml", "", "# checked by the committee\n")


@forgery("profile: a faster step")
def faster_step(draft):
    file = next(file for file in draft.manifest["files"] if file.endswith(".yaml"))
    draft.replace(file, "0.0025 s", "0.002 s")


@forgery("summary: a number of its own")
def summary_more(draft):
    draft.said_otherwise["trust"] = 1.0


def of_checkpoint(name):
    """Other weights in a kept checkpoint, sealed again."""

    def change(draft):
        folder = draft.path / "checkpoint"
        state = json.loads((folder / name).read_text())
        arrays = folder / state["arrays"]["file"]
        weights = load_file(arrays)
        floats = [key for key in weights if weights[key].dtype.kind == "f"]
        largest = max(floats, key=lambda key: weights[key].size)
        weights[largest] = weights[largest] * 1.01
        save_file(weights, arrays)
        state["arrays"]["digest"] = digest_file(arrays)
        del state["digest"]
        (folder / name).write_text(json.dumps({**state, "digest": digest_value(state)}))

    return Forgery(f"checkpoint: weights of {name}", change)


@forgery("journal: another accuracy, in the tables too")
def both_accuracies(draft):
    values = draft.values("clients", "own_accuracy")
    draft.set("clients", "own_accuracy", [0.125, *values[1:]])
    assert draft.journal.count(f",{values[0]!r},") >= 1
    draft.journal = draft.journal.replace(f",{values[0]!r},", ",0.125,", 1)


def of_journal(name, change):
    """Other lines in the journal."""

    def changed(draft):
        lines = draft.journal.splitlines(keepends=True)
        change(lines)
        draft.journal = "".join(lines)

    return Forgery(f"journal: {name}", changed)


def another_loss(lines):
    key, label, answer = json.loads(lines[1])
    for losses in answer[6].values():
        losses[1] += 0.25
    lines[1] = json.dumps([key, label, answer]) + "\n"


JOURNAL = [
    of_journal("a line twice", lambda lines: lines.insert(1, lines[0])),
    of_journal("a line less", lambda lines: lines.pop(1)),
    of_journal("no end", lambda lines: lines.pop()),
    of_journal("a line more", lambda lines: lines.append(lines[0])),
    of_journal("no JSON", lambda lines: lines.append("}\n")),
    of_journal("of another shape", lambda lines: lines.insert(0, "[1]\n")),
    of_journal("another loss", another_loss),
]
MANIFEST = [
    of_manifest("mode time-only", "mode", "time-only"),
    of_manifest("another seed", "seed", 99),
    of_manifest("no classes", "classes", None),
    of_manifest("models that are no mapping", "models", [1]),
    model_more, other_data, file_left_out,
]  # fmt: skip


SCENARIO = [
    comment, other_name,
    of_scenario("another learning rate", "learning_rate: 0.02", "learning_rate: 0.03"),
    of_scenario("another K", "k: 50", "k: 51"),
    of_scenario("evaluated at other rounds", "every: 3", "every: 2"),
    of_scenario("a faster uplink", "up: 2500000", "up: 5000000"),
]  # fmt: skip

FORGERIES = [
    both_accuracies, *JOURNAL, *VALUES, *ROWS, *MANIFEST, *SCENARIO, faster_step,
    summary_more, of_checkpoint("state.json"), of_checkpoint("earlier.json"),
]  # fmt: skip
"""Of a run that learned with ASCEND."""
