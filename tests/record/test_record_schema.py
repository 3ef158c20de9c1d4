"""The run directory's tables are those of the contract, in its order."""

import pyarrow as pa
import pytest

from simfed.record import schema

CONTRACT = {
    "rounds": "round, started_at_s, finished_at_s, participants, late, dropped, "
    "uplink_bytes, downlink_bytes, rolled_back, critical_client, critical_phase, "
    "critical_link",
    "prototypes": "round, prototype, kd_loss, test_accuracy, test_loss",
    "participations": "round, client, prototype, model_version, arm, k, choice, "
    "outcome, started_at_s, finished_at_s, downlink_s, training_s, compression_s, "
    "uplink_s, waiting_s, offline_s, uplink_bytes, downlink_bytes, energy_j, "
    "local_loss, gain, reward_raw, reward",
    "policies": "round, client, arm, value",
    "links": "link, from_s, to_s, bytes, capacity_bytes_per_s, flows",
    "spans": "track, kind, name, round, client, started_at_s, finished_at_s",
    "clients": "round, client, accuracy, loss, own_accuracy, own_loss",
    "merges": "node, merge, round, started_at_s, finished_at_s, participants, "
    "uplink_bytes, downlink_bytes",
    "processor": "merge, round, client, started_at_s, training_s, compression_s, "
    "other_s",
}


@pytest.mark.parametrize("table", CONTRACT)
def test_columns_are_those_of_the_contract_with_additions_at_the_end_only(table):
    names = [column.name for column in schema.columns(table)]
    promised = CONTRACT[table].split(", ")
    assert names[: len(promised)] == promised
    assert len(set(names)) == len(names)


def test_there_are_no_other_tables():
    assert list(schema.TABLES) == list(CONTRACT)


def test_arrow_types_follow_the_annotations():
    fields = schema.arrow_schema("rounds")
    assert fields.field("round") == pa.field("round", pa.int64(), nullable=False)
    assert fields.field("rolled_back").type == pa.bool_()
    assert fields.field("critical_client") == pa.field(
        "critical_client", pa.int64(), nullable=True
    )


def test_a_run_leaves_out_no_table_but_those_of_clients_merges_and_processors():
    assert sorted(schema.OPTIONAL_TABLES) == ["clients", "merges", "processor"]
