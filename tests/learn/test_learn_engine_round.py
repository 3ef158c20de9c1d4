"""One round and many, against the textbook loop.

And the facts that tie rounds together.
"""

import engine_worlds as tiny
import pytest
import torch
from engine_worlds import Host
from reference_loop import ReferenceLoop, flat, statistics
from textbook import Textbook, answers, assert_same, with_weights

from simfed import RunFailed
from simfed.ground import Streams
from simfed.ground.registry import registry
from simfed.learn import LeNet5, Safeguard

pytestmark = pytest.mark.usefixtures("one_thread")


class ByAutograd(LeNet5):
    """A LeNet of a user's own, as far as the engine can tell."""

    def forward(self, x):
        return super().forward(x)


@pytest.fixture(autouse=True, scope="module")
def by_autograd():
    registry("model").add("by-autograd", ByAutograd)
    yield
    registry("model").remove("by-autograd")


def assert_same_round(theirs, ours):
    """Equal choices, and every loss to 1e-6 relative."""
    outcome = ours.outcome
    assert ours.arms == theirs["arms"]
    assert outcome.rolled_back == theirs["rolled_back"]
    assert dict(outcome.shared_loss) == pytest.approx(theirs["kd"], rel=1e-6)
    local = {f"{client}/{ours.round}": two for client, two in theirs["local"].items()}
    assert outcome.local_loss.keys() == local.keys()
    for key, losses in local.items():
        assert outcome.local_loss[key] == pytest.approx(losses, rel=1e-6)


def undone(threshold=0.5, **changes):
    return {"safeguard": {"rollback": {"threshold": threshold}, **changes}}


