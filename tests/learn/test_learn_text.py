"""Text: the shipped sets, next characters as a task, and all averaging methods and
codecs on it.
"""

import json
import math
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from worlds import play, world

from simfed.ground.registry import registry
from simfed.learn import (
    Dataset,
    NextToken,
    PublishedFile,
    dataset_facts,
    get,
    load_dataset,
)
from simfed.learn.data import SOTU, TEXT_MINI
from simfed.learn.data.texts import ALPHABET, number_characters
from simfed.learn.models import CausalTransformer, CharLSTM


class TinyLSTM(CharLSTM):
    embedding, hidden = 2, 4


class TinyTransformer(CausalTransformer):
    width, depth, heads = 8, 1, 2


def tiny_text():
    """Four owners who count up, each from another digit: 24 training and 8 test texts
    of 6.
    """
    codes = (np.arange(32)[:, None] + np.arange(7)) % 5
    samples, following = codes[:, :-1].astype(np.int16), codes[:, 1:]
    return Dataset(
        samples[:24],
        following[:24],
        samples[24:],
        following[24:],
        classes=5,
        task="next-token",
        train_owners=np.arange(24) % 4,
        test_owners=np.arange(8) % 4,
        owners=("a", "b", "c", "d"),
    )


@pytest.fixture(autouse=True)
def _parts(add_part):
    add_part("dataset", "tiny-text", tiny_text)
    add_part("model", "tiny-lstm", TinyLSTM)
    add_part("model", "tiny-transformer", TinyTransformer)


def run(**changes):
    natural = {"name": "tiny-text", "partition": {"kind": "natural"}}
    made = {
        "dataset": natural,
        "prototypes.a.model": "tiny-lstm",
        "clients[0].count": 3,
        "training": {"batch_size": 4, "learning_rate": 0.5, "local_steps": 2},
        "compression": {"k": 20},
        "evaluation": {"every": 1, "clients": True},
    }
    return play(world("tiny", {**made, **changes}))


# ---- the shipped sets ----------------------------------------------------------------


def test_text_mini_comes_with_simfed_and_has_natural_owners():
    data = load_dataset("text-mini")
    assert data.facts == dataset_facts("text-mini") == TEXT_MINI.facts
    assert (len(data.owners), data.classes) == (43, len(ALPHABET))
    samples, following = data.train(np.arange(2))
    assert (samples[0, 1:] == following[0, :-1]).all()
    assert "".join(ALPHABET[c] for c in samples[0]).startswith(
        "Fellow-Citizens of the Senate"
    )
    assert data.owners[data.train_owners[0]] == "Abraham Lincoln"
    assert set(data.train_owners) == set(data.test_owners) == set(range(43))
    places = TEXT_MINI.home.glob("*")
    assert sum(place.stat().st_size for place in places) < 1_000_000
    assert "public domain" in (TEXT_MINI.home / "LICENSE.txt").read_text()


def test_the_full_texts_are_taken_from_a_folder_that_has_them(tmp_path, monkeypatch):
    content = json.dumps({"X": "All was well. " * 80}).encode()
    (tmp_path / "texts.json").write_bytes(content)
    monkeypatch.setenv("SIMFED_DATA", str(tmp_path / "data"))
    file = PublishedFile(sha256(content).hexdigest(), len(content))
    small = replace(SOTU, files={"texts.json": file})
    get(small, source=tmp_path)
    assert small().owners == ("X",)


def test_characters_have_numbers():
    assert number_characters("\n ~", "here").tolist() == [0, 1, 95]


# ---- the task ------------------------------------------------------------------------


def test_the_loss_of_next_characters_and_its_gradient_are_autograds():
    torch.manual_seed(0)
    outputs = torch.randn(3, 4, 5, requires_grad=True)
    targets = torch.randint(5, (3, 4))
    expected = torch.nn.functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten()
    )
    expected.backward()
    value, gradient = NextToken().loss(outputs.detach(), targets)
    assert value.item() == pytest.approx(expected.item())
    assert torch.allclose(gradient, outputs.grad, atol=1e-7)
    for loss, perplexity in ((math.log(8), 8), (1e9, math.inf), (math.nan, math.nan)):
        said = NextToken().measures(0.5, loss, torch.empty(3, 0))["measure"]
        assert said == pytest.approx(perplexity, nan_ok=True)
    right, losses = NextToken().each(outputs.detach(), targets)
    assert losses.mean().item() == pytest.approx(expected.item(), rel=1e-6)
    guessed = (outputs.argmax(2) == targets).float().mean()
    assert right.mean().item() == pytest.approx(guessed.item())


def test_a_model_learns_to_count():
    steps = {"batch_size": 6, "learning_rate": 0.05, "local_steps": 10}
    result = run(
        rounds=6,
        training={**steps, "optimizer": "adam"},
        policy={"kind": "uniform", "strategy": "dense"},
    )
    tested = result.prototypes
    assert tested.test_accuracy.iloc[-1] > 0.9  # right next characters
    assert np.allclose(tested.test_measure, np.exp(tested.test_loss))  # perplexity
    assert tested.test_measure.iloc[0] > 2 > tested.test_measure.iloc[-1]
    assert result.manifest["measure"] == {"name": "perplexity", "better": "lower"}
    assert result.summary["measure"]["a"]["best"] == tested.test_measure.min()
    first = result.clients[result.clients["round"] == 1]
    assert first.own_loss.nunique() == 3  # each on its owner's test texts
    assert np.allclose(first.own_measure, np.exp(first.own_loss))
    assert first.loss.nunique() == 1


AVERAGING = [
    name
    for name in registry("method").names()
    if not registry("method").get(name).needs_classes and name != "fedbn"
]
"""Methods of text; models of text have no batch norm."""
MODES = {
    "fedasync": {"mode": "asynchronous", "concurrency": 2},
    "fedbuff": {"mode": "buffered", "buffer": 2, "concurrency": 3},
}
MATRICES = ["powersgd", "svd", "layers", "qsgd"]
"""Codecs that look at the layers of a model."""


@pytest.mark.parametrize(
    ("method", "codec"),
    [*((name, "dense") for name in AVERAGING), *(("fedavg", c) for c in MATRICES)],
)
@pytest.mark.parametrize("model", ["tiny-lstm", "tiny-transformer"])
def test_methods_without_classes_and_codecs_carry_text(method, codec, model):
    strategy = {"layers": {"*": "top-k@50%"}} if codec == "layers" else codec
    changes = {"aggregation": MODES[method]} if method in MODES else {}
    if method == "fedrep":  # steps on the head are charged as inference
        changes["clients[0].device.inference"] = "1 ms"
    result = run(
        rounds=1,
        method=method,
        policy={"kind": "uniform", "strategy": strategy},
        **{"prototypes.a.model": model, **changes},
    )
    assert np.isfinite(result.prototypes.test_loss.dropna()).all()
