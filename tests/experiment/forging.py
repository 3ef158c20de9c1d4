"""A forger who knows the format: changes something in a finished run and makes everything that
is computed from the files agree with it again: the fingerprint, the summary, every digest."""

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file, save_file

from simfed.record import fingerprint, open_run
from simfed.record.digest import (
    digest_file,
    digest_manifest,
    digest_scenario,
    digest_text,
    digest_value,
    sha256,
)
from simfed.record.journal import COMPRESSED
from simfed.record.schema import TABLES, columns
from simfed.record.summary import summarise


class Draft:
    """A finished run on its way to be another one."""

    def __init__(self, path):
        self.path = path
        self.manifest = json.loads((path / "manifest.json").read_text())
        self.tables = {
            name: pq.read_table(path / f"{name}.parquet")
            for name in TABLES
            if (path / f"{name}.parquet").exists()
        }
        self._as_read = dict(self.tables)
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
        scenario = (self.path / "scenario.yaml").read_text()
        self.manifest["scenario_sha256"] = digest_scenario(scenario)
        self.manifest["files"] = {
            name: sha256((self.path / name).read_bytes()) for name in self.manifest["files"]
        }
        run = open_run(self.path)
        self.manifest["fingerprint"] = fingerprint(lambda name: [run.table(name)])
        self.manifest["journal"] = digest_text(self.journal)
        write_journal(self.path, self.journal)
        self.manifest["digest"] = digest_manifest(self.manifest)
        (self.path / "manifest.json").write_text(json.dumps(self.manifest))
        try:
            summary = summarise(run.table, clients_of_prototype(scenario), run.measure)
        except LookupError:  # of a prototype that there is not
            summary = run.summary
        (self.path / "summary.json").write_text(json.dumps(summary | self.said_otherwise))


def read_journal(path):
    """The text of a finished run's journal."""
    with pa.input_stream(str(path / COMPRESSED), compression="zstd") as file:
        return file.read().decode()


def write_journal(path, text):
    with pa.CompressedOutputStream(str(path / COMPRESSED), "zstd") as file:
        file.write(text.encode())


@functools.cache
def clients_of_prototype(scenario):
    """How many clients learn each prototype."""
    clients = {}
    for group in yaml.safe_load(scenario)["clients"]:
        clients[group["prototype"]] = clients.get(group["prototype"], 0) + group["count"]
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


def one(change):
    """Changes the first value that is known; where none is, the first one."""

    def changed(values):
        row = next((i for i, value in enumerate(values) if value is not None), 0)
        return [change(v) if i == row else v for i, v in enumerate(values)]

    return changed


def of_value(table, column):
    """Another value in one row of a column."""

    def change(draft):
        draft.set(table, column.name, one(CHANGES[column.dtype])(draft.values(table, column.name)))

    return Forgery(f"{table}.{column.name}", change)


CHANGES = {
    "int64": lambda v: 1 if v is None else v + 1,
    "float64": lambda v: 1.0 if v is None else v * 1.01 + 1e-3,
    "str": lambda v: "x" if v is None else v + "x",
    "bool": lambda v: not v,
}

PLAYED = [table for table in TABLES if table not in ("merges", "processor")]
"""Tables of the runs that are forged here, which have no edge servers and no real clients."""

VALUES = [of_value(table, column) for table in PLAYED for column in columns(table)]
"""A forgery of each column of each table."""

INSTANTS = ("started_at_s", "finished_at_s", "from_s", "to_s")


def of_rows(table):
    """Forgeries of a table as a whole."""

    def rows(how):
        def change(draft):
            draft.tables[table] = how(draft.tables[table])

        return change

    def typed(rows):
        at = next(i for i, field in enumerate(rows.schema) if field.type == pa.int64())
        narrow = rows.column(at).cast(pa.int32())
        return rows.set_column(at, rows.schema.field(at).with_type(pa.int32()), narrow)

    def swapped(rows):
        middle = len(rows) // 2
        order = [*range(middle - 1), middle, middle - 1, *range(middle + 1, len(rows))]
        return rows.take(order)

    return [
        Forgery(f"{table}: {name}", rows(how))
        for name, how in {
            "rows reversed": lambda rows: rows.take(list(reversed(range(len(rows))))),
            "two rows swapped": swapped,
            "the last row left out": lambda rows: rows.slice(0, len(rows) - 1),
            "the last row twice": lambda rows: rows.take([*range(len(rows)), len(rows) - 1]),
            "an unknown column": lambda rows: rows.append_column(
                "trust", pa.array([1.0] * len(rows))
            ),
            "columns in another order": lambda rows: rows.select(rows.column_names[::-1]),
            "a column of another type": typed,
        }.items()
    ]


