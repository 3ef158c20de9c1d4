"""Honest runs stand, whatever their task, and however far their training has gone
astray.
"""

import json

import numpy as np
import pytest
import torch
from forging import Forgery

import simfed
from simfed import InputError, RunFailed
from simfed.cli import main
from simfed.learn import Classification, NextToken
from simfed.verify import verify

SEEN = np.random.default_rng(0).normal(size=(120, 2))
DEVICE = {
    "training": "1 s", "compression": "50 ms", "inference": "1 ms", "auxiliary": "1 ms",
}  # fmt: skip
LINK = {"up": "1 Mbps", "down": "1 Mbps"}
CLIENTS = {"count": 3, "prototype": "p", "device": DEVICE, "link": LINK}
PRICES = {"table": "prices.csv", "target": "price", "task": "regression"}
MARKS = {"table": "marks.csv", "target": "mark"}


def play(folder, time_only=False, **changes):
    """A run of linear models on 120 rows."""
    for name, target in (
        ("price", lambda x, y: 100 + 20 * x - 10 * y),
        ("mark", lambda x, y: x > -y),
    ):
        rows = [f"{x},{y},{target(x, y)}" for x, y in SEEN]
        (folder / f"{name}s.csv").write_text("\n".join([f"a,b,{name}", *rows]))
    plain = {
        "name": "honest", "rounds": 1, "method": "fedavg", "dataset": MARKS,
        "prototypes": {"p": {"model": "logistic-regression"}},
        "clients": [CLIENTS],
        "training": {"batch_size": 8, "learning_rate": 0.1},
        "compression": {"k": 3, "strategies": ["top-k", "random-k"]},
        "policy": {"kind": "ascend", "warmup": 1},
        "evaluation": {"every": 1, "clients": True},
        **changes,
    }  # fmt: skip
    (folder / "honest.yaml").write_text(json.dumps(plain))
    options = {"workers": 1, "progress": False, "time_only": time_only}
    return simfed.run(folder / "honest.yaml", folder / "run", **options)


def diverging(rate):
    """The largest steps that single precision holds."""
    return {"batch_size": 8, "local_steps": 1, "learning_rate": rate}


@pytest.mark.parametrize(
    ("column", "changes", "is_there"),
    [
        (
            "test_accuracy",
            {"dataset": PRICES, "training": diverging(1e3)},
            lambda r2: r2 < 0,
        ),
        (
            "test_loss",
            {"dataset": PRICES, "training": diverging(8e37), "method": "local-only"},
            np.isinf,
        ),
        (
            "test_loss",
            {"training": diverging(3.3e38), "method": "local-only"},
            np.isnan,
        ),
        ("local_loss", {"dataset": PRICES, "training": diverging(2e37)}, np.isinf),
    ],
)
def test_a_run_stands_whatever_its_losses(tmp_path, column, changes, is_there):
    run = play(tmp_path, **changes)
    table = run.participations if column == "local_loss" else run.prototypes
    assert is_there(table[column]).any()
    assert verify(run.path) == []


@pytest.mark.parametrize("task", [PRICES, MARKS], ids=["regression", "classes"])
def test_a_run_of_personal_models_stands_where_nobody_has_one(tmp_path, task):
    clients = [{**CLIENTS, "failure": {"training": 1}}]
    keys = {"policy": {"kind": "uniform", "strategy": "top-k"}, "clients": clients}
    run = play(tmp_path, method="local-only", dataset=task, **keys)
    assert not len(run.clients)
    assert verify(run.path) == []


def test_a_run_with_an_unknown_word_is_reported_in_one_sentence(tmp_path, capsys):
    def change(draft):
        words = draft.values("participations", "outcome")
        draft.set("participations", "outcome", ["lost", *words[1:]])

    out = Forgery("outcome", change).of(play(tmp_path).path, tmp_path / "forged")
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 2
    assert "outcome: 'lost' is none of " in capsys.readouterr().err
    assert "outcome of 1 rows is not what playing again comes to" in verify(out)[0]


def test_a_student_that_diverged_is_said_in_one_sentence(tmp_path):
    with pytest.raises(
        RunFailed, match="update has values that are not finite numbers: the learn"
    ):
        play(
            tmp_path,
            method="fedkd-mutual",
            training={**diverging(1e10), "local_steps": 3},
        )


@pytest.mark.parametrize("objective", [Classification(), NextToken()])
def test_a_cross_entropy_has_an_end(objective):
    most = torch.finfo(torch.float32).max
    outputs = torch.tensor([[-most, most], [1.0, 2.0], [torch.inf, -torch.inf]])
    targets = torch.zeros(3, dtype=torch.int64)
    if isinstance(objective, NextToken):
        outputs, targets = outputs[:, None], targets[:, None]
    _, losses = objective.each(outputs, targets)
    assert losses[0] == pytest.approx(2 * most)
    assert losses[1] == pytest.approx(np.log(1 + np.e))
    assert losses[2].isnan()


def test_a_refused_run_leaves_the_threads_of_pytorch_alone(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def refuse(*_):
        raise InputError("another scenario")

    monkeypatch.setattr("simfed.learn.hosted.HeldModels", refuse)
    try:
        with pytest.raises(InputError):
            play(tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
