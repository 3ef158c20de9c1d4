"""What the learning key depends on: every key of a scenario, one by one."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

import simfed
from simfed.ground import REGISTRIES
from simfed.learn import Dataset
from simfed.replay import digest_named_data, learning_key
from simfed.replay.key import _NOT_RUN, _machine, code_digest, digest_parts
from simfed.scenario import PluginSpec, dump_scenario, validate_scenario

CLOCK = (
    "plugins",  # of which the parts in use count, by their code
    "name",
    "rounds",  # under a constant rate, a longer run begins with a shorter one
    "network",
    "server",
    "charge",
    "downlink",
    "checkpoint",
    "client_order",  # counts through who becomes which client: tested below
    "clients[0].device",
    "clients[0].link",
    "clients[0].devices",
    "clients[0].availability",  # and failures: who took part is the way down the tree
    "clients[0].failure",
    # policies act through their decisions alone, once they learn or do not
    "policy.kind",
    "policy.c",
    "policy.ema",
    "policy.initial",
    "policy.count_forced",
    "policy.warmup",
    "policy.reward.rho",
    "policy.reward.beta",
    "policy.reward.clip",
)
"""Where a change is the clock's business alone."""

INSTEAD = {
    "participation.selection.kind": "by-samples",
    "plugins": (PluginSpec(file=__file__),),
    "dataset.name": "fashion-mnist",
    "method.kind": "fedavg",
    "aggregation.rule.kind": "median",
    "prototypes.p.model": "lenet5",
    "clients[0].prototype": "q",
    "policy.kind": "exp3",
    "policy.arms_from": "runs/old",
    "compression.strategies": ("top-k",),
    "client_order": "round-robin",
}


def scenario(**changes):
    data = {
        "name": "n",
        "rounds": 20,
        "dataset": {"name": "mnist", "public_batch": 64},
        "prototypes": {"p": {"model": "lenet5-half"}},
        "clients": [
            {
                "count": 2,
                "prototype": "p",
                "device": {"profile": "d", "noise": {"cv": 0.1}},
                "link": {"up": "5 Mbps", "down": "9 Mbps", "latency": "2 ms"},
            }
        ],
        "policy": {"kind": "ascend"},
        "distillation": {"learning_rate": 0.01},
        "participation": {"clients_per_round": 2},
        "network": {"server": {"receive": "1 Gbps", "send": "1 Gbps"}},
        "server": {"device": "d"},
        **changes,
    }
    return validate_scenario(data, source="test", folder=Path("."))


def key_of(**changes):
    return learning_key(scenario(**changes))


def leaves(value, path=""):
    """Every key path with its value, and how to make a scenario with another value
    there.
    """
    if isinstance(value, BaseModel):
        unused = {
            name
            for name, only in value.list_marks()
            if not only.from_the_top and not only.holds(value)
        }
        for name in (*type(value).model_fields, *(value.model_extra or ())):
            if name in unused:
                continue
            inner = getattr(value, name)
            for where, old, change in leaves(inner, f"{path}.{name}" if path else name):
                yield (
                    where,
                    old,
                    lambda new, n=name, c=change: value.model_copy(update={n: c(new)}),
                )
    elif isinstance(value, dict) and value:
        for key, inner in value.items():
            for where, old, change in leaves(inner, f"{path}.{key}"):
                yield where, old, lambda new, k=key, c=change: {**value, k: c(new)}
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for where, old, change in leaves(value[0], f"{path}[0]"):
            yield where, old, lambda new, c=change: (c(new), *value[1:])
    else:
        yield path, value, lambda new: new


def other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.125
    if isinstance(value, str):
        return value + "-x"
    if isinstance(value, tuple):
        numbers = bool(value) and isinstance(value[0], float)
        return (value[0] - 1, *value[1:]) if numbers else (*value, "x")
    return {"x": 1} if isinstance(value, dict) else None


ALL = {where: (old, change) for where, old, change in leaves(scenario())}


def test_the_walk_over_a_scenario_reaches_its_depths():
    assert {
        "seed",
        "dataset.partition.alpha",
        "training.schedule.kind",
        "clients[0].link.up",
        "policy.reward.local_loss.credit",
        "safeguard.rollback.threshold",
    } <= set(ALL)


