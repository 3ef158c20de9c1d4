"""Scenario files: what loads, what is refused and with which sentence."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import simfed
from simfed import InputError, InputErrors
from simfed.ground.registry import registry
from simfed.scenario import (
    Scenario,
    add_line,
    apply_overrides,
    dump_scenario,
    load_scenario,
    parse_assignment,
    split_key_path,
    validate_scenario,
)
from simfed.scenario.study import load_study_file

TINY = """
name: tiny
rounds: 3
dataset: {name: mnist-mini}
prototypes: {small: {model: lenet5-half}, large: {model: lenet5}}
clients:
  - count: 2
    prototype: small
    device: d
    link: {up: 50 Mbps, down: 300 Mbps, latency: 10 ms}
  - {count: 3, prototype: large, device: {profile: d, speed: 0.5}}
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def complaints(path, overrides=()):
    with pytest.raises((InputError, InputErrors)) as caught:
        load_scenario(path, overrides)
    return str(caught.value).split("\n")


DEFAULTS = {
    "training": {"learning_rate": 0.02, "batch_size": 32, "local_steps": 1},
    "policy": {"kind": "ascend", "warmup": 5, "c": 3.0, "ema": 0.1},
    "compression": {
        "k": 1000,
        "index_code": "ideal",
        "strategies": ["top-k", "random-k", "periodic-k"],
    },
    "dataset": {"public": 256},
    "charge": {"downlink": True, "buffers": True},
    "server": {"device": None},
}
REWARD = {"rho": 0.6, "beta": 0.4, "clip": [-1.0, 1.0]}


def test_defaults_are_those_of_the_method(tiny):
    plain = load_scenario(tiny).model_dump(mode="json")
    for section, keys in DEFAULTS.items():
        assert {key: plain[section][key] for key in keys} == keys
    local_loss = plain["policy"]["reward"].pop("local_loss")
    assert plain["policy"]["reward"] == REWARD
    assert local_loss == {"data": "probe", "samples": 256, "credit": "causal"}
    assert plain["dataset"]["partition"]["alpha"] == 0.5
    assert plain["clients"][0]["link"]["up"] == "6250000.0 B/s"
    assert plain["clients"][0]["link"]["latency"] == "0.01 s"


def test_the_rollback_is_on_with_ascend_only(tiny):
    def rollback(**overrides):
        return load_scenario(tiny, overrides).safeguard.rollback

    assert rollback().threshold == 2.0
    assert rollback().max_consecutive == 1
    assert rollback(policy={"kind": "exp3"}) is None
    assert rollback(policy={"kind": "uniform", "strategy": "top-k"}) is None
    assert rollback(**{"safeguard.rollback": None}) is None
    assert (
        rollback(
            policy={"kind": "exp3"}, **{"safeguard.rollback.threshold": 3}
        ).threshold
        == 3
    )
    mixed = {"policy": {"kind": "exp3"}, "clients[0].policy": {"kind": "ascend"}}
    assert load_scenario(tiny, mixed).safeguard.rollback is not None


def test_a_resolved_scenario_loads_to_the_same(tiny, tmp_path):
    kinds = [
        {"policy": {"kind": kind}}
        for kind in registry("policy").names()
        if kind != "uniform"
    ]
    given = {
        "kind": "ascend",
        "ema": "1/n",
        "initial": "ema-from-zero",
        "count_forced": True,
    }
    kinds += [{"policy": {"kind": "uniform", "strategy": "dense"}}, {"policy": given}]
    for overrides in (
        {},
        *kinds,
        {"clients[0].policy": {"kind": "ucb", "window": 9}},
        {"clients[*].link.up": "0.1 Mbps"},
    ):
        scenario = load_scenario(tiny, overrides)
        again = tmp_path / "again.yaml"
        again.write_text(dump_scenario(scenario))
        assert load_scenario(again) == scenario


def test_client_order():
    groups = {"grouped": [0, 0, 1, 1, 1], "round-robin": [0, 1, 0, 1, 1]}
    for order, expected in groups.items():
        data = {**yaml.safe_load(TINY), "client_order": order}
        scenario = validate_scenario(data, source="x", folder=Path())
        assert scenario.group_of_client().tolist() == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_round_robin_deals_every_group_out(counts):
    data = yaml.safe_load(TINY)
    data["prototypes"] = {"small": {"model": "lenet5"}}
    data["clients"] = [
        {"count": n, "prototype": "small", "device": "d"} for n in counts
    ]
    data["client_order"] = "round-robin"
    order = validate_scenario(data, source="x", folder=Path()).group_of_client()
    assert np.bincount(order, minlength=len(counts)).tolist() == counts
    assert order[: len(counts)].tolist() == list(range(len(counts)))


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({"kind": "constant"}, [1, 1, 1, 1]),
        ({"kind": "inverse-sqrt"}, [1, 2**-0.5, 3**-0.5, 0.5]),
        ({"kind": "cosine"}, [1, 0.75, 0.25, 0]),
        ({"kind": "step", "every": 2, "factor": 0.1}, [1, 1, 0.1, 0.1]),
    ],
)
def test_schedules(tiny, schedule, factors):
    s = load_scenario(tiny, {"training.schedule": schedule, "rounds": 3})
    assert [s.learning_rate_factor(t) for t in (1, 2, 3, 4)] == pytest.approx(
        factors, abs=1e-12
    )


