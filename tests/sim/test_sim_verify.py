"""`verify` finds nothing in a whole run, and whatever is tampered with in a changed
one.
"""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sim_worlds as sim
from paid_worlds import plain, world

from simfed.net import Star
from simfed.record import fingerprint, open_run
from simfed.verify import find_broken


def verify(path):
    """The broken invariants of a run's files and clock."""
    return find_broken(open_run(path))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "run"
    return sim.write(path, world, plain())


def tamper(run, path, table, **changes):
    """A copy of the run with columns changed.

    Its manifest has the fingerprint of the changed tables.
    """
    shutil.copytree(run.path, path)
    columns = run.table(table)
    for name, change in changes.items():
        field, values = columns.schema.field(name), columns.column(name).to_pylist()
        changed = pa.array(change(values), field.type)
        columns = columns.set_column(
            columns.schema.get_field_index(name), field, changed
        )
    pq.write_table(columns, path / f"{table}.parquet")
    changed = open_run(path)
    seal = fingerprint(lambda name: [changed.table(name)])
    rewrite(path / "manifest.json", fingerprint=seal)
    broken = verify(path)
    # numbers are said as people write them
    assert not any("np." in sentence for sentence in broken)
    return broken


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def swap(values):
    return [values[1], values[0], *values[2:]]


def test_nothing_is_broken_in_a_whole_run(run):
    assert verify(run.path) == []


def test_a_changed_fingerprint_or_summary_is_found(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    rewrite(copy / "manifest.json", fingerprint="0" * 32)
    sentence = f"that of the tables is {run.fingerprint}"
    assert any(sentence in text for text in verify(copy))
    rewrite(copy / "manifest.json", fingerprint=run.fingerprint)
    rewrite(copy / "summary.json", simulated_s=run.summary["simulated_s"] * 2)
    assert verify(copy) == ["summary.json: simulated_s is not what the tables say"]


@pytest.mark.parametrize(
    ("table", "column", "row", "change", "sentence"),
    [
        ("rounds", "round", None, swap, "the rounds are not 1 to 7"),
        (
            "rounds",
            "duration_s",
            3,
            lambda v: v * (1 + 1e-8),
            "longer or shorter than their duration, first: round 4",
        ),
        (
            "rounds",
            "started_at_s",
            3,
            lambda v: v + 1e-6,
            "do not start when the one before ends, first: round 4",
        ),
        ("rounds", "participants", 0, 5, "miscount their participants, first: round 1"),
        ("rounds", "uplink_bytes", 0, lambda v: v + 1, "do not add up: uplink_bytes"),
        ("rounds", "server_s", 0, -0.5, "server_s: negative values"),
        (
            "rounds",
            "critical_client",
            2,
            17,
            "a critical client that took no part, first: round 3",
        ),
        (
            "rounds",
            "critical_client",
            2,
            lambda v: (v + 1) % 4,
            "are critical and yet have slack, first: round 3",
        ),
        (
            "rounds",
            "rolled_back",
            2,
            True,
            "free although the round before was rolled back, first: round 4",
        ),
        (
            "participations",
            "training_s",
            5,
            lambda v: v * 1.001,
            "phases that do not sum to their span, first: round 2, client 1",
        ),
        ("participations", "slack_s", 5, lambda v: v + 1, "slack"),
        (
            "participations",
            "client",
            None,
            swap,
            "are not in the order of merge and client, first: round 1, client 0",
        ),
        ("policies", "round", 0, 7, "not in the order of round and client, first"),
        (
            "participations",
            "round",
            0,
            99,
            "a round that rounds.parquet does not have",
        ),
        ("participations", "outcome", 0, "lost", "'lost' is none of aggregated"),
        (
            "participations",
            "choice",
            0,
            "forced",
            "are forced without a rollback before, first: round 1, client 0",
        ),
        (
            "participations",
            "model_version",
            9,
            0,
            "number of accepted merges, first: round 3, client 1",
        ),
        (
            "participations",
            "uplink_s",
            0,
            float("nan"),
            "uplink_s: values that are not finite",
        ),
        ("spans", "finished_at_s", 1, lambda v: v + 1e-3, "overlaps on one track"),
        ("spans", "kind", 1, "upload", "do not sum to"),
        ("spans", "client", 1, 9, "in which they took no part"),
        ("spans", "started_at_s", 1, lambda v: v + 1e9, "end before they start"),
        ("links", "bytes", 0, lambda v: v * 3, "more bytes than the capacity allows"),
        ("links", "bytes", 3, lambda v: v * 0.5, "the transfers over it are"),
        ("links", "flows", 0, 0, "nobody used the link"),
    ],
)
def test_a_changed_value_is_found(run, tmp_path, table, column, row, change, sentence):
    """In one row, or in all of a column."""

    def at_row(values):
        values[row] = change(values[row]) if callable(change) else change
        return values

    changes = {column: change if row is None else at_row}
    broken = tamper(run, tmp_path / "copy", table, **changes)
    assert any(sentence in text for text in broken), broken
    assert not any("fingerprint" in text for text in broken)


def test_instants_late_in_a_long_run_round_but_do_not_break_anything(tmp_path):
    # rounds of 1 ms after 10^6 s: instants are good to 10^-10 s, durations to 10^-19 s
    class Late(sim.Fixed):
        """Begins with a unit that takes two weeks."""

        def duration_s(self, nominal_s, start_at_s, **key):
            return nominal_s if start_at_s else 1.23456789e6

    def late(recorder):
        devices = [Late(1e-3 * (c + 1.1), 1e-7) for c in range(4)]
        star = Star(4, up_bytes_per_s=7.1e6)
        return sim.build(scenario, devices=devices, recorder=recorder, star=star)

    scenario = sim.scenario(rounds=30)
    run = sim.write(tmp_path / "run", late, scenario)
    assert verify(run.path) == []
    assert run.participations.started_at_s[4] > 1.2e6
