"""Models of clients' own: restored from a checkpoint, and evaluated with what merges
brought.
"""

from textbook import lenets

import simfed


def test_a_model_that_is_being_trained_is_evaluated_as_it_was_before():
    """Client 0 trains for 1 s at a time, client 1 for 3.5: only its merges bring news
    of it.
    """
    plain = lenets("local-only", rounds=9).model_dump(mode="json", exclude_unset=True)
    plain |= {
        "dataset": {"name": "mnist-mini"},
        "clients": [
            {"count": 1, "prototype": "small", "device": {"training": f"{seconds} s"}}
            for seconds in (1, 3.5)
        ],
        "aggregation": {"mode": "asynchronous", "concurrency": 2},
        "evaluation": {"every": 1},
    }
    run = simfed.run(plain, progress=False, workers=1)
    rows = run.participations.query("client == 1 and outcome == 'aggregated'")
    merges = rows["merge"].tolist()
    losses = run.clients.query("client == 1").set_index("round")["loss"]
    assert losses.index.tolist() == list(range(merges[0], 10))
    # a first difference is none
    assert losses.index[losses.diff() != 0].tolist() == merges