ROWS = [*of_rows("prototypes"), *of_rows("links")]
MORE_ROWS = [
    case for table in PLAYED if table not in ("prototypes", "links") for case in of_rows(table)
]


@forgery("all instants a second later")
def later(draft):
    for table, rows in draft.tables.items():
        for column in set(INSTANTS) & set(rows.column_names):
            draft.set(table, column, [value + 1.0 for value in draft.values(table, column)])


@forgery("another critical phase in every round")
def another_phase(draft):
    phases = draft.values("rounds", "critical_phase")
    draft.set(
        "rounds", "critical_phase", ["download" if p != "download" else "upload" for p in phases]
    )


@forgery("a phase that is none in every round")
def no_phase(draft):
    draft.set("rounds", "critical_phase", ["sleep"] * len(draft.tables["rounds"]))


@forgery("all durations twice as long")
def slower(draft):
    for table, rows in draft.tables.items():
        for column in rows.column_names:
            if column.endswith("_s"):
                draft.set(
                    table,
                    column,
                    [None if v is None else 2 * v for v in draft.values(table, column)],
                )
    draft.set("links", "bytes", draft.values("links", "bytes"))


@forgery("a prototype that there is not")
def no_prototype(draft):
    names = draft.values("participations", "prototype")
    draft.set("participations", "prototype", ["ghost"] * len(names))


@forgery("the same arm in every participation")
def one_arm(draft):
    arms = draft.values("participations", "arm")
    draft.set("participations", "arm", [arms[-1]] * len(arms))


@forgery("values of an arm told twice, and of another not at all")
def arm_twice(draft):
    arms = draft.values("policies", "arm")
    draft.set("policies", "arm", [arms[1], *arms[1:]])


@forgery("values of a client that took no part")
def no_part(draft):
    draft.set("policies", "client", [9, *draft.values("policies", "client")[1:]])


@forgery("a client that there is not")
def no_client(draft):
    for table in ("participations", "policies", "spans", "clients"):
        if table in draft.tables:
            draft.set(table, "client", [99 if v == 0 else v for v in draft.values(table, "client")])
    draft.set(
        "spans",
        "track",
        ["client 99" if v == "client 0" else v for v in draft.values("spans", "track")],
    )


@forgery("two clients change places")
def changed_places(draft):
    swap = {0: 1, 1: 0}
    for table in ("participations", "policies", "spans", "clients"):
        if table in draft.tables:
            clients = draft.values(table, "client")
            draft.set(table, "client", [swap.get(v, v) for v in clients])


@forgery("an empty table of spans")
def no_spans(draft):
    draft.tables["spans"] = draft.tables["spans"].slice(0, 0)


@forgery("an empty table of links")
def no_links(draft):
    draft.tables["links"] = draft.tables["links"].slice(0, 0)
    kinds = pa.array([kind != "busy" for kind in draft.values("spans", "kind")])
    draft.tables["spans"] = draft.tables["spans"].filter(kinds)


WHOLE = [
    later, another_phase, no_phase, slower, no_prototype, one_arm, arm_twice, no_part, no_client,
    changed_places, no_spans, no_links,
]  # fmt: skip


def of_manifest(what, **said):
    """Other facts in the manifest; a fact that is None is left out."""

    def change(draft):
        for key, value in said.items():
            if value is None:
                del draft.manifest[key]
            else:
                assert draft.manifest.get(key) != value
                draft.manifest[key] = value

    return Forgery(f"manifest: {what}", change)


