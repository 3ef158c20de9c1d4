"""Compression and upload in slices: the closed form, what is learned, what is refused."""

import itertools
import json

import numpy as np
import pytest
import sim_worlds as sim

import simfed
from simfed.compress import RandomK, TopK, codec_from_spec
from simfed.compress.choice import Choice
from simfed.compress.slices import Sliced, shares_of, sliced
from simfed.ground.errors import InputErrors
from simfed.learn.facts import ModelFacts
from simfed.net import Star
from simfed.verify.invariants import verify

CASES = list(itertools.product((1, 2, 3, 5, 8, 40), (0.0, 0.2, 3.0), (0.001, 1.0, 7.0), (0.0, 0.3)))


def world(chunks, compression_s, rate, latency_s, clients=1, rounds=1, recorder=None, **changes):
    """1,000 bytes of uploads in 125 entries and their indices, over links of their own."""
    group = {"count": clients, "prototype": "small", "device": "rtx3090-ryzen4800h", "k": 240}
    if chunks != 1:
        group["overlap"] = chunks if chunks == "layers" else {"chunks": chunks}
    plain = sim.scenario(rounds=rounds, clients=[group], **changes)
    star = Star(clients, up_bytes_per_s=rate, latency_s=latency_s)
    devices = [sim.Fixed(1.0, compression_s) for _ in range(clients)]
    return sim.build(plain, star=star, devices=devices, recorder=recorder)


@pytest.mark.parametrize(("chunks", "compression_s", "transmission_s", "latency_s"), CASES)
def test_an_overlapped_upload_takes_its_closed_form(
    chunks, compression_s, transmission_s, latency_s
):
    whole = world(1, 0.0, 1.0, 0.0).run()
    size_bytes = whole.rows("participations")[0]["uplink_bytes"]
    played = world(chunks, compression_s, size_bytes / transmission_s, latency_s).run()
    (row,) = played.rows("participations")
    c, comp, up = chunks, compression_s, transmission_s
    expected_s = latency_s + comp / c + (c - 1) / c * max(comp, up) + up / c
    spent_s = row["compression_s"] + row["uplink_s"] + row["waiting_s"]
    assert spent_s == pytest.approx(expected_s, rel=1e-12)
    assert row["uplink_bytes"] == pytest.approx(size_bytes, rel=1e-12)
    # what is exposed of the upload is what comes after the last slice is compressed, and gaps
    assert row["compression_s"] == pytest.approx(comp, rel=1e-12)
    assert played.column("rounds", "duration_s") == [pytest.approx(1.0 + expected_s, rel=1e-12)]


def test_the_critical_path_of_slices_is_compression_or_upload():
    fast = world(4, 8.0, 1000.0, 0.0).run()
    slow = world(4, 2.0, 10.0, 0.0).run()
    assert fast.column("rounds", "critical_phase") == ["compression"]
    assert slow.column("rounds", "critical_phase") == ["upload"]


def test_a_device_that_works_and_sends_at_once_idles_less_than_not_at_all():
    """Joules go by the spans of each: 4 slices of 2 s are compressed, and sent in 1 s each; three
    of these seconds are worked in. The other client, whose link is its own as well, waits 3 s."""
    seen = {}

    class Metered(sim.Fixed):
        def energy_j(self, phases_s):
            seen[self] = dict(phases_s)
            return 0.0

    group = {"prototype": "small", "device": "rtx3090-ryzen4800h", "overlap": {"chunks": 4}}
    plain = sim.scenario(rounds=1, clients=[{**group, "k": 240}, {**group, "k": 240}])
    size_bytes = world(1, 0.0, 1.0, 0.0).run().rows("participations")[0]["uplink_bytes"]
    star = Star(2, up_bytes_per_s=size_bytes / 4.0)
    devices = [Metered(1.0, 8.0), Metered(2.0, 4.0)]
    played = sim.build(plain, star=star, devices=devices).run()
    busy, waits = (seen[device] for device in devices)
    assert busy == pytest.approx(
        {"downlink": 0.0, "training": 1.0, "compression": 8.0, "uplink": 4.0, "idle": -3.0}
    )
    assert waits == pytest.approx(
        {"downlink": 0.0, "training": 2.0, "compression": 4.0, "uplink": 4.0, "idle": -3.0 + 3.0}
    )
    assert played.column("rounds", "duration_s") == [pytest.approx(10.0)]
    assert sum(busy.values()) == pytest.approx(10.0)


