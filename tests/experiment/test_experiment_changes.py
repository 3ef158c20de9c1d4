"""Models that travel down as changes: bytes and times in runs, under every server."""

from __future__ import annotations

import changes_worlds as worlds
import pytest
from changes_worlds import MODES, D

import simfed
from simfed.replay import TrajectoryStore

CHANGE = worlds.TOP_K_BYTES[200]
AWAY = {"failure": {"download": 0.2, "training": 0.2, "upload": 0.2}}


def play(made, **options):
    return simfed.run(made, progress=False, workers=1, **options)


def received_by_hand(table):
    """Bytes of each participation whose download was whole, from versions and outcomes
    alone.
    """
    held, received = {}, {}
    for row in table.sort_values("started_at_s", kind="stable").itertuples():
        missed = row.model_version - held.get(row.client, -99)
        received[row.Index] = 4 * D if missed * CHANGE >= 4 * D else missed * CHANGE
        if row.training_s > 0:
            held[row.client] = row.model_version
    return received


LONG = MODES.keys() - {"synchronous", "buffered"}


@pytest.mark.parametrize("keys", [{}, AWAY], ids=["all there", "losing"])
@pytest.mark.parametrize(
    "mode",
    [pytest.param(m, marks=[pytest.mark.long] if m in LONG else []) for m in MODES],
)
def test_everybody_is_sent_what_they_lack(mode, keys):
    plain = worlds.scenario(mode, count=4, rounds=14)
    groups = [{**g, **keys} for g in plain.model_dump(mode="json")["clients"]]
    run = play(worlds.scenario(mode, count=4, rounds=14, clients=groups))
    table = run.participations
    assert ("failed" in set(table["outcome"])) == bool(keys)
    expected = received_by_hand(table)
    whole = table[table["training_s"] > 0]["downlink_bytes"]
    assert whole.tolist() == pytest.approx([expected[at] for at in whole.index])
    assert len({*(whole / CHANGE).round()}) >= 2
    assert run.manifest["warnings"] == []


def test_index_code_of_changes_may_be_another_and_learning_is_the_same(tmp_path):
    store, sent = TrajectoryStore(tmp_path), []
    for code in ("fixed", "ideal"):
        made = worlds.scenario(downlink={"compression": {"k": 40, "index_code": code}})
        run = play(made, trajectories=store)
        sent.append(run.summary["downlink_bytes"])
    assert sent[0] > sent[1]
    assert "server" not in run.manifest["learning_wall_s"]


def test_unpacking_is_the_clients_work_and_packing_the_servers():
    assume = {"compression": "2 ms", "decompression": "0 s"}
    device = {"profile": "x86-2core-vm", "assume": assume}
    run = play(worlds.scenario(server={"device": device}, rounds=6))
    spans, table = run.spans, run.participations
    spans["s"] = spans["finished_at_s"] - spans["started_at_s"]
    packing = spans[spans["kind"] == "packing"]
    assert {*packing["track"]} == {"server"}
    assert packing["s"].tolist() == pytest.approx([0.002] * 6)
    unpacking = spans[(spans["kind"] == "decompression") & (spans["client"] >= 0)]
    changes = table[table["downlink_bytes"] < 4 * D]["downlink_bytes"] / CHANGE
    assert sorted(unpacking["s"]) == pytest.approx(sorted(0.0005 * changes))
    assert {*unpacking["name"]} == {"top-k"}
    assert table["training_s"].max() == pytest.approx(0.01 + 2 * 0.0005)


def test_unpacking_that_no_profile_knows_takes_no_time_and_a_warning_says_so():
    groups = worlds.scenario().model_dump(mode="json")["clients"]
    assume = {"training": "5 ms", "compression": "1 ms"}
    for group in groups:
        group["device"] = {"profile": "rtx3090-ryzen4800h", "assume": assume}
    run = play(worlds.scenario(clients=groups))
    assert {*run.participations["training_s"]} == {0.01}
    assert run.manifest["warnings"] == [
        "device profile rtx3090-ryzen4800h: decompression of logistic-regression by "
        "top-k is not known, so unpacking what travels down takes no time"
    ]


def test_sizes_that_depend_on_the_data():
    rice = {"compression": {"k": 100, "index_code": "rice"}}
    run = play(worlds.scenario(count=4, downlink=rice))
    least, *_, most = sorted(run.participations["downlink_bytes"])
    assert 400 < least < 525
    assert most == 4 * D