@pytest.mark.parametrize(
    "where", [w for w in ALL if other(ALL[w][0]) is not None or w in INSTEAD]
)
def test_each_key_counts_or_belongs_to_the_clock(where):
    old, change = ALL[where]
    changed = change(INSTEAD.get(where, other(old)))
    shares = learning_key(changed) == key_of()
    assert shares == where.startswith(CLOCK)


CLIENT = {"count": 2, "prototype": "p", "device": "d"}


def test_k_of_a_group_counts_and_equals_its_default():
    assert key_of(clients=[{**CLIENT, "k": 1000}]) == key_of(clients=[CLIENT])
    assert key_of(clients=[{**CLIENT, "k": 500}]) != key_of(clients=[CLIENT])


def test_who_is_which_client_counts_and_how_it_is_written_does_not():
    def of(order, *groups):
        prototypes = {"p": {"model": "lenet5-half"}, "q": {"model": "lenet5"}}
        clients = [{"count": n, "prototype": p, "device": d} for n, p, d in groups]
        return key_of(client_order=order, prototypes=prototypes, clients=clients)

    base = of("grouped", (2, "p", "d"), (2, "q", "d"))
    assert of("grouped", (1, "p", "slow"), (1, "p", "fast"), (2, "q", "d")) == base
    assert of("round-robin", (2, "p", "d"), (2, "q", "d")) != base
    assert of("round-robin", (1, "p", "d"), (2, "q", "d")) == of(
        "grouped", (1, "p", "d"), (2, "q", "d")
    )
    assert of("grouped", (2, "q", "d"), (2, "p", "d")) != base
    assert of("grouped", (3, "p", "d"), (1, "q", "d")) != base


def test_rounds_count_under_a_schedule_that_looks_at_them():
    for kind in ("constant", "step", "inverse-sqrt", "cosine"):
        training = {"schedule": {"kind": kind}}
        keys = {key_of(training=training, rounds=rounds) for rounds in (20, 30)}
        assert len(keys) == (2 if kind == "cosine" else 1)


def test_fixed_policies_share_whatever_their_reward_says():
    top = key_of(policy={"kind": "uniform", "strategy": "top-k"})
    assert key_of(policy={"kind": "uniform", "strategy": "random-k"}) == top
    replayed = {"kind": "ascend", "arms_from": "a-run"}
    paid = {**replayed, "reward": {"local_loss": {"samples": 9}}}
    assert key_of(policy=paid) == key_of(policy=replayed)
    # local losses are computed, and the safeguard is on
    for kind in ("ascend", "exp3"):
        assert key_of(policy={"kind": kind}) != top


@pytest.mark.parametrize("name", ["code_digest", "_machine", "data_digest"])
def test_the_code_and_the_versions_count(monkeypatch, name):
    base = key_of()
    monkeypatch.setattr(f"simfed.replay.key.{name}", lambda *_: {"torch": "another"})
    assert key_of() != base
    assert learning_key(scenario(), device="cuda") != base


ROOT = Path(simfed.__file__).parent
ROOMS = sorted({file.relative_to(ROOT).parts[0] for file in ROOT.glob("*/*.py")})


def test_a_doubled_constant_counts_in_every_room_that_a_run_imports(tmp_path):
    shutil.copytree(
        ROOT, tmp_path, ignore=shutil.ignore_patterns("*.so"), dirs_exist_ok=True
    )
    before = code_digest(root=tmp_path)
    assert code_digest("study/work.py", "flower", root=tmp_path) != before
    changed = set()
    for room in ROOMS:
        sources = (
            (file, file.read_text()) for file in sorted((tmp_path / room).glob("*.py"))
        )
        file, source = next(pair for pair in sources if _double(pair[1]) != pair[1])
        file.write_text(_double(source))
        code_digest.cache_clear()
        if code_digest(root=tmp_path) != before:
            changed.add(room)
        file.write_text(source)
    assert {*ROOMS} - changed == {*_NOT_RUN}


def _double(source):
    return re.sub(
        r"\b([1-9]\d*)\b", lambda match: str(2 * int(match[0])), source, count=1
    )


