"""Scenario files: what loads, what is extended and overridden, how errors are told."""

import re
from pathlib import Path

import pytest
import worlds
import yaml

import simfed
from simfed import InputError, InputErrors
from simfed.cli import main
from simfed.scenario import (
    Scenario,
    add_line,
    apply_overrides,
    dump_scenario,
    load_scenario,
    parse_assignment,
    split_key_path,
)

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
DEFAULTS = """
training: {learning_rate: 0.02, batch_size: 32, local_steps: 1}
policy:
  kind: ascend
  warmup: 5
  c: 3.0
  ema: 0.1
  reward:
    {rho: 0.6, beta: 0.4, clip: [-1.0, 1.0],
     local_loss: {data: probe, samples: 256, credit: causal}}
compression: {k: 1000, index_code: ideal, strategies: [top-k, random-k, periodic-k]}
dataset: {public: 256}
charge: {downlink: true, buffers: true}
server: {device: null}
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def test_defaults_are_those_of_the_method(tiny):
    plain = load_scenario(tiny).model_dump(mode="json")
    for section, keys in yaml.safe_load(DEFAULTS).items():
        assert plain[section].items() >= keys.items()
    assert plain["dataset"]["partition"]["alpha"] == 0.5
    link = plain["clients"][0]["link"]
    assert (link["up"], link["latency"]) == ("6250000.0 B/s", "0.01 s")


def test_rollback_is_on_with_ascend_only(tiny):
    def rollback(**overrides):
        on = load_scenario(tiny, overrides).safeguard.rollback
        return on and (on.threshold, on.max_consecutive)

    exp3, key = {"policy": {"kind": "exp3"}}, "safeguard.rollback"
    assert rollback() == (2.0, 1)
    assert rollback(**exp3) is rollback(policy=worlds.TINY["policy"]) is None
    assert rollback(**exp3, **{f"{key}.threshold": 3}) == (3, 1)
    assert rollback(**exp3, **{"clients[0].policy": {"kind": "ascend"}})
    for word in ("off", False, None):
        assert rollback(**{key: word}) is None
    for word in ("on", True):
        assert rollback(**{key: word})


def test_round_robin_deals_groups_out():
    [group] = worlds.TINY["clients"]
    groups = [{**group, "count": count} for count in (1, 3, 2)]
    for order, dealt in ("grouped", "011122"), ("round-robin", "012121"):
        made = worlds.world("tiny", clients=groups, client_order=order)
        assert "".join(map(str, made.group_of_client())) == dealt


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({"kind": "constant"}, [1, 1, 1, 1]),
        ({"kind": "inverse-sqrt"}, [1, 2**-0.5, 3**-0.5, 0.5]),
        ({"kind": "cosine"}, [1, 0.75, 0.25, 0]),
        ({"kind": "step", "every": 2, "factor": 0.1}, [1, 1, 0.1, 0.1]),
    ],
)
def test_schedules(schedule, factors):
    made = worlds.world("tiny", {"training.schedule": schedule, "rounds": 3})
    found = map(made.learning_rate_factor, (1, 2, 3, 4))
    assert [*found] == pytest.approx(factors, abs=1e-12)


def test_policy_of_ones_own_has_the_keys_of_its_constructor(add_part):
    class Mine:
        learns = True

        def __init__(self, arms, reward_range, *, depth: int, mood=("good", 3), **more):
            if depth < 0:
                raise InputError("a depth of at least 0", where="depth", got=depth)

    def of(**options):
        return worlds.world("tiny", policy={"kind": "mine", **options})

    add_part("policy", "mine", Mine)
    assert of(depth=2).policy.options == {"depth": 2, "mood": ("good", 3)}
    made = of(depth=2, mood="bad", extra=[1, {"a": 1}])
    assert made.policy.options["extra"] == [1, {"a": 1}]
    written = dump_scenario(made)
    assert dump_scenario(load_scenario(yaml.safe_load(written))) == written
    for options, said in (
        ({}, "this key is missing with kind mine"),
        ({"depth": -1}, "got -1, expected a depth of at least 0"),
    ):
        with pytest.raises(InputErrors, match=f"scenario: policy.depth: {said}$"):
            of(**options)


def test_policy_whose_keywords_cannot_be_keys_is_refused(add_part):
    add_part("policy", "mine", lambda arms, reward_range, *, kind="a": None)
    with pytest.raises(InputErrors, match="policy: got 'kind', expected other names"):
        worlds.world("tiny", policy={"kind": "mine"})


def extend(tiny, text, below=""):
    """Return the scenario of a file that says this, in a folder below `tiny`."""
    child = tiny.parent / below / "child.yaml"
    child.write_text(text)
    return load_scenario(child)


def test_extends_merges_mappings_and_replaces_the_rest(tiny):
    made = extend(tiny, "extends: tiny.yaml\nname: child\ndataset: {public: 64}\n")
    assert (made.name, made.rounds) == ("child", 3)
    assert (made.dataset.name, made.dataset.public) == ("mnist-mini", 64)


def test_extends_drops_a_section_by_null(tiny):
    (tiny.parent / "more.yaml").write_text(
        "extends: tiny.yaml\nnetwork: {server: {receive: 1 Gbps}}\n"
        "faults: {messages: {lost: 0.1}}\nsafeguard: {rollback: {threshold: 2}}\n"
    )
    more = "extends: more.yaml\n"
    gone = "network: null\nfaults: null\nsafeguard: {rollback: null}\n"
    made = extend(tiny, more + gone)
    assert made.network == load_scenario(tiny).network
    # inside a section null is a value
    assert made.faults is made.safeguard.rollback is None
    with pytest.raises(InputErrors, match="clients"):
        extend(tiny, f"{more}clients: null\n")


def test_missing_file_is_named_with_the_one_that_extends_it(tiny):
    b, c = (tiny.with_name(f"{name}.yaml") for name in "bc")
    b.write_text("extends: c.yaml\n")
    for said in (f"{c}: no such file", f"{c}: this is a folder"):
        with pytest.raises(InputError, match=f"^{b}: extends: {said}"):
            extend(tiny, "extends: b.yaml\n")
        c.mkdir(exist_ok=True)


def test_mapping_is_loaded_as_its_file_is(tiny):
    changes = {"rounds": 4}
    for plain in (yaml.safe_load(TINY), {"extends": str(tiny)}):
        assert load_scenario(plain, changes) == load_scenario(tiny, changes)


def test_extends_reads_files_wherever_they_lie(tiny):
    (tiny.parent / "below").mkdir()
    (tiny.parent / "below" / "linked.yaml").symlink_to(tiny)
    for named in ("../tiny.yaml", str(tiny), "linked.yaml"):
        assert extend(tiny, f"extends: {named}\n", "below").rounds == 3


def test_chain_of_extends_has_an_end(tmp_path):
    for i in range(102):
        (tmp_path / f"{i}.yaml").write_text(f"extends: {i + 1}.yaml\n")
    said = "0.yaml: too many, expected at most 100 files that extend one another"
    with pytest.raises(InputError, match=said):
        load_scenario(tmp_path / "0.yaml")


SHORT = """
- [{trimmed-mean: 0.1}, rule.share, {kind: trimmed-mean, share: 2}]
- [{trimmed-mean: 0.1}, rule.trimmed-mean, {trimmed-mean: 2}]
- [{f: 1}, rule.kind, {f: 1, kind: 2}]
- [krum, rule.f, {kind: krum, f: 2}]
"""


@pytest.mark.parametrize(("written", "path", "expected"), yaml.safe_load(SHORT))
def test_overrides_enter_what_is_written_short(written, path, expected):
    data = {"aggregation": {"rule": written}}
    changed = apply_overrides(data, {f"aggregation.{path}": 2}, Scenario)
    assert changed == {"aggregation": {"rule": expected}}


def test_overrides_reach_each_group_and_leave_the_input_alone():
    data = {"clients": [{"link": {"up": 1}}, {"device": "d"}], "policy": None}
    made = {"clients[*].link.up": 5, "clients[1].device.speed": 2, "policy.c": 3}
    link = {"link": {"up": 5}}
    assert apply_overrides(data, made.items(), Scenario) == {
        "clients": [link, {"device": {"profile": "d", "speed": 2}, **link}],
        "policy": {"c": 3},
    }
    assert data["clients"][1] == {"device": "d"}
    assert split_key_path("a[0].b[*].c") == ["a", 0, "b", "*", "c"]
    assert parse_assignment("a.b=5 Mbps") == ("a.b", "5 Mbps")
    assert parse_assignment("a={kind: x}") == ("a", {"kind": "x"})


def test_nothing_is_allowed_that_was_not_asked_for():
    """Who may run a file's code does so on request alone."""
    sources = Path(simfed.__file__).parent.glob("*/*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    defaults = re.findall(r"allow_\w+: bool ?= ?(\w+)", text)
    assert len(defaults) > 7
    assert {*defaults} == {"False"}


def test_errors_are_counted_after_the_first_twenty(tiny, capsys):
    tiny.write_text(TINY + "".join(f"k{i}: 1\n" for i in range(2000)))
    assert main(["validate", str(tiny)]) == 2
    *_, last, more = said = capsys.readouterr().err.splitlines()
    assert (len(said), more) == (21, "simfed: and 1,980 more")
    line = 1 + tiny.read_text().splitlines().index("k19: 1")
    assert f"line {line}: there is no key 'k19'" in last


def test_lines_are_those_of_the_text_that_was_read(tiny):
    tiny.write_text(f"kay: 1{TINY}")
    with pytest.raises(InputErrors) as refused:
        load_scenario(tiny)
    tiny.unlink()
    said = f"{tiny}: line 1: there is no key 'kay'"
    assert said in str(add_line(*refused.value.errors))
