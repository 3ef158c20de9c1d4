"""`verify` finds nothing in a whole run, and whatever is tampered with in a changed
one.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sim_worlds as sim
from paid_worlds import plain, world

from simfed import InputError
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
    path.mkdir()
    for file in run.path.iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    columns = run.table(table)
    for name, change in changes.items():
        at = columns.column_names.index(name)
        values = columns.column(name).to_pylist()
        changed = pa.array(change(values), columns.schema.field(name).type)
        columns = columns.set_column(at, columns.schema.field(name), changed)
    pq.write_table(columns, path / f"{table}.parquet")
    changed = open_run(path)
    manifest = {
        **run.manifest,
        "fingerprint": fingerprint(lambda name: [changed.table(name)]),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    broken = verify(path)
    assert not any("np." in sentence for sentence in broken), (
        "numbers are said as people write them"
    )
    return broken


def at(row, change):
    """Change one row's value."""
    return lambda values: [change(v) if i == row else v for i, v in enumerate(values)]


def swap(values):
    return [values[1], values[0], *values[2:]]


def test_nothing_is_broken_in_a_whole_run(run):
    assert verify(run.path) == []


def test_what_is_no_run_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        verify(tmp_path / "nowhere")


def test_a_changed_fingerprint_is_found(run, tmp_path):
    tamper(run, tmp_path / "copy", "rounds")
    manifest = {**run.manifest, "fingerprint": "0" * 32}
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    broken = verify(tmp_path / "copy")
    assert any(
        f"that of the tables is {run.fingerprint}" in sentence for sentence in broken
    )


@pytest.mark.parametrize(
    ("table", "changes", "sentence"),
    [
        ("rounds", {"round": swap}, "the rounds are not 1 to 7"),
        (
            "rounds",
            {"duration_s": at(3, lambda v: v * (1 + 1e-8))},
            "longer or shorter than their duration, first: round 4",
        ),
        (
            "rounds",
            {"started_at_s": at(3, lambda v: v + 1e-6)},
            "do not start when the one before ends, first: round 4",
        ),
        (
            "rounds",
            {"participants": at(0, lambda v: 5)},
            "miscount their participants, first: round 1",
        ),
        (
            "rounds",
            {"uplink_bytes": at(0, lambda v: v + 1)},
            ("do not add up: uplink_bytes"),
        ),
        ("rounds", {"server_s": at(0, lambda v: -0.5)}, "server_s: negative values"),
        (
            "rounds",
            {"critical_client": at(2, lambda v: 17)},
            "a critical client that took no part, first: round 3",
        ),
        (
            "rounds",
            {"critical_client": at(2, lambda v: (v + 1) % 4)},
            "are critical and yet have slack, first: round 3",
        ),
        (
            "rounds",
            {"rolled_back": at(2, lambda v: True)},
            "free although the round before was rolled back, first: round 4",
        ),
        (
            "participations",
            {"training_s": at(5, lambda v: v * 1.001)},
            "phases that do not sum to their span, first: round 2, client 1",
        ),
        ("participations", {"slack_s": at(5, lambda v: v + 1)}, "slack"),
        (
            "participations",
            {"client": swap},
            "are not in the order of merge and client, first: round 1, client 0",
        ),
        (
            "policies",
            {"round": at(0, lambda v: 7)},
            ("not in the order of round and client, first"),
        ),
        (
            "participations",
            {"round": at(0, lambda v: 99)},
            "a round that rounds.parquet does not have",
        ),
        (
            "participations",
            {"outcome": at(0, lambda v: "lost")},
            ("'lost' is none of aggregated"),
        ),
        (
            "participations",
            {"choice": at(0, lambda v: "forced")},
            "are forced without a rollback before, first: round 1, client 0",
        ),
        (
            "participations",
            {"model_version": at(9, lambda v: 0)},
            "number of accepted merges, first: round 3, client 1",
        ),
        (
            "participations",
            {"uplink_s": at(0, lambda v: float("nan"))},
            "uplink_s: values that are not finite",
        ),
        (
            "spans",
            {"finished_at_s": at(1, lambda v: v + 1e-3)},
            ("overlaps on one track"),
        ),
        ("spans", {"kind": at(1, lambda v: "upload")}, "do not sum to"),
        ("spans", {"client": at(1, lambda v: 9)}, "in which they took no part"),
        ("spans", {"started_at_s": at(1, lambda v: v + 1e9)}, "end before they start"),
        (
            "links",
            {"bytes": at(0, lambda v: v * 3)},
            ("more bytes than the capacity allows"),
        ),
        ("links", {"bytes": at(0, lambda v: v * 0.5)}, "the transfers over it are"),
        ("links", {"flows": at(0, lambda v: 0)}, "nobody used the link"),
    ],
)
def test_a_changed_value_is_found(run, tmp_path, table, changes, sentence):
    broken = tamper(run, tmp_path / "copy", table, **changes)
    assert any(sentence in text for text in broken), broken
    assert not any("fingerprint" in text for text in broken)


def test_a_changed_summary_is_found(run, tmp_path):
    tamper(run, tmp_path / "copy", "rounds")
    summary = {**run.summary, "simulated_s": run.summary["simulated_s"] * 2}
    (tmp_path / "copy" / "summary.json").write_text(json.dumps(summary))
    assert verify(tmp_path / "copy") == [
        ("summary.json: simulated_s is not what the tables say")
    ]


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
    parts = run.participations
    assert parts.started_at_s[4] > 1.2e6
    span_s = parts.finished_at_s - parts.started_at_s
    names = [
        "downlink_s",
        "training_s",
        "compression_s",
        "uplink_s",
        "waiting_s",
        "offline_s",
    ]
    phases_s = parts[names].sum(axis=1)
    assert np.abs(span_s - phases_s).max() < 1e-9
    assert parts.uplink_s.nunique() == 1
