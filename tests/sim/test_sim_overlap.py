"""Compression and upload in slices: closed form, what is learned, what is refused."""

import json

import numpy as np
import pytest
import sim_worlds as sim
import worlds

from simfed.compress import TopK, codec_from_spec, sliced
from simfed.compress.slices import Sliced
from simfed.net import Star
from simfed.policy import Choice
from simfed.verify import verify

TopKWhole = codec_from_spec("top-k")
TOP_K = {
    "policy": {"kind": "uniform", "strategy": "top-k"},
    "compression": {"index_code": "fixed"},
}


def world(chunks, compression_s, rate, latency_s=0.0):
    """An upload of 240 entries and their indices."""
    overlap = {} if chunks == 1 else {"overlap": {"chunks": chunks}}
    plain = sim.scenario(rounds=1, clients=[sim.group(1, k=240, **overlap)], **TOP_K)
    star = Star(1, up_bytes_per_s=rate, latency_s=latency_s)
    return sim.build(plain, star=star, devices=[sim.Fixed(1.0, compression_s)]).run()


SIZE_BYTES = TopKWhole.size_bytes(sim.D, 240, "fixed")


@pytest.mark.parametrize("latency_s", [0.0, 0.3])
@pytest.mark.parametrize("up_s", [0.001, 1.0, 7.0])
@pytest.mark.parametrize("comp_s", [0.0, 0.2, 3.0])
@pytest.mark.parametrize("c", [1, 2, 3, 5, 8, 40])
def test_an_overlapped_upload_takes_its_closed_form(c, comp_s, up_s, latency_s):
    played = world(c, comp_s, SIZE_BYTES / up_s, latency_s)
    expected_s = latency_s + comp_s / c + (c - 1) / c * max(comp_s, up_s) + up_s / c
    names = "compression_s", "uplink_s", "waiting_s", "uplink_bytes"
    [(compressed_s, *sent_s, size_bytes)] = played.rows("participations", *names)
    # what is exposed of the upload is what comes after the last slice is compressed,
    # and gaps
    told = [compressed_s, compressed_s + sum(sent_s), size_bytes]
    assert told == pytest.approx([comp_s, expected_s, SIZE_BYTES], rel=1e-12)
    duration_s = played.column("rounds", "duration_s")
    assert duration_s == pytest.approx([1.0 + expected_s], rel=1e-12)


def test_the_critical_path_of_slices_is_compression_or_upload():
    for compression_s, rate, phase in (
        (8.0, 1000.0, "compression"),
        (2.0, 10.0, "upload"),
    ):
        played = world(4, compression_s, rate)
        assert played.column("rounds", "critical_phase") == [phase]


def test_a_device_that_works_and_sends_at_once_idles_less_than_not_at_all():
    """Joules go by the spans of each: 4 slices of 2 s are compressed, and sent in 1 s
    each; three of these seconds are worked in. The other client, whose link is its own
    as well, waits 3 s.
    """
    group = sim.group(2, k=240, overlap={"chunks": 4})
    plain = sim.scenario(rounds=1, clients=[group], **TOP_K)
    star = Star(2, up_bytes_per_s=SIZE_BYTES / 4.0)
    devices = [sim.Fixed(1.0, 8.0), sim.Fixed(2.0, 4.0)]
    played = sim.build(plain, star=star, devices=devices).run()
    names = "downlink", "training", "compression", "uplink", "idle"
    busy, waits = ([device.told[name] for name in names] for device in devices)
    assert busy == pytest.approx([0.0, 1.0, 8.0, 4.0, -3.0])
    assert waits == pytest.approx([0.0, 2.0, 4.0, 4.0, -3.0 + 3.0])
    assert played.column("rounds", "duration_s") == pytest.approx([10.0])