LAYERS = [(78, 117_600), (608, 120_000), (12_060, 24_000), (2_562, 5_040), (430, 840)]
"""Entries and FLOPs of lenet5-half on 28 × 28, counted by hand."""


def layered(strategy, training_s, compression_s, rate, latency_s):
    """A client whose every layer is sent as soon as its gradient is there."""
    plain = sim.scenario(
        rounds=1,
        clients=[{"prototype": "small", "device": "rtx3090-ryzen4800h", "overlap": "layers"}],
        policy={"kind": "uniform", "strategy": strategy},
    )
    star = Star(1, up_bytes_per_s=rate, latency_s=latency_s)
    return sim.build(plain, star=star, devices=[sim.Fixed(training_s, compression_s)]).run()


@pytest.mark.parametrize("strategy", ["top-k", "dense"])
@pytest.mark.parametrize("latency_s", [0.0, 0.3])
@pytest.mark.parametrize("rate", [3e3, 3e4, 1e6])
@pytest.mark.parametrize(("training_s", "compression_s"), [(3.0, 0.0), (0.3, 4.0), (2.0, 1.0)])
def test_layers_take_their_closed_form(strategy, latency_s, rate, training_s, compression_s):
    """Layer l, from the last, is there after its share of two thirds of the step and of the
    compression, and is sent when the one before it is: the last byte arrives at
    L + max over l of (when l is there + what all from l on take to be sent)."""
    if strategy == "dense":
        slices = [entries for entries, _ in LAYERS]
    else:  # one entry each, and of the other 995 their share
        ends = np.cumsum([entries for entries, _ in LAYERS])
        done = [n + 995 * (int(end) - n) // (sim.D - 5) for n, end in enumerate(ends, start=1)]
        slices = np.diff([0, *done]).tolist()
    played = layered(strategy, training_s, compression_s, rate, latency_s)
    (row,) = played.rows("participations")
    there_s, sent_s = training_s / 3, []
    for (entries, flops), k in zip(LAYERS[::-1], slices[::-1], strict=True):
        there_s += training_s * 2 / 3 * flops / sum(f for _, f in LAYERS)
        there_s += compression_s * entries / sim.D
        sent_s.append((there_s, row["uplink_bytes"] * k / sum(slices) / rate))
    expected_s = latency_s + max(
        there_s + sum(s for _, s in sent_s[number:]) for number, (there_s, _) in enumerate(sent_s)
    )
    assert played.column("rounds", "duration_s") == [pytest.approx(expected_s, rel=1e-12)]
    assert row["training_s"] == pytest.approx(training_s, rel=1e-12)
    assert row["compression_s"] == pytest.approx(compression_s, rel=1e-12)
    spent_s = sum(row[f"{phase}_s"] for phase in ("training", "compression", "uplink", "waiting"))
    assert spent_s == pytest.approx(expected_s, rel=1e-12)


def test_a_step_in_layers_draws_one_noise():
    device = {"profile": "x86-2core-vm", "noise": {"kind": "lognormal", "cv": 0.5}}
    seconds = []
    for overlap in (None, "layers"):
        group = {**SCENARIO["clients"][0], "device": device, "overlap": overlap}
        plain = {**SCENARIO, "clients": [group], "training": {"local_steps": 1}}
        run = simfed.run(plain, time_only=True, progress=False)
        seconds.append(run.participations["training_s"].tolist())
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)
    assert len(set(seconds[0])) > 1


def test_slices_of_tcp_share_one_handshake():
    """Beside the whole upload on one connection: no more handshakes, no new slow start."""
    took_s = {}
    for chunks in (1, 2, 8):
        group = {**SCENARIO["clients"][0], "overlap": {"chunks": chunks}}
        group["link"] = {"up": "1 Mbps", "latency": "50 ms"}
        plain = {**SCENARIO, "clients": [group], "network": {"model": "tcp"}, "rounds": 1}
        run = simfed.run(plain, time_only=True, progress=False)
        took_s[chunks] = run.rounds["duration_s"][0] - run.participations["compression_s"][0]
    assert took_s[2] == pytest.approx(took_s[1], rel=0.02)
    assert took_s[8] == pytest.approx(took_s[1], rel=0.05)


