"""Models that travel down as changes: bytes and times in runs, under every server."""

from __future__ import annotations

import changes_worlds as worlds
import pytest
from changes_worlds import MODES, D

from simfed.experiment import run
from simfed.replay import TrajectoryStore

CHANGE = worlds.TOP_K_BYTES[200]
TIMES = [
    "round",
    "client",
    "model_version",
    "started_at_s",
    "downlink_s",
    "training_s",
    "uplink_s",
    "downlink_bytes",
    "uplink_bytes",
    "outcome",
]
AWAY = {"failure": {"download": 0.2, "training": 0.2, "upload": 0.2}}


def played(made, out=None, **options):
    return run(made, out, progress=False, workers=1, **options)


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


def several(names, short):
    """All of them, of which some are for the long run."""
    marked = pytest.mark.long
    return [n if n in short else pytest.param(n, marks=marked) for n in names]


@pytest.mark.parametrize("keys", [{}, AWAY], ids=["all there", "losing"])
@pytest.mark.parametrize("mode", several(MODES, ["synchronous", "buffered"]))
def test_everybody_is_sent_what_they_lack(mode, keys):
    plain = worlds.scenario(mode, count=4, rounds=14)
    groups = [{**g, **keys} for g in plain.model_dump(mode="json")["clients"]]
    made = worlds.scenario(mode, count=4, rounds=14, clients=groups)
    result = played(made)
    table = result.participations
    assert ("failed" in set(table["outcome"])) == bool(keys)
    expected = received_by_hand(table)
    whole = table[table["training_s"] > 0]
    assert [row.downlink_bytes for row in whole.itertuples()] == pytest.approx(
        [expected[at] for at in whole.index]
    )
    assert len({round(b / CHANGE) for b in whole["downlink_bytes"]}) >= 2
    assert result.manifest["warnings"] == []


def test_the_index_code_of_changes_may_be_another_and_learning_is_the_same(tmp_path):
    store = TrajectoryStore(tmp_path)
    bytes_down = {}
    for code in ("fixed", "ideal"):
        made = worlds.scenario(downlink={"compression": {"k": 40, "index_code": code}})
        result = played(made, trajectories=store)
        bytes_down[code] = result.summary["downlink_bytes"]
    assert bytes_down["fixed"] > bytes_down["ideal"]
    assert "server" not in result.manifest["learning_wall_s"]


def test_unpacking_is_the_clients_work_and_packing_the_servers():
    device = {
        "profile": "x86-2core-vm",
        "assume": {"compression": "2 ms", "decompression": "0 s"},
    }
    made = worlds.scenario(server={"device": device}, rounds=6)
    result = played(made)
    spans, table = result.spans, result.participations
    packing = spans[spans["kind"] == "packing"]
    assert (packing["track"] == "server").all()
    assert len(packing) == 6
    assert (
        packing["finished_at_s"] - packing["started_at_s"]
    ).tolist() == pytest.approx([0.002] * 6)
    unpacking = spans[(spans["kind"] == "decompression") & (spans["client"] >= 0)]
    seconds = unpacking["finished_at_s"] - unpacking["started_at_s"]
    changes = table[table["downlink_bytes"] < 4 * D]
    assert sorted(seconds) == pytest.approx(
        sorted(0.0005 * changes["downlink_bytes"] / CHANGE)
    )
    assert (unpacking["name"] == "top-k").all()
    assert table["training_s"].max() == pytest.approx(0.01 + 2 * 0.0005)


def test_unpacking_that_no_profile_knows_takes_no_time_and_a_warning_says_so():
    made = worlds.scenario()
    groups = made.model_dump(mode="json")["clients"]
    for group in groups:
        group["device"] = {
            "profile": "rtx3090-ryzen4800h",
            "assume": {"training": "5 ms", "compression": "1 ms"},
        }
    result = played(worlds.scenario(clients=groups))
    assert set(result.participations["training_s"]) == {0.01}
    assert result.manifest["warnings"] == [
        "device profile rtx3090-ryzen4800h: decompression of logistic-regression by "
        "top-k is not known, so unpacking what travels down takes no time"
    ]


def test_sizes_that_depend_on_the_data(tmp_path):
    method = {"kind": "fedprox", "mu": 0.0}
    compression = {"compression": {"k": 100, "index_code": "rice"}}
    made = worlds.scenario(method=method, count=4, downlink=compression)
    result = played(
        made, tmp_path / "run", trajectories=TrajectoryStore(tmp_path / "kept")
    )
    sizes = sorted(set(result.participations["downlink_bytes"]))
    assert 400 < sizes[0] < 525
    assert sizes[-1] == 4 * D
    policy = {"arms_from": str(tmp_path / "run")}
    clock = worlds.scenario(method=method, count=4, downlink=compression, policy=policy)
    times = played(clock, time_only=True).participations
    assert result.participations[TIMES].equals(times[TIMES])