def test_slices_of_tcp_share_one_handshake():
    """Beside the whole upload on one connection: no more handshakes or slow starts."""
    keys = {"network.model": "tcp", "rounds": 1, "clients[0].link.latency": "50 ms"}
    took_s = []
    for chunks in (1, 2, 8):
        run = play(chunks, keys, time_only=True)
        compression_s = run.participations["compression_s"][0]
        took_s.append(run.rounds["duration_s"][0] - compression_s)
    assert took_s[1] == pytest.approx(took_s[0], rel=0.02)
    assert took_s[2] == pytest.approx(took_s[0], rel=0.05)


# ---- what is learned -----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_slices_take_no_more_than_they_have(count):
    for length in range(count, 24):
        for k in range(1, length + 1):
            update = np.arange(length, dtype=np.float32)
            assert len(Sliced(TopK(), count).select(update, k).indices) == k


def test_each_slice_selects_its_share():
    rng = np.random.default_rng(0)
    update = rng.normal(size=103).astype(np.float32)
    chosen = Sliced(TopK(), 4).select(update, 30)
    assert len(chosen.indices) == 30
    for number, share in enumerate((7, 8, 7, 8)):
        begin, end = 103 * number // 4, 103 * (number + 1) // 4
        mine = chosen.indices[(chosen.indices >= begin) & (chosen.indices < end)]
        assert len(mine) == share
        alone = TopK().select(update[begin:end], len(mine)).indices + begin
        assert np.array_equal(mine, alone)


def test_a_sliced_codec_is_its_label_and_its_bytes_those_of_the_whole():
    codec = sliced(Choice("top-k"), 8).codec
    assert codec_from_spec(codec.label).label == codec.label == "slices(8=top-k)"
    for code in ("fixed", "ideal"):
        assert codec.size_bytes(1000, 80, code) == TopKWhole.size_bytes(1000, 80, code)
    update = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    payload, _ = codec.encode(update, k=80)
    data = payload.encoded("fixed")
    assert len(data) == codec.size_bytes(1000, 80, "fixed")
    again = codec.from_bytes(data, 1000, 80, "fixed")
    assert np.array_equal(again.dense(), payload.dense())


def test_blind_slices_keep_states_of_their_own():
    codec = sliced(Choice("periodic-k"), 3).codec
    update, state, seen = np.ones(30, np.float32), None, []
    for turn in range(5):
        payload, state = codec.encode(update, state, np.random.default_rng(turn), 6)
        seen += payload.indices.tolist()
        state = json.loads(json.dumps(state))
    assert sorted(seen) == list(range(30))


def play(chunks, changes, **options):
    """Run four clients with this overlap, None: without."""
    keys = {
        "clients[0].count": 4,
        "clients[0].device": "x86-2core-vm",
        "clients[0].link.up": "1 Mbps",
        "clients[0].overlap": chunks and {"chunks": chunks},
        "prototypes.a.model": "lenet5-half",
        "compression.k": "20%",
    }
    return worlds.play(worlds.world("tiny", keys | changes), **options)


def test_whose_work_failed_has_its_processor_again_in_the_next_round(tmp_path):
    changes = {"rounds": 3, "clients[0].failure.training": 1}
    run = play(4, changes, out=tmp_path / "run", time_only=True)
    assert verify(run.path) == []
    assert run.participations["outcome"].tolist() == ["failed"] * 12
    assert np.ptp(run.rounds["duration_s"]) < 1e-12


def test_learning_follows_and_one_chunk_is_none():
    short = {"training.local_steps": 1, "evaluation.every": 2}
    plain, one, many = (play(chunks, short) for chunks in (None, 1, 8))
    assert one.fingerprint == plain.fingerprint
    loss = [run.prototypes["test_loss"].tolist() for run in (plain, many)]
    assert loss[0] != loss[1]
    sizes = [run.participations["uplink_bytes"].tolist() for run in (plain, many)]
    assert sizes[1] == pytest.approx(sizes[0], rel=1e-12)
    assert set(many.participations["arm"]) == {"top-k"}
