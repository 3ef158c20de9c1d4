"""Attackers: what each sends against a few lines written out, and what a run makes of
it.
"""

from statistics import NormalDist

import engine_worlds as tiny
import numpy as np
import pytest
import torch
from engine_worlds import Host
from textbook import Textbook, answers, assert_same, flat, scenario, with_weights

from simfed.ground.registry import registry
from simfed.learn import attacks

NAMES = registry("attack").names()


def with_attack(attack, **changes):
    """Two honest clients and, of the highest ids, two hostile ones.

    Several steps on all data.
    """
    groups = [{"count": 2}, {"count": 2, "attack": attack}]
    return scenario("fedavg", clients=groups, client_order="grouped", **changes)


def sent(made, rounds=1, arm="dense"):
    """What each client sends in the last of these rounds."""
    host = Host(made)
    for round in range(1, rounds):
        host.play(round)
    return host.sent(rounds, arm=arm, k=30)


@pytest.fixture(scope="module")
def honest():
    """The updates of the first round without attackers."""
    return sent(scenario("fedavg"))


def assert_equal(one, other):
    for mine, theirs in zip(one, other, strict=True):
        assert_same(mine, theirs, 1e-6, 1e-7)


def test_sign_flip_turns_its_own_update_around(honest):
    updates = sent(with_attack({"sign-flip": 3}))
    assert_equal(updates[2:], [-3 * update for update in honest[2:]])


def test_gaussian_noise_is_as_long_as_it_says_and_keyed_by_client_and_round(honest):
    updates = sent(with_attack({"gaussian": 5}))
    for update, clean in zip(updates[2:], honest[2:], strict=True):
        assert update.norm() / clean.norm() == pytest.approx(5, rel=0.15)
        assert abs(torch.corrcoef(torch.stack([update, clean]))[0, 1]) < 0.2
    assert abs(torch.corrcoef(torch.stack(updates[2:]))[0, 1]) < 0.2
    assert all(map(torch.equal, updates, sent(with_attack({"gaussian": 5}))))


@pytest.mark.parametrize(("n", "m"), [(50, 5), (50, 24), (25, 11), (10, 1), (7, 7)])
def test_alie_stays_within_what_a_majority_supports(n, m):
    rows = np.random.default_rng(0).normal(size=(m, 6)).astype(np.float32)
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m) if n > m else 1.0
    z = NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
    expected = rows.mean(0) - z * rows.std(0)
    agreed = attacks.Alie().agree(torch.from_numpy(rows), n).numpy()
    np.testing.assert_allclose(agreed, expected, rtol=1e-5, atol=1e-6)


def test_colluding_attackers_send_what_comes_of_the_updates_of_all_of_them(honest):
    clean = torch.stack(honest[2:])
    alie = sent(with_attack({"alie": 1.5}))
    assert_equal(alie[2:], [clean.mean(0) - 1.5 * clean.std(0, correction=0)] * 2)
    ipm = sent(with_attack({"ipm": 0.7}))
    assert_equal(ipm[2:], [-0.7 * clean.mean(0)] * 2)


def test_attackers_of_two_kinds_agree_among_their_own(honest):
    clients = [{"attack": attack} for attack in (None, "ipm", "alie", "ipm")]
    updates = sent(scenario("fedavg", clients=clients, client_order="grouped"))
    mean = (honest[1] + honest[3]) / 2
    assert_equal([updates[1], updates[3]], [-0.5 * mean] * 2)
    assert_equal([updates[2]], [honest[2]])  # alone it has no deviation


def by_the_book(made, change):
    """What clients that train on changed data send, written with PyTorch."""
    book = Textbook(made)
    change(book.data)
    model = book.module("a")
    return [flat(model) - flat(book.trained(model, client, 1)) for client in (2, 3)]


def test_label_flip_trains_on_labels_that_are_turned_around():
    made = with_attack("label-flip")

    def turn(data):
        data.labels = 3 - data.labels

    assert_equal(sent(made)[2:], by_the_book(made, turn))


def test_a_backdoor_trains_on_marked_images_of_its_target():
    made = with_attack(
        {"kind": "backdoor", "target": 2, "size": 3, "share": 1.0, "scale": 2.0}
    )

    def mark(data):
        data.labels = torch.full_like(data.labels, 2)
        data._stored[:, :, -3:, -3:] = 255

    expected = [2 * update for update in by_the_book(made, mark)]
    assert_equal(sent(made)[2:], expected)


def test_a_backdoor_marks_its_share_of_images():
    samples, labels = torch.zeros(10, 1, 6, 6, dtype=torch.uint8), torch.arange(10)
    backdoor = attacks.Backdoor(target=3, size=2, share=0.4)
    rng = torch.Generator().manual_seed(0)
    marked, taught = backdoor.poison(samples, labels, rng, classes=10, brightest=255.0)
    hit = marked.sum((1, 2, 3)) > 0
    assert hit.sum() == 4
    expected = torch.zeros(4, 1, 6, 6)
    expected[..., 4:, 4:] = 255
    assert torch.equal(marked[hit].float(), expected)
    assert torch.equal(taught, torch.where(hit, 3, labels))


@pytest.mark.parametrize("attack", NAMES)
def test_attackers_are_honest_before_their_first_round(attack):
    late = with_attack({"kind": attack, "from": 3})
    plain = scenario("fedavg")
    assert all(map(torch.equal, sent(late, 2), sent(plain, 2)))
    assert not all(map(torch.equal, sent(late, 3)[2:], sent(plain, 3)[2:]))


def test_what_an_attacker_sends_goes_through_its_codec():
    updates = sent(with_attack({"sign-flip": 2}, arm="top-k"), arm="top-k")
    honest = sent(scenario("fedavg", arm="top-k"), arm="top-k")
    assert [int((u != 0).sum()) for u in updates] == [30] * 4
    assert_equal(updates[2:], [-2 * update for update in honest[2:]])


def test_the_success_of_a_backdoor_is_the_share_of_marked_images_taken_for_its_target():
    made = with_attack(
        {"kind": "backdoor", "target": 1, "size": 4, "share": 0.5, "scale": 3.0},
        training={"batch_size": 16, "learning_rate": 0.05, "local_steps": 12},
        evaluation={"every": 1},
    )
    host, book = Host(made), Textbook(made)
    assert 0 <= host.merge(1, []).losses["a"]["attack_success"] <= 1  # nobody came
    for round in range(1, 5):
        outcome = host.play(round)
    success = outcome.losses["a"]["attack_success"]
    data = tiny.dataset()
    images = torch.from_numpy(data.test_images[data.test_labels != 1])
    images[:, :, -4:, -4:] = 255
    model = with_weights(book.module("a"), host.array("server/a/weights"))
    said = answers(model, (images.float() / 255 - 0.4) / 0.3).argmax(1)
    assert success == pytest.approx((said == 1).float().mean().item())
    assert success > 0.5  # and it works
    assert made.own_columns["prototypes"] == ("attack_success",)
    assert scenario("fedavg").own_columns["prototypes"] == ()
