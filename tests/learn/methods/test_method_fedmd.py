"""FedMD: own models of two kinds, which meet in their answers on the public set."""

import pytest
import torch
import torch.nn.functional as F
from engine_worlds import Host, played
from textbook import TWO, Textbook, answers, assert_close, distilled, flat, scenario

PUBLIC = {"name": "stripes", "public": 24, "public_batch": 16}


@pytest.mark.parametrize("everybody", [True, False])
def test_rounds_are_digest_revisit_and_mean_answers(everybody):
    made = scenario(
        {"kind": "fedmd", "digest_batch": 8, "digest_epochs": 2, "temperature": 2.0},
        prototypes=TWO,
        dataset=PUBLIC,
        participation={} if everybody else {"clients_per_round": 2},
    )
    workload, last = played(made)
    book = Textbook(made)
    models = {client: book.module(book.prototypes[client]) for client in range(4)}
    consensus = None
    for round in (1, 2, 3):
        told = []
        for client in book.cohort(round):
            model = models[client]
            if consensus is not None:
                targets = torch.softmax(consensus.double() / 2.0, 1)
                public = book.public(round)
                order = book.streams("method digest", client, round)
                model = distilled(
                    model, order, public, targets, 8, temperature=2.0, steps=4
                )
            models[client] = book.trained(model, client, round)
            told.append(answers(models[client], book.public(round + 1)))
        consensus = sum(told) / len(told)
    arrays = workload.state()[1]
    for client, model in models.items():
        if f"clients/{client}/own/weights" in arrays:
            assert_close(
                torch.tensor(arrays[f"clients/{client}/own/weights"]), flat(model), 2e-6
            )
    targets = torch.softmax(consensus.double() / 2.0, 1)
    apart = [
        F.kl_div(
            F.log_softmax(one.double() / 2.0, 1), targets, reduction="batchmean"
        ).item()
        for one, client in zip(told, book.cohort(3), strict=True)
        if book.prototypes[client] == "a"
    ]
    expected = sum(apart) / len(apart)
    assert last.outcome.losses["a"]["disagreement"] == pytest.approx(expected, rel=1e-4)
    assert (
        len(last.outcome.clients) == len([key for key in arrays if "/own/" in key]) / 2
    )


def test_late_answers_are_about_the_samples_that_were_asked():
    made = scenario("fedmd", dataset=PUBLIC)
    workload = Host(made)
    slow = workload.begin(1, 0)
    workload.merge(1, [workload.begin(1, 1)])
    workload.merge(2, [workload.begin(2, 2), slow])
    consensus = workload.array("server/consensus")
    asked = [workload.kit.public_places(round).tolist() for round in (2, 3)]
    late = slow.values["logits"]
    both = [place for place in asked[0] if place in asked[1]]
    only = next(place for place in asked[0] if place not in asked[1])
    assert_close(consensus[only], late[asked[0].index(only)])
    logits = workload.kit.logits("a", workload.kept.own[2], workload.kit.public(3))
    now = logits[asked[1].index(both[0])]
    assert_close(consensus[both[0]], (late[asked[0].index(both[0])] + now) / 2)


def test_compressed_answers_have_no_residual():
    made = scenario({"kind": "fedmd", "compress_logits": True}, arm="top-k")
    workload, last = played(made)
    assert not [key for key in workload.state()[1] if "/rests/" in key]
    upload = workload.begin(3, 0, "top-k", 30)
    upload.uplink_bytes()
    assert set(last.uplink_bytes.values()) == {upload.uplink_bytes()}
    whole = workload.kit.logits("a", workload.kept.own[0], workload.kit.public(4))
    sent = upload.values["logits"]
    assert int((sent != 0).sum()) == 30
    assert_close(sent[sent != 0], whole[sent != 0])
