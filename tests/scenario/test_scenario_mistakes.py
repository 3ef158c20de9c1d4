"""What people get wrong, and what they read then: what is wrong first, then what is allowed, then
the nearest cure."""

import os
import re
import shutil
from pathlib import Path

import pytest

import simfed
from simfed.cli import main
from simfed.device.load import load_profile
from simfed.ground.errors import InputErrors

RIGHT = """\
name: first
rounds: 3
dataset: {name: mnist-mini, public: 16}
prototypes:
  small: {model: logistic-regression}
clients:
  - {count: 3, prototype: small, device: x86-2core-vm, link: {up: 5 Mbps, down: 20 Mbps}}
policy: {kind: uniform, strategy: top-k}
"""

# (what is written in place of what, what is wrong, what is allowed, the cure); "" where there is
# nothing to say
KEYS = "name, seed, method, rounds"
IN_FILES = [
    ("rounds: 3", "rounds: three", "line 2: rounds: got 'three'", "a whole number", ""),
    ("rounds: 3", "rounds: 0", "line 2: rounds: got 0", "a whole number of at least 1", ""),
    ("rounds: 3", "rounds: 1.5", "line 2: rounds: got 1.5", "a whole number", ""),
    ("rounds: 3\n", "", "rounds: this key is missing", "", ""),
    ("prototypes:\n  small: {model: logistic-regression}", "prototypes: {}",
     "line 4: prototypes: got {}", "at least one prototype", ""),
    ("strategy: top-k}", "strategy: top-k, reward: {clip: []}}", "policy.reward.clip: got []",
     "a longer list", ""),
    ("rounds: 3", "rounds: 3\nrounds: 4", "line 3: not valid YAML: the key 'rounds' stands twice",
     "", ""),
    ("rounds: 3", "rounds:3", "line 2: not valid YAML: a space follows a colon", "", ""),
    ("  small: {", "\tsmall: {", "line 5: not valid YAML: a tab", "", ""),
    ("public: 16}", "public: 16", "line 4: not valid YAML: a comma, or the closing }", "", ""),
    ("rounds: 3", "rounds: 3\nlearning_rate: 1", "line 3: there is no key 'learning_rate' here",
     KEYS, "it belongs to training.learning_rate or distillation.learning_rate"),
    ("rounds: 3", "rounds: 3\nbatch_size: 8", "line 3: there is no key 'batch_size' here", KEYS,
     "it belongs to training.batch_size"),
    ("rounds: 3", "rounds: 3\ndeadline: 9 s", "line 3: there is no key 'deadline' here", KEYS,
     "it belongs to aggregation.deadline"),
    ("rounds: 3", "rounds: 3\nclients_per_round: 2", "there is no key 'clients_per_round' here",
     KEYS, "it belongs to participation.clients_per_round"),
    ("rounds: 3", "rounds: 3\nmu: 0.1", "line 3: there is no key 'mu' here", KEYS,
     "mu is an option of method fedprox"),
    ("count: 3,", "count: 3, up: 5 Mbps,", "line 7: clients[0]: there is no key 'up' here",
     "count, prototype", "it belongs to clients[*].link.up"),
    ("device: x86-2core-vm", "device: {profile: x86-2core-vm, latency: 5 ms}",
     "line 7: clients[0].device: there is no key 'latency' here", "profile, speed",
     "it belongs to clients[*].link.latency"),
    ("count: 3,", "count: 3, policyy: uniform,", "clients[0]: there is no key 'policyy' here",
     "count, prototype", "did you mean 'policy'?"),
    ("up: 5 Mbps", "up: 5 Mb", "line 7: clients[0].link.up: got '5 Mb'", "a rate with its unit",
     ""),
    ("up: 5 Mbps", "up: 5", "line 7: clients[0].link.up: got 5", "a rate with its unit", ""),
    ("up: 5 Mbps", "up: -5 Mbps", "line 7: clients[0].link.up: got '-5 Mbps'", "a rate", ""),
    ("up: 5 Mbps", "up: {lognormal: {median: 5 Mbps}}",
     "line 7: clients[0].link.up.lognormal.cv: this key is missing", "", ""),
    ("name: mnist-mini", "name: mnits", "line 3: dataset.name: no dataset 'mnits'", "mnist-mini",
     "did you mean 'mnist'?"),
    ("dataset: {name: mnist-mini, public: 16}\n", "", "dataset: this key is missing", "", ""),
    ("public: 16", "public: 100000", "line 3: dataset.public: got 100000", "at most 9997", ""),
    ("logistic-regression", "lenet55", "line 5: prototypes.small.model: no model 'lenet55'",
     "lenet5", "did you mean 'lenet5'?"),
    ("prototype: small", "prototype: smal", "line 7: clients[0].prototype: got 'smal'",
     "a prototype of this scenario: small", "did you mean 'small'?"),
    ("  small:", "  large: {model: lenet5}\n  small:",
     "line 5: prototypes.large: no client has this prototype", "each prototype with clients",
     "clients: - {prototype: large, …}, or leave it out"),
    ("count: 3,", "count: 0,", "line 7: clients[0].count: got 0", "a whole number", ""),
    ("device: x86-2core-vm", "device: x86-2core",
     "line 7: clients[0].device: no calibration profile 'x86-2core'", "galaxy-note10",
     "did you mean 'x86-2core-vm'?"),
    ("device: x86-2core-vm", "device: mine.yaml", "clients[0].device: mine.yaml: no such file",
     "", ""),
    ("rounds: 3", "server: {device: x86-2core}\nrounds: 3",
     "line 2: server.device: no calibration profile 'x86-2core'", "galaxy-note10",
     "did you mean 'x86-2core-vm'?"),
    ("count: 3,", "count: 3, overlap: {chunks: 0},",
     "line 7: clients[0].overlap.chunks: got 0", "a whole number of at least 1", ""),
    ("count: 3,", "count: 3, overlap: layers,", "line 7: clients[0].overlap: got 'layers'",
     "a mapping of keys to values", ""),
    ("count: 3,", "count: 3, overlap: {chunks: 2, chunk: 2},",
     "line 7: clients[0].overlap: there is no key 'chunk' here", "chunks",
     "did you mean 'chunks'?"),
    ("rounds: 3", "rounds: 3\nmethod: fedpox", "line 3: method.kind: no method 'fedpox'", "fedkd",
     "did you mean 'fedprox'?"),
    ("rounds: 3", "rounds: 3\nmethod: {kind: fedprox, nu: 1}",
     "line 3: method: method fedprox has no key 'nu'", "mu", ""),
    ("rounds: 3", "rounds: 3\nmethod: {kind: fedprox, mu: -1}", "line 3: method.mu: got -1.0",
     "a number of at least 0", ""),
    ("uniform, strategy: top-k", "ascent", "line 8: policy.kind: no policy 'ascent'", "uniform",
     "did you mean 'ascend'?"),
    ("strategy: top-k", "strategy: topk", "line 8: policy.strategy: no codec 'topk'", "top-k",
     "did you mean 'top-k'?"),
    (", strategy: top-k", "", "line 8: policy.strategy: this key is missing with kind uniform",
     "", ""),
    ("rounds: 3", "rounds: 3\naggregation: {mode: buffered, buffer: 2, concurrency: 3}\n"
     "participation: {clients_per_round: 2}",
     "line 4: participation: aggregation.mode buffered has no key 'clients_per_round'", "",
     "clients_per_round belongs to aggregation.mode synchronous, deadline or first"),
    ("rounds: 3", "rounds: 3\naggregation: {mode: deadline}",
     "line 3: aggregation: the key 'deadline' is missing beside mode deadline", "", ""),
    ("rounds: 3", "rounds: 3\nparticipation: {clients_per_round: 20}",
     "line 3: participation.clients_per_round: got 20", "at most the 3 clients there are", ""),
    ("rounds: 3", "rounds: 3\ncompression: {k: 150%}", "line 3: compression.k: got '150%'",
     "a whole number of at least 1, or a share", ""),
    ("rounds: 3", "rounds: 3\ncompression: {strategies: [{qsgd: {level: 4}}]}",
     "compression.strategies[0].qsgd: got 'level'", "an option of qsgd", "did you mean 'levels'?"),
    ("count: 3,", "count: 3, availability: sometimes,",
     "line 7: clients[0].availability: got 'sometimes'", "always, {trace: FILE}", ""),
    ("count: 3,", "count: 3, availability: {markov: {on: 2 h}},",
     "line 7: clients[0].availability.markov.off: this key is missing", "", ""),
    ("count: 3,", "count: 3, availability: {trace: onlin.csv},",
     "onlin.csv: no such file", "", "did you mean 'online.csv'?"),
    ("rounds: 3", "rounds: 3\nevaluation: {every: off}", "line 3: evaluation.every: got False",
     "a whole number of at least 1", "YAML reads on, yes, off and no as true and false"),
    ("rounds: 3", "rounds: 3\nfaults: {messages: {}}",
     "line 3: faults.messages: no message is ever lost or doubled", "lost or doubled above 0", ""),
    ("rounds: 3", "rounds: 3\nplugins: [parts.py]",
     "line 3: plugins: parts.py is code, and nobody has asked to run it", "", "--allow-plugins"),
    ("name: first", "extends: qiuck.yaml\nname: first", "extends: qiuck.yaml: no such file", "",
     "did you mean 'quick.yaml'?"),
    (RIGHT, "", "the file is empty", "a scenario", "simfed new quickstart"),
    (RIGHT, "- a", "got ['a']", "a mapping of keys to values", ""),
]  # fmt: skip

