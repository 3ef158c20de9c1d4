"""Honest runs stand, whatever their task, and however far their training has gone
astray.
"""

import json

import numpy as np
import pytest
import torch
import worlds
import yaml
from forging import Forgery

from simfed import InputError, RunFailed
from simfed.cli import main
from simfed.learn import Classification, NextToken
from simfed.verify import verify

SEEN = np.random.default_rng(0).normal(size=(120, 2))
PLAIN = """
rounds: 1
dataset: {table: marks.csv, target: mark}
prototypes: {p: {model: logistic-regression}}
clients:
- count: 3
  prototype: p
  device: {training: 1 s, compression: 50 ms, inference: 1 ms, auxiliary: 1 ms}
training: {batch_size: 8, learning_rate: 0.1}
compression: {k: 3, strategies: [top-k, random-k]}
policy: {kind: ascend, warmup: 1}
evaluation: {every: 1, clients: true}
"""
PRICES = {"table": "prices.csv", "target": "price", "task": "regression"}


def play(folder, **changes):
    """A run of linear models on 120 rows."""
    for name, target in (
        ("price", lambda x, y: 100 + 20 * x - 10 * y),
        ("mark", lambda x, y: x > -y),
    ):
        rows = [f"{x},{y},{target(x, y)}" for x, y in SEEN]
        (folder / f"{name}s.csv").write_text("\n".join([f"a,b,{name}", *rows]))
    plain = {**worlds.TINY, **yaml.safe_load(PLAIN), **changes}
    (folder / "s.yaml").write_text(json.dumps(plain))
    return worlds.play(folder / "s.yaml", folder / "run")


def diverging(rate, steps=1):
    """The largest steps that single precision holds."""
    return {"training": {"batch_size": 8, "local_steps": steps, "learning_rate": rate}}


FAILING = {"failure": {"training": 1}}
LOCAL, OF_PRICES = {"method": "local-only"}, {"dataset": PRICES}


@pytest.mark.parametrize(
    ("column", "changes", "is_there"),
    [
        ("test_accuracy", diverging(1e3) | OF_PRICES, lambda r2: r2 < 0),
        ("test_loss", diverging(8e37) | OF_PRICES | LOCAL, np.isinf),
        ("test_loss", diverging(3.3e38) | LOCAL, np.isnan),
        ("local_loss", diverging(2e37) | OF_PRICES, np.isinf),
    ],
)
def test_run_stands_whatever_its_losses(tmp_path, column, changes, is_there):
    run = play(tmp_path, **changes)
    table = run.participations if column == "local_loss" else run.prototypes
    assert is_there(table[column]).any()
    assert verify(run.path) == []


@pytest.mark.parametrize("changes", [OF_PRICES, {}])
def test_run_of_personal_models_stands_where_nobody_has_one(tmp_path, changes):
    [group] = yaml.safe_load(PLAIN)["clients"]
    keys = {"policy": worlds.TINY["policy"], "clients": [{**group, **FAILING}]}
    run = play(tmp_path, **changes, **keys, **LOCAL)
    assert not len(run.clients)
    assert verify(run.path) == []


def test_run_with_an_unknown_word_is_reported_in_one_sentence(tmp_path, capsys):
    def change(draft):
        words = draft.values("participations", "outcome")
        draft.set("participations", "outcome", ["lost", *words[1:]])

    out = Forgery("outcome", change).of(play(tmp_path).path, tmp_path / "forged")
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 2
    assert "outcome: 'lost' is none of " in capsys.readouterr().err
    assert "outcome of 1 rows is not what playing again comes to" in verify(out)[0]


def test_student_that_diverged_is_said_in_one_sentence(tmp_path):
    said = "update has values that are not finite numbers: the learn"
    with pytest.raises(RunFailed, match=said):
        play(tmp_path, method="fedkd-mutual", **diverging(1e10, steps=3))


@pytest.mark.parametrize("objective", [Classification(), NextToken()])
def test_cross_entropy_has_an_end(objective):
    most = torch.finfo(torch.float32).max
    outputs = torch.tensor([[-most, most], [1.0, 2.0], [torch.inf, -torch.inf]])
    targets = torch.zeros(3, dtype=torch.int64)
    if isinstance(objective, NextToken):
        outputs, targets = outputs[:, None], targets[:, None]
    _, losses = objective.each(outputs, targets)
    assert losses[0] == pytest.approx(2 * most)
    assert losses[1] == pytest.approx(np.log(1 + np.e))
    assert losses[2].isnan()


def test_refused_run_leaves_the_threads_of_pytorch_alone(
    tmp_path, monkeypatch, one_thread
):
    def refuse(*_):
        raise InputError("another scenario")

    torch.set_num_threads(2)
    monkeypatch.setattr("simfed.learn.hosted.HeldModels", refuse)
    with pytest.raises(InputError):
        play(tmp_path)
    assert torch.get_num_threads() == 2
