"""What real hosts do beside the method takes time in a simulation where it is known,
and only there.
"""

import numpy as np
import pytest
import worlds

TIMES = {"training": "10 ms", "compression": "1 ms"}
NOTHING = {"decompression": "0 s", "inference": "0 s", "distillation": "0 s"}


def scenario(server=None, **changes):
    """Return a world of two clients behind links of 8 Mbps."""
    group = {"device": {"assume": TIMES}, "link": {"up": "8 Mbps"}}
    keys = {
        "rounds": 5,
        "prototypes": {"small": {"model": "lenet5-half"}, "large": {"model": "lenet5"}},
        "clients": [
            {"count": 1, "prototype": name, **group} for name in ("small", "large")
        ],
        "compression.k": 1000,
        "evaluation.every": 2,
    }
    if server is not None:
        keys["server.device.assume"] = {**NOTHING, **server}
    return worlds.world("two", {**keys, **changes})


def played(server=None, **changes):
    return worlds.play(scenario(server, **changes), time_only=True)


def seconds(run, kind):
    spans = run.spans[run.spans["kind"] == kind]
    return (spans["finished_at_s"] - spans["started_at_s"]).tolist()


def assume(quantity, takes):
    return {f"clients[*].device.assume.{quantity}": takes}


def test_handling_messages_is_local_work_between_download_and_training():
    without, run = played(), played(**assume("handling", "40 ms"))
    assert seconds(without, "handling") == []
    assert seconds(run, "handling") == pytest.approx([0.04] * 10)
    longer_s = run.participations["training_s"] - without.participations["training_s"]
    assert longer_s.tolist() == pytest.approx([0.04] * 10)
    mine = run.spans.query("client == 0 and round == 1 and kind != 'waiting'")
    assert mine["kind"].tolist() == ["handling", "training", "compression", "upload"]


def test_the_beginning_of_training_is_in_its_span_once_however_many_its_steps():
    starting = assume("starting", "40 ms")
    for steps in (3, 1):
        run = played(**starting, **{"training.local_steps": steps})
        expected_s = 0.04 + 0.01 * steps
        assert seconds(run, "training") == pytest.approx([expected_s] * 10)


def test_compression_waits_for_what_training_has_used_of_a_quota():
    """0.15 of 100 ms: 30 ms of training, 1 of compression."""
    run = played(
        **assume("training", "30 ms"),
        **{"clients[*].device.quota": 0.15, "rounds": 40},
    )
    training_s, compression_s = (
        np.array(seconds(run, x)) for x in ("training", "compression")
    )
    # two allowances, of which the first may be filled again while it is used
    assert training_s.min() > 0.03
    assert training_s.max() < 0.2
    # there is some left, or it waits for the next filling
    assert compression_s.min() == pytest.approx(0.001)
    assert compression_s.max() > 0.05


def test_a_server_that_knows_them_takes_time_for_merges_and_evaluations_that_are_due():
    assert played({}).rounds["server_s"].tolist() == [0.0] * 5
    run = played({"handling": "50 ms", "evaluation": "70 ms"})
    # two prototypes, after rounds 2, 4 and the last
    due_s = [0.05, 0.19, 0.05, 0.19, 0.19]
    assert run.rounds["server_s"].tolist() == pytest.approx(due_s)
    tested = run.spans[run.spans["kind"] == "evaluation"]
    assert set(tested["name"]) == {"evaluation of small", "evaluation of large"}
    assert set(tested["track"]) == {"server"}


def test_a_server_waits_for_the_losses_that_clients_measure_where_a_policy_learns():
    said = {"losses": "30 ms"}
    assert played(said).rounds["server_s"].tolist() == [0.0] * 5
    for learns in (
        {"policy": {"kind": "ascend"}},
        {"participation": {"clients_per_round": 2, "selection": "oort"}},
    ):
        run = worlds.play(scenario(said, rounds=2, **learns))
        assert run.rounds["server_s"].tolist() == pytest.approx([0.03] * 2)
        asked = run.spans[run.spans["kind"] == "losses"]
        assert asked["track"].tolist() == ["server"] * 2
        assert run.participations["local_loss"].notna().all()
