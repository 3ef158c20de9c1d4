"""Balanced accuracy, AUC and recall per class: by hand, by others' code, everywhere."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.stats import mannwhitneyu
from worlds import play, world

import simfed
from simfed import InputError
from simfed.explore.glance import Glance
from simfed.ground import Streams
from simfed.ground.measure import CLASS_MEASURES
from simfed.learn import Classification, load_federation
from simfed.learn.apart_checks import read_rows
from simfed.learn.objective import count_by_class
from simfed.record.schema import measure_columns
from simfed.report import build_page, frames
from simfed.verify import find_broken

ALL = ["balanced-accuracy", "accuracy", "auc", "recall"]


def draw(samples, seed, classes=4):
    """Logits with ties, and labels of all classes but the last."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.integers(-2, 3, (samples, classes))).float()
    return logits, torch.from_numpy(rng.integers(0, classes - 1, samples))


def test_measures_by_hand_with_a_class_that_the_test_set_lacks():
    # classes 0, 0, 1, 1, 1, and nothing of class 2
    logits = torch.tensor([[3.0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 0, 9], [1, 0, 0]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    by_class = count_by_class(logits, labels, 3, ranks=True)
    assert by_class[:2].tolist() == [[2, 3, 0], [1, 1, 0]]
    # class 0: 0.909 before all three; 0.212 before 0.107 and 0.0001, behind 0.576
    # class 1: 0.787 before both, 0.0001 behind both, 0.212 before one
    assert by_class[2, :2].tolist() == [pytest.approx(5 / 6), pytest.approx(3 / 6)]
    values = Classification(tuple(ALL)).measures(0.4, 1.0, by_class)
    assert list(values) == [
        "balanced_accuracy", "accuracy", "auc", "recall_0", "recall_1", "recall_2",
    ]  # fmt: skip
    assert values["balanced_accuracy"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert values["auc"] == pytest.approx((5 / 6 + 3 / 6) / 2)
    assert (values["recall_0"], values["recall_2"]) == (0.5, None)


@pytest.mark.parametrize("seed", range(5))
def test_auc_is_that_of_mann_and_whitney(seed):
    logits, labels = draw(120, seed)
    shares = logits.double().softmax(1).numpy()
    aucs = count_by_class(logits, labels, 4, ranks=True)[2].tolist()
    for label, auc in enumerate(aucs):
        own = labels.numpy() == label
        if not own.any():
            assert np.isnan(auc)
            continue
        pairs = mannwhitneyu(shares[own, label], shares[~own, label]).statistic
        assert auc == pytest.approx(pairs / (own.sum() * (~own).sum()))


@pytest.mark.measures
@pytest.mark.parametrize("seed", range(5))
def test_measures_are_those_of_scikit_learn(seed):
    from sklearn import metrics

    logits, labels = draw(200, seed)
    labels[:4] = torch.arange(4)  # it knows no AUC of a class without samples
    shares, guesses = logits.double().softmax(1), logits.argmax(1)
    by_class = count_by_class(logits, labels, 4, ranks=True)
    values = Classification(tuple(ALL)).measures(0.0, 0.0, by_class)
    auc = metrics.roc_auc_score(labels, shares, multi_class="ovr", average="macro")
    assert values["auc"] == pytest.approx(auc)
    balanced = metrics.balanced_accuracy_score(labels, guesses)
    assert values["balanced_accuracy"] == pytest.approx(balanced)
    recalls = metrics.recall_score(labels, guesses, average=None)
    assert [values[f"recall_{c}"] for c in range(4)] == pytest.approx(list(recalls))


def test_scores_that_are_no_numbers_count_least():
    logits, labels = torch.full((4, 2), torch.nan), torch.tensor([0, 0, 1, 1])
    logits[0] = torch.tensor([1.0, 0.0])
    auc = count_by_class(logits, labels, 2, ranks=True)[2]
    assert auc.tolist() == [0.75, 0.25]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run with all measures."""
    made = world("two", evaluation={"every": 1, "measures": ALL})
    return play(made, tmp_path_factory.mktemp("run") / "run")


def test_the_first_is_what_everything_follows_and_the_rest_stays_as_it_was(measured):
    run = measured
    tested = run.prototypes
    recalls = tested[[f"test_recall_{c}" for c in range(10)]]
    assert np.allclose(recalls.mean(axis=1), tested.test_balanced_accuracy)
    # as many of each class in this test set
    assert np.allclose(tested.test_balanced_accuracy, tested.test_accuracy)
    assert tested.test_auc.between(0.3, 1).all()
    assert run.measure == CLASS_MEASURES["balanced-accuracy"]
    assert [one.key for one in run.measures] == ["balanced_accuracy", "accuracy", "auc"]
    last = tested[tested["prototype"] == "a"].iloc[-1]
    final = run.summary["balanced_accuracy"]["a"]["final"]
    assert final == last.test_balanced_accuracy
    tidy = frames.curves(run)
    assert tidy.columns[6:9].tolist() == ["balanced_accuracy", "accuracy", "auc"]
    page = build_page([run])
    assert "When each balanced accuracy was reached" in page
    assert "test AUC" in page
    plain = play(world("two", evaluation={"every": 1}))
    assert plain.prototypes.equals(tested[plain.prototypes.columns])
    assert plain.participations.equals(run.participations)


def test_verify_checks_the_columns(measured):
    run = measured
    rows = run.table("prototypes").to_pandas()
    for changes, sentence in (
        ({"test_auc": 1.5}, "have a test_auc outside of 0 to 1"),
        ({"test_recall_3": -0.1}, "have a test_recall_3 outside of 0 to 1"),
        ({"test_balanced_accuracy": 0.99}, "that is not the mean of their recalls"),
        ({"test_auc": None}, "the column 'test_auc' is missing"),
    ):
        forged = simfed.load_run(run.path)
        wrong = rows.assign(**changes).dropna(axis=1, how="all")
        forged._tables["prototypes"] = pa.Table.from_pandas(wrong)
        assert any(sentence in said for said in find_broken(forged, clock=False))


def test_clients_with_models_of_their_own_have_columns_too(tmp_path):
    made = world(
        "tiny",
        method="local-only",
        **{"dataset.partition": {"kind": "dirichlet", "alpha": 0.1}},
        training={"learning_rate": 0.1, "local_epochs": 1},
        evaluation={"every": 1, "measures": ["auc", "balanced-accuracy", "recall"]},
    )
    run = play(made, tmp_path)
    recalls = run.clients[[f"recall_{c}" for c in range(10)]]
    assert np.allclose(recalls.mean(axis=1), run.clients.balanced_accuracy)
    assert (recalls.std(axis=1) > 0.1).all()  # each knows its own classes
    means = run.clients.groupby("round")[["auc", "recall_3"]].mean()
    assert np.allclose(means, run.prototypes[["test_auc", "test_recall_3"]])
    assert run.measure.name == "AUC"


@pytest.mark.parametrize("measures", [["accuracy", "auc"], ["auc"]], ids=str)
def test_a_client_that_lies_about_its_measures_is_not_believed(measures):
    made = world("two", evaluation={"measures": measures})
    data = load_federation(made, Streams(0))
    counts = torch.bincount(data.test_labels).double()
    rows = torch.stack([counts, counts / 2, torch.full((10,), 0.5)]).repeat(1, 2)
    assert torch.equal(read_rows(rows.numpy(), data), rows)
    for row, column, value in ((2, 15, 1.5), (1, 15, 1e6), (0, 15, 1.0)):
        wrong = rows.clone()
        wrong[row, column] = value
        with pytest.raises(InputError):
            read_rows(wrong.numpy(), data)
    with pytest.raises(InputError):
        read_rows(rows[:, :10].numpy(), data)


def test_the_curve_of_a_look_is_the_measures():
    own = measure_columns(["auc"])
    glance = Glance(None, "test_auc", own)
    glance.prototypes.append((1, "a", None, 0.5, 2.0, 0.75))
    glance.settle()
    assert glance.curve == {"a": [(1, 0.75)]}