SCENARIOS = {
    "ascend": {},
    "several local steps": {"training": {"batch_size": 16, "local_steps": 3}},
    "distillation": {
        "distillation": {"learning_rate": 0.1, "steps": 2, "temperature": 2.0}
    },
    "all samples in a batch": {"training": {"batch_size": 100_000}},
    "schedule": {"training": {"batch_size": 16, "schedule": {"kind": "inverse-sqrt"}}},
    "public subset": {"dataset": {"name": "stripes", "public": 48, "public_batch": 20}},
    "rollbacks": undone(),
    "student-teacher": {
        "distillation": {"divergence": "student-teacher", "temperature": 2.0}
    },
    "undone models alone": undone(residuals="as-sent", forces="none"),
    "half returns": undone(residuals={"damped": 0.25}, forces="dense"),
    "median": undone(0.9, reference={"running-median": 3}),
    "exp3": {"policy": {"kind": "exp3", "reward": {"local_loss": {"samples": 40}}}},
    "batch norm": {
        "prototypes": {"small": {"model": "tiny-normed"}, "large": {"model": "lenet5"}}
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_rounds_equal_those_of_the_textbook_loop(name):
    scenario = tiny.scenario(rounds=4, **SCENARIOS[name])
    data = tiny.federation(scenario)
    reference = ReferenceLoop(scenario, Streams(0), data)
    work = Host(scenario, data=data)
    for ours in work.rounds():
        assert_same_round(reference.round(ours.round), ours)
    for name, model in reference.models.items():
        expected = torch.cat([flat(model), *statistics(model)])
        ours = torch.cat([*work.kept.server[name].values()])
        assert_same(ours, expected, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("method", "steps"), [("fedkd", 1), ("fedkd", 2), ("fedavg", 2)]
)
def test_detached_feedback_takes_gradients_where_the_error_will_bring_the_model(
    method, steps
):
    arm, weight, rate = "detached-ef(top-k,weight=0.5)", 0.5, 0.02
    scenario = tiny.scenario(
        method=method,
        prototypes={"only": {"model": "by-autograd"}},
        clients=2,
        compression={"k": 500, "strategies": [arm]},
        policy={"kind": "uniform", "strategy": arm},
        training={"batch_size": 8, "learning_rate": rate, "local_steps": steps},
    )
    work = Host(scenario)
    book = Textbook(scenario)
    error = torch.zeros(work.task(1, 0).parameters)
    scale = -rate if method == "fedkd" else -1.0  # of gradients, of weight differences
    for round in (1, 2, 3):
        before = tiny.weights(work)["only"]
        begin = before + scale * weight * error
        module = with_weights(book.module("only"), begin)
        update = (flat(book.trained(module, 0, round)) - begin) / scale
        upload = work.begin(round, 0, arm, 500)
        payload = work.received(upload)
        error = error + update
        largest = torch.topk(error.abs(), 500).indices.sort().values
        assert torch.equal(payload.indices, largest)
        assert_same(payload.values, error[largest], 1e-4, 1e-6)
        error[largest] = 0.0
        work.merge(round, [upload])
        if method == "fedavg":
            moved = before.index_add(0, largest, -payload.values)
            after = tiny.weights(work)["only"]
            assert_same(after, moved, 0, 1e-6)
    assert error.any()


# ---- the safeguard -------------------------------------------------------------------


def test_of_two_uploads_of_a_client_in_an_undone_merge_the_later_goes_back_first():
    work = Host(tiny.scenario(**undone(2.0)))
    work.play(1, arm="periodic-k", k=300)
    work.safeguard.rejects = lambda before, after: True
    memories = work.kept.states[0].memories
    uploads = [work.begin(2, client, "periodic-k", 300) for client in range(4)]
    again = work.begin(2, 0, "periodic-k", 300, turn=1)
    assert work.merge(2, [*uploads, again]).rolled_back
    assert work.kept.states[0].memories == memories


def test_a_model_that_is_its_own_teacher_is_never_rolled_back():
    """Its distillation loss is 0 but for rounding, which doubles from round to round as
    it likes.
    """
    scenario = tiny.scenario(
        rounds=12,
        prototypes={"small": {"model": "lenet5-half"}},
        participation={"clients_per_round": 1},
    )
    outcomes = [each.outcome for each in Host(scenario).rounds()]
    assert not any(outcome.rolled_back for outcome in outcomes)
    assert all(0 <= outcome.shared_loss["small"] < 1e-12 for outcome in outcomes)


def test_forced_rounds_pay_nobody_and_rejected_rounds_pay():
    rounds = list(Host(tiny.scenario(**undone(1e-9))).rounds())
    assert [r.outcome.rolled_back for r in rounds] == [True, False, True]
    assert [len(r.rewards) for r in rounds] == [4, 0, 4]


# ---- sizes, losses, lost uploads -----------------------------------------------------


def test_a_merge_of_nothing_changes_nothing():
    work = Host(tiny.scenario())
    before = tiny.weights(work)
    outcome = work.merge(2, [])
    assert outcome.model_version == 0
    assert set(outcome.evaluation) == {"small", "large"}
    assert all(torch.equal(before[n], w) for n, w in tiny.weights(work).items())


def test_a_prototype_without_participants_is_only_distilled():
    scenario = tiny.scenario(
        distillation={"learning_rate": 1e-12}, safeguard={"rollback": None}
    )
    work = Host(scenario)
    before = tiny.weights(work)
    work.play(1, [0], "top-k", 100)
    after = tiny.weights(work)
    assert_same(after["large"], before["large"], 0, 1e-9)
    assert (after["small"] - before["small"]).abs().max() > 1e-6


def test_learning_that_diverged_names_the_client(monkeypatch):
    work = Host(tiny.scenario())
    trained_each = work.kit.trained_each

    def with_a_loss_that_is_none(participations):
        trained = zip(participations, trained_each(participations), strict=True)
        return [
            (model, loss * torch.nan if who.client == 3 else loss)
            for (who, *_), (model, loss) in trained
        ]

    monkeypatch.setattr(work.kit, "trained_each", with_a_loss_that_is_none)
    sentence = r"client 3's training loss is nan in round 1: .*diverged"
    with pytest.raises(RunFailed, match=sentence):
        work.play(1, arm="top-k", k=500)


def test_the_printed_credit_looks_back_and_has_no_local_gain_in_round_one():
    def rounds(credit):
        reward = {"local_loss": {"credit": credit, "samples": 40}}
        # uniformly random whatever the rewards
        policy = {"kind": "exp3", "mixing": 1.0, "reward": reward}
        return list(Host(tiny.scenario(rounds=4, seed=3, policy=policy)).rounds())

    causal, printed = (
        [[*each.outcome.local_loss.values()] for each in rounds(credit)]
        for credit in ("causal", "as-printed")
    )
    assert all(before == after for before, after in printed[0])
    assert printed[1:] == causal[:-1]


@pytest.mark.parametrize("data", ["probe", "full", "batch"])
def test_local_loss_is_over_the_samples_it_names(data):
    samples = {"samples": 40} if data == "probe" else {}
    scenario = tiny.scenario(
        policy={"kind": "ascend", "reward": {"local_loss": {"data": data, **samples}}}
    )
    work, book = Host(scenario), Textbook(scenario)
    samples, owned = work.kit.own_samples(1, 1), work.data.owned[1]
    assert len(samples) == {"probe": 40, "full": len(owned), "batch": 16}[data]
    assert set(samples) <= set(owned)
    images, labels = work.data.at(samples)
    logits = answers(book.module("large"), images)
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    outcome = work.play(1, arm="top-k", k=300)
    assert outcome.local_loss["1/1"][0] == pytest.approx(expected, rel=1e-6)


def test_clients_whose_policy_does_not_learn_cost_no_local_losses():
    scenario = tiny.scenario(
        clients=[
            {"count": 2, "policy": {"kind": "uniform", "strategy": "top-k"}},
            {"count": 2, "prototype": "large"},
        ]
    )
    for options, paid in (({}, {"1/1", "3/1"}), ({"learns": False}, set())):
        first = next(Host(scenario, **options).rounds())
        assert set(first.outcome.local_loss) == paid


def test_a_median_of_losses_passes_over_rounds_without_them():
    """A round in which no prototype had enough uploads for the merging rule measures
    nothing.
    """
    made = tiny.scenario(**undone(2.0, reference={"running-median": 3}))
    guard = Safeguard(made, "kd_loss")
    start = {"small": 1.0, "large": 5.0}
    for after in ({"small": 3.0, "large": 4.0}, {}, {"small": 2.0}):
        assert not guard.rejects(start, {})
        guard.accept(start, after)
    # small: the median of 3 and 2; large: of 4, the last round that had one in the
    # window
    assert not guard.rejects(start, {"small": 5.0, "large": 8.0})
    assert guard.rejects(start, {"small": 5.1})
    assert guard.rejects(start, {"large": 8.1})
