"""Codecs and levels in scenario files: every way of writing one, and its arms."""

import pytest
import worlds
import yaml

from simfed.cli import main
from simfed.experiment import check


def list_arms(**changes):
    made = worlds.world("tiny", changes)
    return [*map(str, made.arms_of_group(made.clients[0]))]


def list_choices(**compression):
    return [
        *map(str, worlds.world("tiny", compression=compression).compression.choices)
    ]


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ({"qsgd": {"levels": 8}}, "qsgd(8)"),
        ({"detached-ef": {"inner": "top-k"}}, "detached-ef(top-k)"),
    ],
)
def test_policy_names_a_codec_in_the_same_words(written, label):
    policy = {"kind": "uniform", "strategy": written}
    assert list_arms(policy=policy) == [label]
    assert list_arms(policy=policy, method="fedkd") == [label]


def test_strategy_may_be_one_for_each_layer():
    layers = {"conv*": "top-k @ 1 %", "*": {"qsgd": {"levels": 4}}}
    choices = list_choices(strategies=[{"layers": layers}])
    assert choices == ["layers(conv*=top-k@1%,*=qsgd(4))"]


def test_arms_are_pairs_and_a_strategy_may_name_its_own_level():
    assert list_choices() == ["top-k", "random-k", "periodic-k"]
    strategies = ["top-k", {"qsgd": {"levels": 4}}, "random-k@2%", "top-k + fp16"]
    assert list_choices(strategies=strategies, k_choices=[500, "1 %"], k=1000) == [
        "top-k@500",
        "top-k@1%",
        "qsgd(4)",
        "random-k@2%",
        "top-k+fp16@500",
        "top-k+fp16@1%",
    ]


@pytest.mark.parametrize(
    ("policy", "arms"),
    [
        ({"kind": "ucb"}, ["top-k@5", "top-k@50"]),
        ({"kind": "uniform", "strategy": "random-k@7"}, ["random-k@7"]),
        ({"kind": "adaptive-k", "least": 3, "most": 90}, ["top-k@3", "top-k@90"]),
    ],
)
def test_policies_play_what_they_name_or_what_there_is(policy, arms):
    levels = {"strategies": ["top-k"], "k_choices": [5, 50]}
    assert list_arms(compression=levels, policy=policy) == arms


def test_resolved_shows_the_arms(tmp_path, capsys):
    keys = {"compression": {"k_choices": [500, "1%"], "strategies": ["top-k", "dense"]}}
    plain = worlds.change(worlds.TINY, {**keys, "policy": {"kind": "ucb"}})
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(plain))
    assert main(["validate", str(tmp_path / "s.yaml"), "--resolved"]) == 0
    assert "# arms: top-k@500, top-k@1%, dense\n" in capsys.readouterr().out


def test_rank_may_be_that_of_the_largest_matrix():
    policy = {"policy.strategy": "svd(60)", "prototypes.a.model": "lenet5-half"}
    check(worlds.world("tiny", policy))
