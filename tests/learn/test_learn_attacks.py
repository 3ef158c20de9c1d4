"""Attackers: what each sends against a few lines written out, and what a run makes of
it.
"""

from __future__ import annotations

from statistics import NormalDist

import engine_worlds as tiny
import numpy as np
import pytest
import torch
from textbook import Textbook, data_of, flat, scenario

from simfed.compress.choice import Choice
from simfed.experiment.running import run
from simfed.ground.errors import InputError
from simfed.ground.registry import registry
from simfed.ground.seeding import Streams
from simfed.learn import attacks
from simfed.learn.facts import DatasetFacts
from simfed.learn.hosted import HostedWorkload
from simfed.replay.store import TrajectoryStore
from simfed.verify.run import verify

NAMES = registry("attack").names()
IMAGES = DatasetFacts((1, 12, 12), 4, 400, 60)


def with_attack(attack, honest=2, hostile=2, method="fedavg", **changes):
    """Two honest clients and, of the highest ids, two hostile ones.

    Several steps on all data.
    """
    groups = [
        {"count": honest, "prototype": "a", "device": "any"},
        {"count": hostile, "prototype": "a", "device": "any", "attack": attack},
    ]
    return scenario(method, clients=groups, client_order="grouped", **changes)


def sent(made, rounds=1, workers=1, arm="dense"):
    """What each client sends in the last of these rounds, and the workload, which is
    closed.
    """
    workload = HostedWorkload(made, Streams(0), data=data_of(made), workers=workers)
    for round in range(1, rounds + 1):
        tasks = [workload.task(round, client) for client in range(made.client_count)]
        uploads = [workload.execute(task, Choice(arm, 30)) for task in tasks]
        workload.work_off()
        updates = [upload.values["update"].clone() for upload in uploads]
        workload.merge(round, uploads)
    workload.close()
    return updates, workload


@pytest.fixture(scope="module")
def honest():
    """The updates of the first round without attackers."""
    return sent(scenario("fedavg"))[0]


def assert_equal(one, other):
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_honest_clients_are_as_without_attackers(honest):
    for attack in NAMES:
        assert_equal(sent(with_attack(attack))[0][:2], honest[:2])


def test_sign_flip_turns_its_own_update_around(honest):
    updates, _ = sent(with_attack({"sign-flip": 3}))
    assert_equal(updates[2:], [-3 * update for update in honest[2:]])


def test_gaussian_noise_is_as_long_as_it_says_and_keyed_by_client_and_round(honest):
    updates, _ = sent(with_attack({"gaussian": 5}))
    for update, clean in zip(updates[2:], honest[2:], strict=True):
        ratio = float(update.norm() / clean.norm())
        assert abs(ratio / 5 - 1) < 0.15
        assert abs(float(torch.corrcoef(torch.stack([update, clean]))[0, 1])) < 0.2
    assert not torch.equal(
        updates[2] / updates[2].norm(), updates[3] / updates[3].norm()
    )
    again, _ = sent(with_attack({"gaussian": 5}))
    assert all(map(torch.equal, updates, again))


@pytest.mark.parametrize(
    ("n", "m"), [(50, 5), (50, 24), (25, 11), (10, 1), (10, 3), (7, 7)]
)
def test_alie_stays_within_what_a_majority_supports(n, m):
    rows = np.random.default_rng(0).normal(size=(m, 6)).astype(np.float32)
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m) if n > m else 1.0
    z = NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
    expected = rows.mean(0) - z * rows.std(0)
    agreed = attacks.Alie().agree(torch.from_numpy(rows), n).numpy()
    np.testing.assert_allclose(agreed, expected, rtol=1e-5, atol=1e-6)


def test_alie_of_the_papers_example_is_a_third_of_a_deviation_away():
    # n = 50, m = 24: s = 2 of 26 honest ones are needed; Φ⁻¹(24/26) = 1.43 of their
    # table's z
    rows = torch.tensor([[0.0], [2.0]]).repeat(12, 1)
    assert attacks.Alie().agree(rows, 50).item() == pytest.approx(
        1 - 1.4260769, abs=1e-5
    )