IN_COMMANDS = [
    ("run quik.yaml", "quik.yaml: no such file", "", "did you mean 'quick.yaml'?"),
    ("run done", "done: this is a folder", "a file", ""),
    ("run study.yaml", "study.yaml: this is a study", "a scenario", "simfed study run"),
    ("run quick.yaml --out done", "done: it holds a run", "a new or empty folder",
     "--resume goes on with an unfinished run"),
    ("run quick.yaml --set ronds=3", "override ronds: there is no key 'ronds' here", KEYS,
     "did you mean 'rounds'?"),
    ("run quick.yaml --set link.up=3", "override link.up: there is no key 'link' here", KEYS,
     "did you mean clients[*].link.up?"),
    ("run quick.yaml --set rounds", "--set: got 'rounds'", "key.path=value", ""),
    ("run quick.yaml --device gpu", "--device: got 'gpu'", "cpu or cuda", ""),
    ("run quick.yaml --resume", "--resume: no run is named", "--out DIR", ""),
    ("run quick.yaml --import nope.py", "--import nope.py: no file", "a Python file", ""),
    ("report cut", "cut: rounds.parquet is missing", "a whole run directory",
     "copy it from where the run is whole"),
    ("verify empty", "empty: a folder without manifest.json", "a run directory", ""),
    ("verify nowhere", "nowhere: no such folder", "a run directory", ""),
    ("timeline done --format gif", "--format: got 'gif'", "png, svg", ""),
    ("study run quick.yaml --out s", "quick.yaml: this is a scenario", "a study", "simfed run"),
    ("study status done", "done: a folder without study.json", "a study's folder",
     "this is a run: simfed report"),
    ("study table quick.yaml", "quick.yaml: a file", "a study's folder", ""),
    ("new quickstat", "new: got 'quickstat'", "a template: quickstart", ""),
    ("list modles", "list: got 'modles'", "codecs, policies, models",
     "did you mean 'models'?"),
    ("calibrate show mine.yaml", "mine.yaml: no such file", "", ""),
    ("serve quick.yaml --listen here --out s", "--listen: got 'here'", "HOST:PORT", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which somebody has begun to work."""
    here = tmp_path_factory.mktemp("mistakes")
    (here / "quick.yaml").write_text(RIGHT)
    (here / "online.csv").write_text("client,from_s,to_s\n0,0,9\n")
    (here / "study.yaml").write_text("name: s\nbase: quick.yaml\nseeds: [0]\n")
    (here / "empty").mkdir()
    simfed.run(here / "quick.yaml", here / "done", time_only=True, progress=False)
    shutil.copytree(here / "done", here / "cut")
    (here / "cut" / "rounds.parquet").unlink()
    return here


def sentence_of(folder, capsys, monkeypatch, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "400")
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("simfed: ")


def check_form(sentence, wrong, allowed, cure):
    """`where: what is wrong, expected what is allowed (cure)`, whatever of them there is."""
    assert wrong in sentence
    before, expected, after = sentence.partition(", expected ")
    assert wrong.split(": ")[-1] in before  # what is wrong comes first
    assert not re.search(r": expected |^expected ", sentence)
    assert bool(expected) == bool(allowed)
    assert after.startswith(allowed)
    assert re.search(r" \(.+\)$", sentence) if cure else True
    assert cure in sentence.rpartition(" (")[2] or f"({cure}" in sentence or not cure


@pytest.mark.parametrize(("right", "written", "wrong", "allowed", "cure"), IN_FILES)
def test_a_mistake_in_a_file(folder, capsys, monkeypatch, right, written, wrong, allowed, cure):
    assert right in RIGHT
    (folder / "x.yaml").write_text(RIGHT.replace(right, written, 1))
    sentence = sentence_of(folder, capsys, monkeypatch, "validate", "x.yaml")
    if "extends" not in wrong:
        assert sentence.startswith("x.yaml: ")
    check_form(sentence, wrong.removeprefix("extends: "), allowed, cure)


@pytest.mark.parametrize(("command", "wrong", "allowed", "cure"), IN_COMMANDS)
def test_a_mistake_in_a_command(folder, capsys, monkeypatch, command, wrong, allowed, cure):
    sentence = sentence_of(folder, capsys, monkeypatch, *command.split())
    assert sentence.startswith(wrong)
    check_form(sentence, wrong, allowed, cure)
    assert not os.path.exists(folder / "s")


def test_a_link_whose_unit_is_a_slip_is_warned_of(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    slow = RIGHT.replace("up: 5 Mbps", "up: 1 bps").replace("down: 20 Mbps", "down: 2 kbps")
    (folder / "slow.yaml").write_text(slow.replace("logistic-regression", "resnet18"))
    assert main(["validate", "slow.yaml"]) == 0
    warnings = capsys.readouterr().err
    assert "clients[0].link.up: at 1 bps one upload of 45.3 kB takes 4 d 5 h" in warnings
    assert "clients[0].link.down: at 2 kbps one download of 44.7 MB takes 2" in warnings
    assert "is another unit meant, such as Mbps?" in warnings
    assert main(["validate", "quick.yaml"]) == 0
    assert not capsys.readouterr().err


def test_edges_of_a_file_without_latency_are_warned_of(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    edge = 'edge [ source 1 target 0 capacity "9 Mbps" '
    nodes = 'graph [ node [ id 0 label "server" ] node [ id 1 label "a" ] node [ id 2 label "b" ] '
    (folder / "net.gml").write_text(
        nodes + edge + 'latency "2 ms" ] ' + edge.replace("1", "2") + "delay 3 ] ]"
    )
    network = "network: {topology: graph, file: net.gml}\nname: first"
    (folder / "x.yaml").write_text(
        RIGHT.replace("name: first", network).replace("up: 5", "at: b, up: 5")
    )
    assert main(["validate", "x.yaml"]) == 0
    warned = capsys.readouterr().err
    assert "network.file: 2 of 4 ways over edges of net.gml take no time: their attribute" in warned
    (folder / "net.gml").write_text(
        (folder / "net.gml").read_text().replace("delay 3", 'latency "1 ms"')
    )
    assert main(["validate", "x.yaml"]) == 0
    assert not capsys.readouterr().err


def test_warnings_of_a_profile_are_one_line_that_names_the_details(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    estimated = RIGHT.replace("logistic-regression", "resnet18").replace(
        "policy: {kind: uniform, strategy: top-k}", "policy: {kind: ascend}"
    )
    (folder / "estimated.yaml").write_text(estimated)
    assert main(["validate", "estimated.yaml"]) == 0
    short = capsys.readouterr().err.splitlines()
    assert main(["validate", "--details", "estimated.yaml"]) == 0
    whole = capsys.readouterr().err.splitlines()
    assert len(whole) > 1
    assert len(short) == 1
    profile = load_profile("x86-2core-vm").name
    assert f"device profile {profile}: {len(whole)} of its times are not what was" in short[0]
    assert short[0].endswith("details: simfed validate --details estimated.yaml")


@pytest.mark.parametrize("momentum", [1, 1.5, -0.1])
def test_a_range_with_an_open_end_is_said_as_it_is(momentum):
    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    with pytest.raises(InputErrors, match="expected a number from 0 to below 1"):
        simfed.load_scenario(scenario, {"training.momentum": momentum})


@pytest.mark.parametrize(
    ("key", "values", "range_"),
    [
        ("network.server.receive", ["-5 Mbps", "0 Mbps", -5, 0], "a rate above 0 such as 20 Mbps"),
        ("clients[*].device.quota.period", ["-1 s", "0 s", -1, 0], "a duration above 0"),
        ("clients[*].device.quota.share", [-0.5, 0, 1, 2], "a number above 0 and below 1"),
        ("clients[*].device.noise.cv", [-1, 101], "a number from 0 to 100"),
    ],
)
def test_a_range_is_told_whole_at_once(key, values, range_):
    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    for value in values:
        more = {"clients[*].device.quota.share": 0.5} if key.endswith("period") else {}
        with pytest.raises(InputErrors, match=f"expected {range_}"):
            simfed.load_scenario(scenario, {**more, key: value})
