"""Text: the shipped sets, next characters as a task, and all averaging methods and
codecs on it.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import simfed
from simfed import InputError, InputErrors
from simfed.ground.registry import register, registry
from simfed.learn.catalogue import dataset_facts
from simfed.learn.data import SOTU, TEXT_MINI, Dataset, load_dataset
from simfed.learn.data.fetch import get
from simfed.learn.data.texts import ALPHABET, PublishedTexts, number_characters
from simfed.learn.models import CausalTransformer, CharLSTM
from simfed.learn.objective import NextToken
from simfed.verify.run import verify


class TinyLSTM(CharLSTM):
    embedding, hidden = 2, 4


class TinyTransformer(CausalTransformer):
    width, depth, heads = 8, 1, 2


def tiny_text() -> Dataset:
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


@pytest.fixture(autouse=True, scope="module")
def _parts():
    kinds = {
        "dataset": {"tiny-text": tiny_text},
        "model": {"tiny-lstm": TinyLSTM, "tiny-transformer": TinyTransformer},
    }
    for kind, parts in kinds.items():
        for name, part in parts.items():
            register(kind, name, part)
    yield
    for kind, parts in kinds.items():
        for name in parts:
            registry(kind)._added.pop(name)


def world(**changes):
    plain = {
        "name": "text",
        "method": "fedavg",
        "rounds": 2,
        "dataset": {"name": "tiny-text", "partition": {"kind": "natural"}},
        "prototypes": {"lm": {"model": "tiny-lstm"}},
        "clients": [
            {
                "count": 3,
                "prototype": "lm",
                "device": {"assume": {"training": "1 ms", "compression": "1 ms"}},
                "link": {"up": "1 Mbps", "down": "1 Mbps"},
            }
        ],
        "training": {"batch_size": 4, "learning_rate": 0.5, "local_steps": 2},
        "compression": {"k": 20, "strategies": ["dense"]},
        "policy": {"kind": "uniform", "strategy": "dense"},
        "evaluation": {"every": 1, "clients": True},
    }
    return simfed.load_scenario, plain | changes


def run(tmp_path, out=None, **changes):
    load, plain = world(**changes)
    path = tmp_path / "text.yaml"
    path.write_text(json.dumps(plain))
    return simfed.run(load(path), out=out, workers=1, progress=False)


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
    from dataclasses import replace
    from hashlib import sha256

    from simfed.learn.data.store import PublishedFile

    content = json.dumps({"X": "All was well. " * 80}).encode()
    (tmp_path / "texts.json").write_bytes(content)
    monkeypatch.setenv("SIMFED_DATA", str(tmp_path / "data"))
    file = PublishedFile(sha256(content).hexdigest(), len(content))
    small: PublishedTexts = replace(SOTU, files={"texts.json": file})
    get(small, source=tmp_path)
    assert small().owners == ("X",)
    with pytest.raises(InputError, match="SHA-256"):
        get(
            replace(small, files={"texts.json": PublishedFile("0" * 64, len(content))}),
            source=tmp_path,
        )


def test_characters_have_numbers_and_others_are_named():
    assert number_characters("\n ~", "here").tolist() == [0, 1, 95]
    with pytest.raises(InputError, match="here, character 2: got 'é'"):
        number_characters("né", "here")


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
    assert NextToken().measure(math.log(8)) == pytest.approx(8)
    assert NextToken().measure(1e9) == math.inf
    assert math.isnan(NextToken().measure(math.nan))
    right, losses = NextToken().each(outputs.detach(), targets)
    assert losses.mean().item() == pytest.approx(expected.item(), rel=1e-6)
    assert right.mean().item() == pytest.approx(
        (outputs.argmax(2) == targets).float().mean().item()
    )


def test_a_model_learns_to_count(tmp_path):
    result = run(
        tmp_path,
        tmp_path / "run",
        rounds=6,
        training={
            "batch_size": 6,
            "learning_rate": 0.05,
            "local_steps": 10,
            "optimizer": "adam",
        },
    )
    tested = result.prototypes
    assert tested.test_accuracy.iloc[-1] > 0.9  # right next characters
    assert np.allclose(tested.test_measure, np.exp(tested.test_loss))  # perplexity
    assert tested.test_measure.iloc[0] > 2 > tested.test_measure.iloc[-1]
    assert result.manifest["measure"] == {"name": "perplexity", "better": "lower"}
    assert result.summary["measure"]["lm"]["best"] == tested.test_measure.min()
    assert verify(tmp_path / "run") == []
    clients = result.clients
    first = clients[clients["round"] == 1]
    assert first.own_loss.nunique() == 3  # each on its owner's test texts
    assert np.allclose(first.own_measure, np.exp(first.own_loss))
    assert first.loss.nunique() == 1


AVERAGING = [
    name
    for name in registry("method").names()
    if not registry("method").get(name).needs_classes
]


@pytest.mark.parametrize("method", AVERAGING)
@pytest.mark.parametrize("model", ["tiny-lstm", "tiny-transformer"])
def test_every_method_without_classes_learns_text(tmp_path, method, model):
    modes = {
        "fedasync": {"mode": "asynchronous", "concurrency": 2},
        "fedbuff": {"mode": "buffered", "buffer": 2, "concurrency": 3},
    }
    more = {"aggregation": modes[method]} if method in modes else {}
    result = run(tmp_path, method=method, prototypes={"lm": {"model": model}}, **more)
    assert np.isfinite(result.prototypes.test_loss.dropna()).all()


MATRICES = ("powersgd", "bf16", "qsgd")
"""Codecs that are tried on the transformer; the others are on the LSTM."""


@pytest.mark.parametrize("codec", registry("codec").names())
def test_every_codec_carries_models_of_text(tmp_path, codec):
    lstm, transformer = {"model": "tiny-lstm"}, {"model": "tiny-transformer"}
    group = world()[1]["clients"][0]
    result = run(
        tmp_path,
        rounds=1,
        prototypes={"lm": transformer if codec in MATRICES else lstm},
        clients=[{**group, "count": 2}],
        compression={"k": 20, "strategies": [codec]},
        policy={"kind": "uniform", "strategy": codec},
    )
    assert np.isfinite(result.prototypes.test_loss.dropna()).all()


def test_methods_of_classes_and_models_of_numbers_refuse_text(tmp_path):
    with pytest.raises(InputErrors, match="fedkd compares classes") as error:
        run(tmp_path, method="fedkd")
    assert "a method without classes for a next-token task" in str(error.value)
    with pytest.raises((InputError, InputErrors), match="model lenet5 takes numbers"):
        run(tmp_path, prototypes={"lm": {"model": "lenet5"}})
    with pytest.raises((InputError, InputErrors), match="no classes"):
        run(tmp_path, dataset={"name": "tiny-text", "partition": {"kind": "dirichlet"}})