def test_colluding_attackers_send_what_comes_of_the_updates_of_all_of_them(honest):
    clean = torch.stack(honest[2:])
    alie, _ = sent(with_attack({"alie": 1.5}))
    assert_equal(alie[2:], [clean.mean(0) - 1.5 * clean.std(0, correction=0)] * 2)
    ipm, _ = sent(with_attack({"ipm": 0.7}))
    assert_equal(ipm[2:], [-0.7 * clean.mean(0)] * 2)


def test_attackers_of_two_kinds_agree_among_their_own():
    made = scenario("fedavg", clients=[
        {"prototype": "a", "device": "any", "attack": attack}
        for attack in (None, "ipm", "alie", "ipm")
    ], client_order="grouped")  # fmt: skip
    clean, _ = sent(scenario("fedavg"))
    updates, _ = sent(made)
    assert_equal([updates[1], updates[3]], [-0.5 * (clean[1] + clean[3]) / 2] * 2)
    assert_equal([updates[2]], [clean[2]])  # alone it has no deviation


def book(made, change):
    """What clients that train on changed data send, written with PyTorch."""
    textbook = Textbook(made)
    change(textbook.data)
    model = textbook.module("a")
    return [flat(model) - flat(textbook.trained(model, client, 1)) for client in (2, 3)]


def test_label_flip_trains_on_labels_that_are_turned_around():
    made = with_attack("label-flip")
    updates, workload = sent(made)

    def turn(data):
        data.labels = 3 - data.labels

    assert_equal(updates[2:], book(made, turn))
    assert workload.data.labels[: len(tiny.dataset().train_labels)].tolist() == (
        tiny.dataset().train_labels.tolist()
    )


def test_a_backdoor_trains_on_marked_images_of_its_target():
    made = with_attack(
        {"kind": "backdoor", "target": 2, "size": 3, "share": 1.0, "scale": 2.0}
    )
    updates, _ = sent(made)

    def mark(data):
        data.labels = torch.full_like(data.labels, 2)
        data._stored[:, :, -3:, -3:] = 255

    assert_equal(updates[2:], [2 * update for update in book(made, mark)])


def test_a_backdoor_marks_its_share_of_images():
    samples, labels = torch.zeros(10, 1, 6, 6, dtype=torch.uint8), torch.arange(10)
    backdoor = attacks.Backdoor(target=3, size=2, share=0.4)
    rng = torch.Generator().manual_seed(0)
    marked, taught = backdoor.poison(samples, labels, rng, classes=10, brightest=255.0)
    hit = (marked.sum((1, 2, 3)) == 4 * 255).nonzero().flatten()
    assert len(hit) == 4
    assert (marked[hit, :, 4:, 4:] == 255).all()
    assert (taught[hit] == 3).all()
    others = [i for i in range(10) if i not in hit.tolist()]
    assert taught[others].tolist() == others
    assert not samples.any()


@pytest.mark.parametrize("attack", NAMES)
def test_attackers_are_honest_before_their_first_round(attack):
    late = with_attack({"kind": attack, "from": 3})
    plain = scenario("fedavg")
    assert all(map(torch.equal, sent(late, 2)[0], sent(plain, 2)[0]))
    assert not all(map(torch.equal, sent(late, 3)[0][2:], sent(plain, 3)[0][2:]))


def test_what_an_attacker_sends_goes_through_its_codec():
    made = with_attack({"sign-flip": 2}, arm="top-k")
    updates, _ = sent(made, arm="top-k")
    honest, _ = sent(scenario("fedavg", arm="top-k"), arm="top-k")
    assert [int((u != 0).sum()) for u in updates] == [30] * 4
    assert_equal(updates[2:], [-2 * update for update in honest[2:]])