@forgery("manifest: an older version, and a key that it does not have")
def older_version(draft):
    draft.manifest["versions"]["simfed"] = "0.1.0"
    draft.manifest["trust"] = 1.0


@forgery("manifest: an older version, and a fact left out")
def older_facts(draft):
    draft.manifest["versions"]["simfed"] = "0.1.0"
    del draft.manifest["classes"]


@forgery("manifest: mode flower, with an app")
def with_an_app(draft):
    for key in ("models", "classes", "data", "profiles", "learning_wall_s", "owned", "wall_s"):
        draft.manifest.pop(key, None)
    draft.manifest |= {
        "mode": "flower", "computing": "free", "app": {}, "repeatable": True, "workers": 0,
        "wall_s": {"total": 1.0},
    }  # fmt: skip


def of_model(key, value):
    """Another size, or name, of the first model."""

    def change(draft):
        facts = next(iter(draft.manifest["models"].values()))
        assert facts[key] != value
        facts[key] = value

    return Forgery(f"manifest: models: {key}", change)


@forgery("manifest: a model more")
def model_more(draft):
    draft.manifest["models"]["ghost"] = {"model": "lenet5", "parameters": 1, "buffers": 0}


@forgery("manifest: data of another digest")
def other_data(draft):
    draft.manifest["data"] = dict.fromkeys(draft.manifest["data"], "0" * 32)


@forgery("manifest: data of another name")
def other_data_set(draft):
    draft.manifest["data"] = {"cifar10": next(iter(draft.manifest["data"].values()))}


@forgery("manifest: a file left out")
def file_left_out(draft):
    draft.manifest["files"].pop(next(iter(draft.manifest["files"])))


@forgery("manifest: host seconds below zero")
def below_zero(draft):
    draft.manifest["wall_s"]["total"] = -1.0


@forgery("manifest: host seconds that are no numbers")
def no_seconds(draft):
    draft.manifest["wall_s"]["learning"] = "long"


@forgery("manifest: parts of the host's seconds that are longer than the whole")
def longer_parts(draft):
    draft.manifest["wall_s"]["simulation"] = draft.manifest["wall_s"]["total"] + 1.0


@forgery("manifest: a version left out")
def no_version(draft):
    del draft.manifest["versions"]["simfed"]


@forgery("manifest: warnings that are no sentences")
def odd_warnings(draft):
    draft.manifest["warnings"] = [1]


@forgery("scenario: another name everywhere")
def other_name(draft):
    draft.manifest["name"] = draft.manifest["name"] + "2"
    name = yaml.safe_load(draft.read("scenario.yaml"))["name"]
    draft.replace("scenario.yaml", f"name: {name}", f"name: {name}2")


def of_scenario(name, old, new):
    """Another text in the scenario."""
    return Forgery(f"scenario: {name}", lambda draft: draft.replace("scenario.yaml", old, new))


@forgery("scenario: a comment")
def comment(draft):
    draft.text["scenario.yaml"] = "# checked by the committee\n" + draft.read("scenario.yaml")


def of_file(name, ending, change):
    """Another text in the file kept beside the scenario whose name ends so."""

    def changed(draft):
        file = next(file for file in draft.manifest["files"] if file.endswith(ending))
        text = draft.read(file)
        draft.text[file] = change(text)
        assert draft.text[file] != text

    return Forgery(name, changed)


