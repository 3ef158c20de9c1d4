"""ditto, fedrep and fedbn against their papers, written out for ordinary modules."""

import pytest
import torch
import torch.nn.functional as F
from engine_worlds import played
from textbook import Textbook, assert_close, assert_evaluated, flat, scenario

from simfed.learn.federation import draw_epoch

SOME = {"participation": {"clients_per_round": 3}}
SOLVER = {
    "batch_size": 16, "learning_rate": 0.05, "local_steps": 3, "momentum": 0.5,
    "weight_decay": 0.01, "clip_norm": 0.5,
}  # fmt: skip
"""With everything in it that could move weights which are held."""


def further(book, client, round, epochs):
    """Batches of epochs that a method trains beside the scenario's."""
    rng = book.streams("further batch", client, round)
    owned, size = book.data.owned[client], book.made.training.batch_size
    return [book.data.at(batch) for batch in draw_epoch(rng, owned, size, epochs)]


def mean(book, clients, modules, kept):
    """The mean, by samples, of what of modules is not kept, by name."""
    sizes = [book.samples[client] for client in clients]
    states = [module.state_dict() for module in modules]
    return {
        name: sum(n * state[name] for n, state in zip(sizes, states, strict=True))
        / sum(sizes)
        for name, first in states[0].items()
        if not kept(name) and first.is_floating_point()
    }


@pytest.mark.parametrize("epochs", [None, 2])
def test_ditto_is_that_of_the_paper(epochs):
    made = scenario({"kind": "ditto", "pull": 0.7, "own_epochs": epochs}, **SOME)
    work, last = played(made)
    book = Textbook(made)
    w = book.module("a")
    v = {}
    for round in (1, 2, 3):
        clients = book.cohort(round)
        models = [book.trained(w, client, round) for client in clients]
        common = flat(w)
        for client in clients:
            v[client] = book.trained(
                v.get(client, book.module("a")),
                client,
                round,
                lambda own, w=common: 0.7 * (own - w),
                batches=epochs and further(book, client, round, epochs),
            )
        w.load_state_dict(mean(book, clients, models, lambda name: False))
    assert_close(work.array("server/a/weights"), flat(w))
    for client, module in v.items():
        assert_close(work.array(f"clients/{client}/own/weights"), flat(module))
    assert_evaluated(book, last.outcome, v)


def play_partly(made, kept, trained):
    """The engine's workload, its last round, a module of the server's part and one of
    each client's, as the paper has them.

    `kept`: name of a tensor → whether it stays. `trained`: (book, module, client,
    round) → the module after its participation.
    """
    work, last = played(made)
    book = Textbook(made)
    server, own = book.module("a").state_dict(), {}

    def joined(client):
        module = book.module("a")
        mine = own.get(client, module.state_dict())
        parts = {n: mine[n] if kept(n) else server[n] for n in mine}
        module.load_state_dict(parts)
        return module

    for round in (1, 2, 3):
        clients = book.cohort(round)
        models = [trained(book, joined(c), c, round) for c in clients]
        for client, model in zip(clients, models, strict=True):
            own[client] = model.state_dict()
        server = {**server, **mean(book, clients, models, kept)}
    models = {client: joined(client) for client in own}
    assert_evaluated(book, last.outcome, models)
    return work, models


def test_fedrep_is_that_of_the_paper():
    made = scenario({"kind": "fedrep", "head_epochs": 2}, training=SOLVER, **SOME)

    def in_head(name):
        return name.startswith("fc3.")

    def trained(book, module, client, round):
        batches, who = further(book, client, round, 2), (client, round)
        module = book.trained(module, *who, batches=batches, moving=in_head)
        return book.trained(module, *who, moving=lambda name: not in_head(name))

    work, models = play_partly(made, in_head, trained)
    for client, module in models.items():
        body, head = flat(module).tensor_split([-4 * 43])
        assert_close(work.array(f"clients/{client}/own/weights"), head)
        assert_close(work.array("server/a/weights"), body)


def test_fedbn_is_that_of_the_paper():
    made = scenario("fedbn", training=SOLVER, **SOME)

    def of_norm(name):
        return name.startswith("1.")

    work, models = play_partly(made, of_norm, Textbook.trained)
    means = set()
    for client, module in models.items():
        own = flat(module[1])
        assert_close(work.array(f"clients/{client}/own/weights"), own)
        statistics = torch.cat([module[1].running_mean, module[1].running_var])
        assert_close(work.array(f"clients/{client}/own/buffers"), statistics)
        means.add(statistics[0].item())
        rest = torch.cat([flat(module[0]), flat(module[5])])
        assert_close(work.array("server/a/weights"), rest)
    assert len(means) == len(models)


def test_a_codec_of_layers_finds_those_that_travel():
    arm = "layers(conv*=qsgd,*=dense)"
    host, last = played(scenario("fedrep", arm=arm), rounds=1)
    task = host.task(2, 0)
    names = task.plan.up["update"].layout_of(task.who).names
    assert (names[0], names[-1]) == ("conv1.weight", "fc2.bias")
    assert len(set(last.uplink_bytes.values())) == 1


@pytest.mark.parametrize("kind", ["fedrep", "fedbn"])
def test_a_local_loss_is_that_of_the_model_that_is_evaluated(kind):
    """Before a merge with what was sent, after it with what the merge made."""
    policy = {"kind": "ascend", "reward": {"local_loss": {"samples": 1000}}}
    made = scenario(kind, policy=policy, compression={"strategies": ["dense"], "k": 30})
    work, last = played(made, rounds=2)
    for client in range(4):
        who = work.tasks.who(client)
        sent = work.method.send(work.kept.server, who, 2)
        model = work.method.model(sent, work.kept.own[client], who)
        samples, labels = work.kit.own(who)
        loss = F.cross_entropy(work.kit.logits("a", model, samples), labels).item()
        _, after = last.outcome.local_loss[f"{client}/2"]
        assert after == pytest.approx(loss, rel=1e-5)