@pytest.mark.parametrize("chunks", [4, "layers"])
def test_slices_keep_every_invariant_and_go_on_from_any_border(tmp_path, chunks):
    late = {"mode": "deadline", "deadline": "2.5 s", "late": "merge"}

    def made(recorder=None):
        shape = {"clients": 3, "rounds": 6, "aggregation": late}
        return world(chunks, 1.0, 700.0, 0.1, recorder=recorder, **shape)

    whole = sim.write(tmp_path / "run", made, made().scenario)
    assert "\n".join(verify(whole.path)) == ""
    for number, facts, again in sim.resumptions(made(), made):
        under_way = any(flight["running"] for flight in facts["simulation"]["flights"])
        assert number > 1 or under_way
        sim.assert_ends_alike(again, whole)


# ---- what is learned -----------------------------------------------------------------------------


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
    shares = shares_of(4, 103, 30)
    assert len(chosen.indices) == 30
    assert sum(shares) == pytest.approx(1.0)
    for number, share in enumerate(shares):
        begin, end = 103 * number // 4, 103 * (number + 1) // 4
        mine = chosen.indices[(chosen.indices >= begin) & (chosen.indices < end)]
        assert len(mine) == round(share * 30)
        alone = TopK().select(update[begin:end], len(mine)).indices + begin
        assert np.array_equal(mine, alone)


