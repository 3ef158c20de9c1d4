"""A table is declared in one place: it is written, read, verified, documented and
shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest

sys.path.append(str(Path(__file__).parents[1] / "sim"))

import sim_worlds as sim
from paid_worlds import plain, world
from test_sim_verify import tamper, verify

from simfed.record import columns, describe_table, open_run
from simfed.record.schema import Table, declare, forget


class Charge(NamedTuple):
    """A battery after a round."""

    round: Annotated[int, "1, 2, …"]
    client: Annotated[int, "0, 1, …"]
    level_j: Annotated[float | None, "joules left; empty where nobody measured"]


@pytest.fixture
def charges():
    declare(
        "charges",
        Table(
            Charge,
            order=("round", "client"),
            once=("round", "client"),
            title="Batteries",
        ),
    )
    yield
    forget("charges")


@pytest.fixture
def run(charges, tmp_path):
    def recording(recorder):
        recorder.charges.extend(
            Charge(round, client, 100.0 - round - client)
            for round in (1, 2)
            for client in (0, 1)
        )
        return world(recorder)

    return sim.write(tmp_path / "run", recording, plain())


def test_a_table_is_declared_once(charges):
    with pytest.raises(ValueError, match="there is a table 'charges'"):
        declare("charges", Table(Charge))


def test_rows_are_written_and_read(run):
    assert (run.path / "charges.parquet").is_file()
    assert open_run(run.path).charges["level_j"].tolist() == [99.0, 98.0, 98.0, 97.0]
    assert verify(run.path) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"level_j": lambda v: [-1.0, *v[1:]]}, "level_j: negative values"),
        ({"client": lambda v: v[::-1]}, "not in the order of round and client"),
        ({"client": lambda v: [0, 0, *v[2:]]}, "rows of one round and client twice"),
        (
            {"round": lambda v: [*v[:3], 99]},
            "a round that rounds.parquet does not have",
        ),
    ],
)
def test_what_is_forged_in_it_is_found(run, tmp_path, change, sentence):
    broken = tamper(run, tmp_path / "copy", "charges", **change)
    assert any(sentence in text for text in broken), broken


def test_its_fingerprint_counts_its_cells_and_other_runs_keep_theirs(
    run, charges, tmp_path
):
    other = sim.write(tmp_path / "other", world, plain())
    assert not (other.path / "charges.parquet").exists()
    assert other.fingerprint != run.fingerprint
    forget("charges")
    try:
        assert verify(other.path) == []
    finally:
        declare("charges", Table(Charge))


def test_it_is_documented_and_shown(run):
    pytest.importorskip("plotly")
    from simfed.report import build_page

    assert "| `level_j` | float64, may be empty | joules left; empty" in describe_table(
        "charges"
    )
    assert [column.name for column in columns("charges")] == [
        "round",
        "client",
        "level_j",
    ]
    shown = build_page([run], sections=("scenario",))
    assert "Batteries (charges.parquet, 4 rows)" in shown
    assert "joules left; empty where nobody measured" in shown