def described(text):
    """A profile with another description."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("description:"))
    lines[at] = lines[at].partition("description:")[0] + 'description: "the fastest of all"'
    while at + 1 < len(lines) and lines[at + 1].startswith("    "):
        del lines[at + 1]
    return "\n".join(lines) + "\n"


@forgery("summary: a number of its own")
def summary_more(draft):
    draft.said_otherwise["trust"] = 1.0


@forgery("summary: another number of rounds")
def summary_other(draft):
    draft.said_otherwise["rounds"] = 99


def of_checkpoint(name):
    """Other weights in a kept checkpoint, sealed again."""

    def change(draft):
        folder = draft.path / "checkpoint"
        state = json.loads((folder / name).read_text())
        arrays = folder / state["arrays"]["file"]
        weights = load_file(arrays)
        largest = max(
            (key for key in weights if weights[key].dtype.kind == "f"),
            key=lambda key: weights[key].size,
        )
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
    answer[6] = {name: [before, after + 0.25] for name, (before, after) in answer[6].items()}
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
    of_manifest("mode deployed", mode="deployed"),
    of_manifest("mode deployed, with clocks", mode="deployed", clocks={}),
    of_manifest("mode flower", mode="flower"),
    of_manifest("mode time-only", mode="time-only"),
    of_manifest("a mode that there is not", mode="dreamt"),
    of_manifest("another name", name="other"),
    of_manifest("another seed", seed=99),
    of_manifest("another network", network="packets"),
    of_manifest("another number of classes", classes=11),
    of_manifest("no classes", classes=None),
    of_manifest("a device that is none", device="abacus"),
    of_manifest("no workers", workers=-1),
    of_manifest("an id that is none", id="me"),
    of_manifest("an unknown key", trust=1.0),
    of_manifest("no models", models=None),
    of_manifest("models that are no mapping", models=[1]),
    of_manifest("no versions", versions=None),
    of_manifest("no seconds", wall_s=None),
    of_manifest("no warnings", warnings=None),
    of_manifest("a reason to have stopped", reason="bored"),
    of_model("parameters", 10**9),
    of_model("parameters", 99_999),
    of_model("buffers", 7),
    of_model("model", "resnet18"),
    model_more, other_data, other_data_set, file_left_out, below_zero, no_seconds, longer_parts,
    no_version, odd_warnings, older_version, older_facts, with_an_app,
]  # fmt: skip


@forgery("prototypes: a loss that the method has not")
def strange_loss(draft):
    rows = draft.tables["prototypes"]
    draft.tables["prototypes"] = rows.append_column("distance", pa.array([0.5] * len(rows)))


@forgery("prototypes: kd_loss where the method has none")
def kd_loss(draft):
    draft.set("prototypes", "kd_loss", [0.5] * len(draft.tables["prototypes"]))


@forgery("prototypes: one image more is told rightly")
def one_more(draft):
    values = draft.values("prototypes", "test_accuracy")
    draft.set("prototypes", "test_accuracy", one(lambda v: v + 0.005)(values))


def of_loss(name, table, column, value):
    """A cross-entropy that is none."""
    what = f"{table}.{column}: {name}"
    return Forgery(
        what, lambda d: d.set(table, column, one(lambda _: value)(d.values(table, column)))
    )


LOSSES = [
    of_loss(name, table, column, value)
    for table, column in (("prototypes", "test_loss"), ("clients", "loss"), ("clients", "own_loss"))
    for name, value in (("below zero", -0.5), ("without end", float("inf")))
]
LOSSES += [of_loss("below zero", "prototypes", "kd_loss", -0.5)]

SCENARIO = [
    comment, other_name,
    of_scenario("another learning rate", "learning_rate: 0.02", "learning_rate: 0.03"),
    of_scenario("another batch size", "batch_size: 4", "batch_size: 8"),
    of_scenario("another seed", "seed: 0", "seed: 2"),
    of_scenario("another K", "k: 50", "k: 51"),
    of_scenario("a round more", "rounds: 5", "rounds: 6"),
    of_scenario("evaluated at other rounds", "every: 3", "every: 2"),
    of_scenario("a faster uplink", "up: 2500000", "up: 5000000"),
]  # fmt: skip

FORGERIES = [
    both_accuracies, *JOURNAL, *VALUES, *LOSSES, *ROWS, *WHOLE, *MANIFEST, *SCENARIO,
    summary_more, summary_other, strange_loss, one_more,
    of_checkpoint("state.json"), of_checkpoint("earlier.json"),
]  # fmt: skip
"""Of a run that learned with ASCEND."""

OF_SHIPPED = [
    kd_loss,
    of_file("profile: another description", ".yaml", described),
    of_file("profile: a comment", ".yaml", lambda text: "# the best\n" + text),
    of_file("profile: a faster step", ".yaml", lambda text: text.replace("0.0025 s", "0.002 s")),
]
"""Of a run of a method without distillation on a profile that simfed ships."""