def test_a_policy_of_ones_own_has_the_keys_of_its_constructor(tiny, add_part):
    class Mine:
        learns = True

        def __init__(
            self,
            arms,
            reward_range=(-1.0, 1.0),
            *,
            depth: int,
            mood=("good", 3),
            **more,
        ):
            if depth < 0:
                raise InputError("a depth of at least 0", where="depth", got=depth)
            if len(arms) > 3:
                raise InputError("at most three arms", where="arms", got=len(arms))
            if more.get("sum") == 0:
                raise ValueError("the sum is 0")

    add_part("policy", "mine", Mine)

    def of(**options):
        return load_scenario(tiny, {"policy": {"kind": "mine", **options}})

    assert of(depth=2).policy.options == {"depth": 2, "mood": ("good", 3)}
    assert of(depth=2, extra=[1, 2]).policy.options["extra"] == [1, 2]
    for scenario in (of(depth=2), of(depth=2, mood="bad", extra={"a": 1})):
        again = tiny.with_name("again.yaml")
        again.write_text(dump_scenario(scenario))
        assert dump_scenario(load_scenario(again)) == dump_scenario(scenario)
    missing, negative = (
        {"policy": {"kind": "mine"}},
        {"policy": {"kind": "mine", "depth": -1}},
    )
    assert complaints(tiny, missing) == [
        f"{tiny}: policy.depth: this key is missing with kind mine"
    ]
    assert complaints(tiny, negative) == [
        f"{tiny}: policy.depth: got -1, expected a depth of at least 0"
    ]


def test_a_policy_whose_keywords_cannot_be_keys_is_refused(tiny, add_part):
    def mine(arms, reward_range, *, depth: int = 1, kind="a"):
        raise AssertionError

    add_part("policy", "mine", mine)
    assert complaints(tiny, {"policy": {"kind": "mine"}}) == [
        f"{tiny}: policy: got 'kind', expected other names for the options of policy "
        "mine: this one is taken"
    ]


def test_extends_merges_mappings_and_replaces_the_rest(tiny):
    child = tiny.parent / "child.yaml"
    child.write_text("extends: tiny.yaml\nname: child\ndataset: {public: 64}\n")
    s = load_scenario(child)
    assert (s.name, s.dataset.name, s.dataset.public, s.rounds) == (
        "child",
        "mnist-mini",
        64,
        3,
    )


def test_extends_drops_a_section_by_null(tiny):
    (tiny.parent / "more.yaml").write_text(
        "extends: tiny.yaml\nnetwork: {server: {receive: 1 Gbps}}\n"
        "faults: {messages: {lost: 0.1}}\nsafeguard: {rollback: {threshold: 2}}\n"
    )
    child = tiny.with_name("child.yaml")
    child.write_text(
        "extends: more.yaml\nnetwork: null\nfaults: null\nsafeguard: {rollback: null}\n"
    )
    scenario = load_scenario(child)
    assert scenario.network == load_scenario(tiny).network
    assert scenario.faults is None
    assert scenario.safeguard.rollback is None  # inside a section null is a value
    child.write_text("extends: more.yaml\nclients: null\n")
    with pytest.raises(InputErrors, match="clients"):
        load_scenario(child)