def test_what_a_run_imports_lies_in_rooms_that_count():
    beside = "|".join(_NOT_RUN)
    line = rf"(^\s*(from|import) |[\"'])simfed\.({beside})\b[^ ]*"
    found = {
        (room, match[0].strip())
        for room in {*ROOMS} - {*_NOT_RUN}
        for file in (ROOT / room).rglob("*.py")
        for match in re.finditer(line, file.read_text(), re.MULTILINE)
    }
    assert found == {
        ("experiment", '"simfed.report.notebook:RunDrawing")(self.measure)'),
        ("record", '"simfed.report.notebook:run_html")(self))'),
    }


def test_every_data_file_counts(add_part):
    """A data set of one's own by what it gives, one that comes with simfed by its
    files.
    """

    def of(values):
        labels = np.arange(4) % 2
        made = Dataset(values, labels, values, labels, classes=2)
        add_part("dataset", "mine", lambda: made)
        digest_named_data.cache_clear()
        return key_of(dataset={"name": "mine", "public": 1})

    values = np.zeros((4, 1, 3, 3), np.float32)
    first = of(values)
    assert of(values.copy()) == first
    assert of(values + 1) != first
    digest_named_data.cache_clear()
    for name in REGISTRIES["dataset"].names():
        files = getattr(REGISTRIES["dataset"].get(name), "files", {})
        assert all(len(file.sha256) == 64 for file in files.values())


def test_the_source_of_a_registered_part_counts(tmp_path, monkeypatch, add_part):
    def of(source):
        (tmp_path / "my_own_model.py").write_text(source)
        sys.modules.pop("my_own_model", None)
        import my_own_model

        add_part("model", "mine", my_own_model.build)
        return key_of(prototypes={"p": {"model": "mine"}})

    monkeypatch.syspath_prepend(str(tmp_path))
    first = of("def build():\n    return 1\n")
    assert of("def build():\n    return 1\n") == first
    assert of("def build():\n    return 2\n") != first


class FirstEntries:
    """A codec."""


class SomeEntries:
    """Another one, from the same file."""


@pytest.mark.parametrize(
    "policy", [{"kind": "uniform", "strategy": "mine"}, {"arms_from": "a-run"}]
)
def test_a_strategy_that_only_a_policy_names_counts(policy, add_part):
    def of(part):
        add_part("codec", "mine", part)
        return key_of(policy=policy)

    assert of(FirstEntries) == of(FirstEntries)
    assert of(FirstEntries) != of(SomeEntries)


def test_a_part_registered_by_its_place_is_not_built_in(add_part):
    add_part("model", "placed", f"{__name__}:FirstEntries")
    assert REGISTRIES["model"].origin("placed") == "registered"
    assert REGISTRIES["model"].get("placed") is FirstEntries
    assert digest_parts(scenario(prototypes={"p": {"model": "placed"}})).keys() == {
        "model placed"
    }


def test_who_takes_part_counts_by_the_source_of_parts_of_ones_own(add_part):
    add_part("selection", "mine", FirstEntries)
    add_part("availability", "mine", FirstEntries)
    used = scenario(
        participation={"clients_per_round": 2, "selection": "mine"},
        clients=[{**CLIENT, "availability": {"kind": "mine"}}],
    )
    assert digest_parts(used).keys() == {"selection mine", "availability mine"}


def test_variables_that_choose_kernels_count(monkeypatch):
    keys = []
    for value in ("default", "avx2", "default"):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", value)
        _machine.cache_clear()
        keys.append(key_of())
    _machine.cache_clear()
    assert keys[0] == keys[2] != keys[1]


def test_the_key_is_the_same_in_every_process():
    code = (
        "import sys, pathlib, yaml\n"
        "from simfed.replay import learning_key, TrajectoryStore, Cached\n"
        "from simfed.scenario.load import validate_scenario\n"
        "print(learning_key(validate_scenario(yaml.safe_load(sys.stdin), source='', "
        "folder=pathlib.Path('.'))))\n"
        "assert not {'torch', 'simpy', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=dump_scenario(scenario()),
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == key_of()
