"""What real hosts do beside the method takes time in a simulation where it is known,
and only there.
"""

import numpy as np
import pytest
import worlds

TIMES = {"training": "10 ms", "compression": "1 ms"}


def scenario(times=TIMES, server=None, device=(), **changes):
    """Return a world of two clients behind links of 8 Mbps."""
    group = {"device": {"assume": times, **dict(device)}, "link": {"up": "8 Mbps"}}
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
        keys["server.device.assume"] = server
    return worlds.world("two", keys, **changes)


def played(plan):
    return worlds.play(plan, time_only=True)


def seconds(run, kind):
    spans = run.spans[run.spans["kind"] == kind]
    return (spans["finished_at_s"] - spans["started_at_s"]).tolist()


def test_handling_messages_is_local_work_between_download_and_training():
    without = played(scenario())
    run = played(scenario({**TIMES, "handling": "40 ms"}))
    assert seconds(without, "handling") == []
    assert seconds(run, "handling") == pytest.approx([0.04] * 10)
    longer_s = run.participations["training_s"] - without.participations["training_s"]
    assert longer_s.tolist() == pytest.approx([0.04] * 10)
    mine = run.spans[(run.spans["client"] == 0) & (run.spans["round"] == 1)]
    assert [kind for kind in mine["kind"] if kind != "waiting"] == [
        "handling",
        "training",
        "compression",
        "upload",
    ]


def test_the_beginning_of_training_is_in_its_span_once_however_many_its_steps():
    times = {**TIMES, "starting": "40 ms"}
    run = played(scenario(times, training={"local_steps": 3}))
    assert seconds(run, "training") == pytest.approx([0.07] * 10)
    assert seconds(played(scenario(times)), "training") == pytest.approx([0.05] * 10)


def test_compression_waits_for_what_training_has_used_of_a_quota():
    """0.15 of 100 ms: 30 ms of training, 1 of compression."""
    times = {"training": "30 ms", "compression": "1 ms"}
    plan = scenario(times, device={"quota": 0.15}, rounds=40)
    run = played(plan)
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
    nothing = {"decompression": "0 s", "inference": "0 s", "distillation": "0 s"}
    said = {**nothing, "handling": "50 ms", "evaluation": "70 ms"}
    without = played(scenario(server=nothing))
    run = played(scenario(server=said))
    assert without.rounds["server_s"].tolist() == [0.0] * 5
    # two prototypes, after rounds 2, 4 and the last
    assert run.rounds["server_s"].tolist() == pytest.approx(
        [0.05, 0.19, 0.05, 0.19, 0.19]
    )
    tested = run.spans[run.spans["kind"] == "evaluation"]
    assert set(tested["name"]) == {"evaluation of small", "evaluation of large"}
    assert set(tested["track"]) == {"server"}


def test_a_server_waits_for_the_losses_that_clients_measure_where_a_policy_learns():
    nothing = {"decompression": "0 s", "inference": "0 s", "distillation": "0 s"}
    said = {**nothing, "losses": "30 ms"}
    assert played(scenario(server=said)).rounds["server_s"].tolist() == [0.0] * 5
    for learns in (
        {"policy": {"kind": "ascend"}},
        {"participation": {"clients_per_round": 2, "selection": "oort"}},
    ):
        run = worlds.play(scenario(server=said, rounds=2, **learns))
        assert run.rounds["server_s"].tolist() == pytest.approx([0.03] * 2)
        assert (
            run.spans.loc[run.spans["kind"] == "losses", "track"].tolist()
            == ["server"] * 2
        )