def test_a_missing_file_is_named_with_the_one_that_extends_it(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: c.yaml\n")
    with pytest.raises(InputError) as refused:
        load_scenario(tmp_path / "a.yaml")
    b, c = tmp_path / "b.yaml", tmp_path / "c.yaml"
    assert str(refused.value).startswith(f"{b}: extends: {c}: no such file")
    c.mkdir()
    with pytest.raises(
        InputError,
        match=r"b\.yaml: extends: .*c\.yaml: this is a "
        r"folder",
    ):
        load_scenario(tmp_path / "a.yaml")


def test_a_mapping_is_loaded_as_its_file_is(tiny):
    data = yaml.safe_load(tiny.read_text())
    changes = {"rounds": 3}
    assert load_scenario(data, changes) == load_scenario(tiny, changes)
    extending = {"extends": str(tiny), "rounds": 3}
    assert load_scenario(extending) == load_scenario(tiny, changes)
    with pytest.raises(InputError, match=r"scenario: extends: .*no such file"):
        load_scenario({"extends": "nowhere.yaml"})


def test_extends_reads_files_wherever_they_lie(tiny):
    folder = tiny.parent / "child"
    folder.mkdir()
    (folder / "linked.yaml").symlink_to(tiny)
    for named in ("../tiny.yaml", str(tiny), "linked.yaml"):
        (folder / "child.yaml").write_text(f"extends: {named}\nname: child\n")
        assert load_scenario(folder / "child.yaml").rounds == 3


def test_a_chain_of_extends_has_an_end(tmp_path):
    for i in range(102):
        (tmp_path / f"{i}.yaml").write_text(f"extends: {i + 1}.yaml\n")
    assert complaints(tmp_path / "0.yaml") == [
        f"{tmp_path}/0.yaml: too many, expected at most 100 files that extend one "
        f"another"
    ]


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        (
            {"trimmed-mean": 0.1},
            "aggregation.rule.share",
            {"kind": "trimmed-mean", "share": 2},
        ),
        ({"trimmed-mean": 0.1}, "aggregation.rule.trimmed-mean", {"trimmed-mean": 2}),
        ({"f": 1}, "aggregation.rule.kind", {"f": 1, "kind": 2}),
        ("krum", "aggregation.rule.f", {"kind": "krum", "f": 2}),
    ],
)
def test_overrides_enter_what_is_written_short(written, path, expected):
    changed = apply_overrides({"aggregation": {"rule": written}}, {path: 2}, Scenario)
    assert changed == {"aggregation": {"rule": expected}}


def test_overrides():
    data = {"clients": [{"link": {"up": 1}}, {"device": "d"}], "policy": None}
    done = apply_overrides(
        data,
        {"clients[*].link.up": 5, "clients[1].device.speed": 2, "policy.c": 3}.items(),
        Scenario,
    )
    assert done == {
        "clients": [
            {"link": {"up": 5}},
            {"device": {"profile": "d", "speed": 2}, "link": {"up": 5}},
        ],
        "policy": {"c": 3},
    }
    assert data["clients"][1] == {"device": "d"}, "the input is left alone"
    assert split_key_path("a[0].b[*].c") == ["a", 0, "b", "*", "c"]
    assert parse_assignment("a.b=5 Mbps") == ("a.b", "5 Mbps")
    assert parse_assignment("a={kind: x}") == ("a", {"kind": "x"})


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("clients[*].link.upp", "did you mean 'up'?"),
        ("clients[7].link.up", "got 7, expected an index below 2"),
        ("clients.link", "an index such as [0] or [*]"),
        ("rounds.x", "a key path that exists"),
        ("training[0]", "a key, not an index"),
        ("a..b", "a key path"),
        ("training.", "does not end in a dot"),
        ("", "a key path"),
    ],
)
def test_bad_key_paths(tiny, path, sentence):
    assert any(sentence in line for line in complaints(tiny, {path: 1}))


def test_the_other_kind_of_file_is_one_sentence(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("name: s\nbase: other.yaml\nseeds: [0]\n")
    with pytest.raises(InputError) as error:
        load_scenario(path)
    assert str(error.value) == (
        f"{path}: this is a study, expected a scenario (simfed study run)"
    )
    path.write_text("name: s\nclients: []\n")
    with pytest.raises(InputError) as error:
        load_study_file(path)
    assert str(error.value) == (
        f"{path}: this is a scenario, expected a study (simfed run)"
    )


def test_nothing_is_allowed_that_was_not_asked_for():
    """Who may run a file's code does so on request alone."""
    sources = Path(simfed.__file__).parent.glob("*/*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    defaults = re.findall(r"(allow_\w+): bool ?= ?(\w+)", text)
    assert len(defaults) > 7
    assert {default for _, default in defaults} == {"False"}


def test_errors_are_counted_after_the_first_twenty(tiny, capsys):
    from simfed.cli import main

    with tiny.open("a") as file:
        file.writelines(f"k{i}: 1\n" for i in range(2000))
    with pytest.raises(InputErrors) as refused:
        load_scenario(tiny)
    assert (len(refused.value.errors), refused.value.more) == (20, 1980)
    assert str(refused.value).endswith("\nand 1,980 more")
    assert main(["validate", str(tiny)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 21
    assert said[-1] == "simfed: and 1,980 more"
    lines = tiny.read_text().splitlines()
    assert f"line {lines.index('k19: 1') + 1}: there is no key 'k19'" in said[19]


def test_lines_are_those_of_the_text_that_was_read(tiny):
    number = len(tiny.read_text().splitlines()) + 1
    with tiny.open("a") as file:
        file.write("kay: 1\n")
    with pytest.raises(InputErrors) as refused:
        load_scenario(tiny)
    tiny.unlink()
    assert f"{tiny}: line {number}: there is no key 'kay'" in str(
        add_line(*refused.value.errors)
    )