def test_every_layer_selects_its_share_and_one_entry_at_the_least():
    rng = np.random.default_rng(0)
    for length in range(3, 20):
        ends = (1, length // 2 + 1, length)
        for k in range(3, length + 1):
            update = rng.normal(size=length).astype(np.float32)
            chosen = Sliced(TopK(), ends).select(update, k).indices
            counts = np.diff([0, *np.searchsorted(chosen, ends)])
            assert len(chosen) == k
            assert counts.min() >= 1
            assert counts.tolist() == [round(share * k) for share in shares_of(ends, length, k)]
            spare = [(k - 3) * (size - 1) / max(length - 3, 1) for size in np.diff([0, *ends])]
            assert np.abs(counts - 1 - spare).max() < 1


def test_a_sliced_codec_is_its_label_and_its_bytes_those_of_the_whole():
    layers = sliced(Choice("top-k"), (10, 300, 1000)).codec
    assert codec_from_spec(layers.label).label == layers.label == "slices(10/300/1000=top-k)"
    assert codec_from_spec(layers.label).cuts == (10, 300, 1000)
    codec = sliced(Choice("top-k"), 8).codec
    assert codec_from_spec(codec.label).label == codec.label == "slices(8=top-k)"
    for code in ("fixed", "ideal", "raw32"):
        assert codec.size_bytes(1000, 80, code) == TopKWhole.size_bytes(1000, 80, code)
    update = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    payload, _ = codec.encode(update, k=80)
    data = payload.encoded("fixed")
    assert len(data) == codec.size_bytes(1000, 80, "fixed")
    again = codec.from_bytes(data, 1000, 80, "fixed")
    assert np.array_equal(again.dense(), payload.dense())


TopKWhole = codec_from_spec("top-k")


def test_blind_slices_keep_states_of_their_own():
    codec = sliced(Choice("periodic-k"), 3).codec
    update, state, seen = np.ones(30, np.float32), None, []
    for turn in range(5):
        payload, state = codec.encode(update, state, np.random.default_rng(turn), 6)
        seen += payload.indices.tolist()
        state = json.loads(json.dumps(state))
    assert sorted(seen) == list(range(30))
    assert RandomK().select(update, 3, rng=np.random.default_rng(0)).indices.size == 3


SCENARIO = {
    "name": "overlap", "rounds": 3, "method": "fedavg",
    "dataset": {"name": "mnist-mini"}, "prototypes": {"small": {"model": "lenet5-half"}},
    "policy": {"kind": "uniform", "strategy": "top-k"}, "compression": {"k": "20%"},
    "clients": [{"count": 4, "prototype": "small", "device": "x86-2core-vm",
                 "link": {"up": "1 Mbps", "down": "2 Mbps"}}],
}  # fmt: skip


def with_overlap(overlap, **changes):
    return {
        **SCENARIO, **changes, "clients": [{**SCENARIO["clients"][0], "overlap": overlap}],
    }  # fmt: skip


@pytest.mark.parametrize("overlap", [{"chunks": 4}, "layers"])
def test_whose_work_failed_has_its_processor_again_in_the_next_round(tmp_path, overlap):
    scenario = with_overlap(overlap, rounds=3, training={"local_steps": 1})
    scenario["clients"][0]["failure"] = {"training": 1}
    run = simfed.run(scenario, tmp_path / "run", time_only=True, progress=False)
    assert run.participations["outcome"].tolist() == ["failed"] * 12
    assert np.ptp(run.rounds["duration_s"]) < 1e-12
    assert "\n".join(verify(run.path)) == ""


def test_learning_follows_and_one_chunk_is_none(tmp_path):
    plain = simfed.run(SCENARIO, progress=False)
    one = simfed.run(with_overlap({"chunks": 1}), progress=False)
    many = simfed.run(with_overlap({"chunks": 8}), tmp_path / "run", progress=False)
    assert one.fingerprint == plain.fingerprint
    loss = [run.prototypes["test_loss"].tolist() for run in (plain, many)]
    assert loss[0] != loss[1]
    assert many.participations["uplink_bytes"].tolist() == pytest.approx(
        plain.participations["uplink_bytes"].tolist(), rel=1e-12
    )
    assert set(many.participations["arm"]) == {"top-k"}
    assert "\n".join(verify(many.path)) == ""
    timed = simfed.run(with_overlap({"chunks": 8}), time_only=True, progress=False)
    for column in ("started_at_s", "compression_s", "uplink_s", "finished_at_s"):
        assert timed.participations[column].tolist() == many.participations[column].tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy": {"kind": "uniform", "strategy": "qsgd"}}, "got 'qsgd.16.', expected a compr"),
        ({"policy": {"kind": "uniform", "strategy": "dense"}}, "a codec that selects entries"),
        ({"compression": {"k": 5}}, "overlap: chunks: got 8, expected at most 5 chunks"),
        ({"method": "fedmd", "compression": {}}, "a method whose uploads are compressed"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(changes, sentence):
    with pytest.raises(InputErrors, match=sentence):
        simfed.run(with_overlap({"chunks": 8}, **changes), time_only=True, progress=False)


def test_dense_layers_learn_as_dense_uploads_do(tmp_path):
    changes = {"training": {"local_steps": 1}, "policy": {"kind": "uniform", "strategy": "dense"}}
    plain = simfed.run({**SCENARIO, **changes}, progress=False)
    layers = simfed.run(with_overlap("layers", **changes), tmp_path / "run", progress=False)
    assert layers.prototypes.equals(plain.prototypes)
    assert layers.participations["uplink_bytes"].equals(plain.participations["uplink_bytes"])
    assert set(layers.participations["arm"]) == {"dense"}
    assert (layers.rounds["duration_s"] < plain.rounds["duration_s"]).all()
    assert "\n".join(verify(layers.path)) == ""
    timed = simfed.run(with_overlap("layers", **changes), time_only=True, progress=False)
    assert timed.rounds["duration_s"].tolist() == layers.rounds["duration_s"].tolist()


def test_a_model_of_one_layer_has_nothing_to_overlap():
    changes = {"prototypes": {"small": {"model": "logistic-regression"}}}
    changes["training"] = {"local_steps": 1}
    plain = simfed.run({**SCENARIO, **changes}, time_only=True, progress=False)
    layers = simfed.run(with_overlap("layers", **changes), time_only=True, progress=False)
    assert layers.fingerprint == plain.fingerprint


def opaque(input_shape, classes):
    """A model that says what it weighs, and nothing of its layers."""


opaque.facts = lambda input_shape, classes: ModelFacts(input_shape, classes, 900, 0, 10, 30)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"training": {}}, "overlap: got 'epochs', expected training.local_steps 1, as later st"),
        ({"training": {"local_steps": 2}}, "overlap: got 2, expected training.local_steps 1"),
        ({"method": "scaffold"}, "a method whose upload is the gradient of one local step"),
        ({"method": "fedgen"}, "a method whose upload is the gradient of one local step"),
        ({"policy": {"kind": "uniform", "strategy": "qsgd"}}, "such as top-k or dense"),
        ({"compression": {"k": 4}}, "got 4, expected at least 5 entries of top-k, one for each la"),
        (
            {"training": {"local_steps": 1, "clip_norm": 1.0}},
            "got 'training.clip_norm', expected gradients that nobody clips",
        ),
        ({"prototypes": {"small": {"model": "opaque"}}}, "expected a model whose facts have `laye"),
    ],
)
def test_what_has_no_layers_to_send_is_refused_in_a_sentence(changes, sentence, add_part):
    changes = {"training": {"local_steps": 1}, **changes}
    add_part("model", "opaque", opaque)
    with pytest.raises(InputErrors, match=sentence):
        simfed.run(with_overlap("layers", **changes), time_only=True, progress=False)