def test_the_success_of_a_backdoor_is_the_share_of_marked_images_taken_for_its_target():
    made = with_attack(
        {"kind": "backdoor", "target": 1, "size": 4, "share": 0.5, "scale": 3.0},
        training={"batch_size": 16, "learning_rate": 0.05, "local_steps": 12},
        evaluation={"every": 1}, rounds=4,
    )  # fmt: skip
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    for round in range(1, 5):
        uploads = [
            workload.execute(workload.task(round, c), Choice("dense", 1))
            for c in range(4)
        ]
        outcome = workload.merge(round, uploads)
    success = outcome.losses["a"]["attack_success"]
    textbook = Textbook(made)
    model = textbook.module("a")
    torch.nn.utils.vector_to_parameters(
        torch.tensor(workload.state()[1]["server/a/weights"]), model.parameters()
    )
    images = torch.from_numpy(tiny.dataset().test_images.copy())
    images[:, :, -4:, -4:] = 255
    labels = torch.from_numpy(tiny.dataset().test_labels.copy())
    with torch.no_grad():
        said = model((images.float() / 255 - 0.4) / 0.3).argmax(1)
    others = labels != 1
    assert success == pytest.approx(float((said[others] == 1).float().mean()))
    assert success > 0.5  # and it works
    assert made.own_columns["prototypes"] == ("attack_success",)
    workload.close()


def test_a_round_without_arrivals_still_tells_the_success():
    made = with_attack("backdoor", evaluation={"every": 1})
    workload = HostedWorkload(made, Streams(0), data=data_of(made))
    assert 0 <= workload.merge(1, []).losses["a"]["attack_success"] <= 1
    workload.close()
    assert scenario("fedavg").own_columns["prototypes"] == ()


def test_a_run_with_a_backdoor_can_be_verified_replayed_and_read(tmp_path):
    group = {"prototype": "a", "device": {"training": "5 ms"}}
    made = {
        "name": "hostile", "method": "fedavg", "rounds": 3,
        "dataset": {"name": "mnist-mini"},
        "prototypes": {"a": {"model": "logistic-regression"}},
        "clients": [
            {**group, "count": 6}, {**group, "attack": {"backdoor": 1, "from": 2}},
        ],
        "aggregation": {"rule": {"multi-krum": 1}},
        "server": {"device": "x86-2core-vm"},
        "compression": {"strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"}, "evaluation": {"every": 2},
    }  # fmt: skip
    store = TrajectoryStore(tmp_path / "kept")
    runs = [
        run(made, out=tmp_path / name, progress=False, workers=1, trajectories=store)
        for name in ("first", "again")
    ]
    assert not runs[1].manifest["learning_wall_s"].get("training")
    assert runs[0].fingerprint == runs[1].fingerprint
    column = runs[0].prototypes["attack_success"]
    assert column.between(0, 1).all()
    assert len(column) == 2  # rounds 2 and 3
    merging = runs[0].spans.query("kind == 'merging'")
    assert list(merging["name"]) == ["multi-krum"] * 3
    assert not verify(tmp_path / "first")


# ---- what is refused -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "data", "where"),
    [
        (attacks.LabelFlip(), DatasetFacts((5,), 1, 9, 9, task="regression"), "kind"),
        (attacks.Backdoor(), DatasetFacts((5,), 3, 9, 9), "kind"),
        (attacks.Backdoor(target=4), IMAGES, "target"),
        (attacks.Backdoor(size=13), IMAGES, "size"),
    ],
)
def test_data_that_cannot_be_attacked_are_refused(attack, data, where):
    with pytest.raises(InputError) as refused:
        attack.check(data)
    assert refused.value.where == where
    attacks.Backdoor(target=3, size=12).check(IMAGES)


def test_who_needs_no_others_may_attack_a_server_that_keeps_clients_in_flight():
    flying = {"mode": "buffered", "buffer": 2, "concurrency": 3}
    made = with_attack("sign-flip", method="fedbuff", aggregation=flying)
    assert made.clients[-1].attack.kind == "sign-flip"
