"""Runs that are charged by a work file, and the plays behind one.

Declared seconds by stage.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from flower_worlds import client, fleet, payload, play, to, write_app

from simfed.cli import main
from simfed.device import ModelWork, Processor, load_profile
from simfed.flower import (
    COUNT,
    SIZE,
    Forge,
    Kernel,
    LawPlay,
    WorkFile,
    load_work,
    write_work,
)
from simfed.flower.workfile import KindLaw, LawError
from simfed.learn.catalogue import facts
from simfed.record import open_run
from simfed.report import build_page

CONFIG = """num-server-rounds = 4
local-epochs = 2
"""
APPS = """
import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    samples = 6000 // context.node_config["num-partitions"]
    for _ in range(context.run_config["local-epochs"]):
        for _ in range(samples // 10):
            np.sort(np.arange(3000) * 7919 % 3001)
    metrics = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    for _ in range(context.run_config["num-server-rounds"]):
        content = RecordDict({"config": ConfigRecord({"a": 1})})
        asked = [Message(content, n, "train") for n in grid.get_node_ids()]
        list(grid.send_and_receive(asked))
"""
FLEET = (
    "name: tiny\nclients: [{count: 2, device: {profile: x86-2core-vm, speed: "
    "0.5}, link: {}}]\n"
)
SECONDS = 0.00169486  # of the kernel, by the profile
ERROR = LawError(median=0.0, worst=0.0, held_out=0.0, held_out_worst=0.0)


def kernel(flops=2263920.0, seconds=SECONDS):
    return Kernel(parameters=61706, flops=flops, seconds=seconds)


def work_file(*laws, **more):
    app = {"app": "tiny", "digest": "0", "kernel": kernel(), "nodes": [2]}
    return WorkFile(**{**app, **more}, kinds=list(laws))


def test_a_kernel_is_priced_by_its_own_flops_and_not_by_a_placeholders():
    profile = load_profile("x86-2core-vm")
    profile.models["lenet5"] = ModelWork.of(facts("lenet5", "cifar10"))  # of the world
    assert kernel(2 * 2263920.0).factor(Processor(profile)) == pytest.approx(2)


def law(seconds, message="train", **more):
    return KindLaw(
        message=message, seconds=seconds, messages=9, share=0.5, error=ERROR, **more
    )


@pytest.fixture
def app(tmp_path, request):
    """A folder with an app in a package of a name of its own."""
    package = "work_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return write_app(tmp_path / "app", package, APPS, CONFIG)


def command(app, *more, quiet=("--quiet",)):
    fleet, out = str(app.parent / "fleet.yaml"), str(app.parent / "run")
    words = ["--fleet", fleet, "--out", out, "--no-figures", "--overwrite", *quiet]
    return main(["flower", "run", str(app), *words, *more])


def run(app, *more, **options):
    """The run of a command that ends well."""
    assert command(app, *more, **options) == 0
    return open_run(app.parent / "run")


def test_messages_are_charged_by_their_law_scaled_by_the_device(app):
    """Half the speed, twice the work, and three times the measured machine's; but what
    is waited for takes as long.
    """
    path = app.parent / "my.work.yaml"
    plays = [
        LawPlay(play="6 nodes", messages=9, measured=0.2, fitted=0.21, unseen=0.25)
    ]
    one = law("0.001 * num_examples * local_epochs", waits=0.25, plays=plays)
    write_work(work_file(one, busy=0.02, kernel=kernel(seconds=SECONDS / 3)), path)
    played = run(app, "--work", str(path))
    expected = 4 * (3 * 2 * 0.001 * 3000 * 2 + 0.25)
    assert played.summary["simulated_s"] == pytest.approx(expected)
    manifest = played.manifest
    assert f"has changed since {path} was measured" in manifest["warnings"][0]
    copied = app.parent / "run" / "calibration" / "my.work.yaml"
    assert load_work(copied) == load_work(path)
    assert manifest["laws"] == load_work(path).card()
    page = build_page([played], sections=["app"])
    cells = ("6 nodes", "200 ms", "210 ms", "250 ms", "differ by 2%", "</svg>")
    assert [cell for cell in cells if cell not in page] == []
    assert main(["verify", str(played.path)]) == 0
    assert main(["validate", str(played.path / "scenario.yaml")]) == 0


def test_a_nodes_start_is_a_phase_of_its_own_for_each_message(app, capsys):
    """What the app measured of imports and of a first message, on a device of half the
    speed.
    """
    path = app.parent / "my.work.yaml"
    write_work(work_file(law("0.5", first=0.5), imports=1.0), path)
    played = run(app, "--work", str(path), quiet=())
    said = capsys.readouterr().out
    assert played.manifest["start"] == "per message"
    assert played.participations["start_s"].tolist() == pytest.approx([3.0] * 8)
    assert played.participations["training_s"].tolist() == pytest.approx([1.0] * 8)
    starts = played.spans[played.spans["kind"] == "start"]
    lengths = starts["finished_at_s"] - starts["started_at_s"]
    assert lengths.tolist() == pytest.approx([3.0] * 8)
    assert played.rounds["critical_phase"].tolist() == ["start"] * 4
    assert played.summary["phases_s"]["start_s"] == pytest.approx(24.0)
    assert re.search(r"^simulated time +16 s", said, re.M)
    assert re.search(r"^without starts +4 s", said, re.M)

    fleet = app.parent / "fleet.yaml"
    computing = f"computing: {{kind: work, file: {path}, start: %s}}\n"
    fleet.write_text(FLEET + computing % "once")
    once = run(app).participations["start_s"].tolist()
    assert once == pytest.approx([3.0, 3.0] + [0.0] * 6)
    fleet.write_text(FLEET + computing % "never")
    played = run(app)
    assert "start_s" not in played.participations
    assert any("imports" in warning for warning in played.manifest["warnings"])
    assert main(["verify", str(played.path)]) == 0

    write_work(work_file(law("0.5")), path)  # no start was measured
    capsys.readouterr()
    played = run(app, quiet=())
    assert "not charged: none was measured" in capsys.readouterr().out
    assert played.manifest["start"] is None
    assert "without_starts_s" not in played.summary


def test_metered_computing_has_the_level_of_the_apps_own_work_file(app):
    """What one play counted took so long: messages of the same take as long."""
    code = next(app.rglob("apps.py"))
    step = "net(torch.ones(samples, 64)).sum().backward()"
    body = code.read_text().replace("import numpy as np", "import torch")
    body = body.replace(
        "    samples", "    net = torch.nn.Linear(64, 64)\n    samples", 1
    )
    code.write_text(re.sub(r"np\.sort\(.*\)", step, body))
    job = {"folder": str(app), "overrides": {}, "groups": [{"count": 2}]}
    with Forge(app) as forge:
        messages, error = forge.play({**job, "counts": True})
    assert error is None
    (one,) = {spent.counted for _, spent, _ in messages}
    counted = [*one.training, *one.inference, one.parameters]
    plays = [LawPlay(play="2 nodes", messages=8, measured=0.25, fitted=0.25)]
    (app.parent / "fleet.yaml").write_text(FLEET + "computing: metered\n")
    relative = "seconds are relative"
    assert [w for w in run(app).manifest["warnings"] if relative in w]
    write_work(work_file(law("9", counted=counted, plays=plays)), app / "a.work.yaml")
    for epochs, off in ((2, 1e-6), (4, 1e-4)):
        played = run(app, "--run-config", f"local-epochs={epochs}")
        charged_s = played.participations["training_s"].tolist()
        assert charged_s == pytest.approx([0.25 * epochs] * 8, rel=off)
    assert "start_s" not in played.participations
    assert not [w for w in played.manifest["warnings"] if relative in w]
    assert main(["validate", str(played.path / "scenario.yaml")]) == 0


def test_the_default_is_the_apps_own_work_file_and_else_names_the_command(app, capsys):
    assert command(app) == 1
    said = capsys.readouterr().err
    assert f"`simfed flower measure {app} --nodes 2` measures it once" in said
    assert said.count("\n") == 1
    assert command(app, "--set", "clients[0].count=300") == 1
    assert f"`simfed flower measure {app} --nodes 20`" in capsys.readouterr().err
    write_work(work_file(law("1.5")), app / "app.work.yaml")
    assert run(app).summary["simulated_s"] == pytest.approx(4 * 3)
    write_work(work_file(law("1.5")), app / "other.work.yaml")
    assert command(app) == 2
    assert "more than one work file, expected one of" in capsys.readouterr().err


def test_an_app_of_questions_alone_is_not_played_for_nothing(app, capsys):
    """No message is one of training, and none does anything that metered computing
    sees.
    """
    code = next(app.rglob("apps.py"))
    code.write_text(
        re.sub(
            r'client\.train|"train"',
            lambda found: found[0].replace("train", "query"),
            code.read_text(),
        )
    )
    assert command(app) == 1
    said = capsys.readouterr().err
    assert "a message of type query cannot be charged 0 s" in said
    assert f"`simfed flower measure {app} --nodes 2` measures it once" in said


def test_a_kind_that_was_not_measured_ends_the_run_with_a_sentence(app, capsys):
    path = app.parent / "my.work.yaml"
    write_work(work_file(law("1", "evaluate")), path)
    assert command(app, "--work", str(path)) == 2
    said = capsys.readouterr().err
    assert (
        f"{path}: got 'train', expected a kind of message that was measured: evaluate"
    ) in said
    write_work(work_file(law("0.1 * rows")), path)
    assert command(app, "--work", str(path)) == 2
    assert "got 'rows', expected a value that is there" in capsys.readouterr().err


def test_messages_scatter_as_they_did_where_a_device_has_no_noise_of_its_own(app):
    path = app.parent / "my.work.yaml"
    write_work(work_file(law("1", scatter={"log_sd": 0.2})), path)
    simulated_s = run(app, "--work", str(path)).summary["simulated_s"]
    assert simulated_s != pytest.approx(8.0, rel=0.01)


def test_declared_seconds_go_by_action_stage_or_type_and_values_may_be_missing(
    tmp_path,
):
    """Each message alone: an action, a stage, a type with and without its metric, and a
    default.
    """
    from flwr.app import ConfigRecord, RecordDict

    def main(grid, context):
        (node,) = grid.get_node_ids()
        staged = RecordDict({"config": ConfigRecord({"stage": "unmask"})})
        bare = RecordDict({"config": ConfigRecord({"a": 1})})
        for content, kind in (
            (payload(), "train.sum"),
            (staged, "query"),
            (payload(), "train"),
            (bare, "train"),
            (bare, "evaluate"),
        ):
            list(grid.send_and_receive([to(node, content, kind)]))

    seconds = {
        "sum": "1 s",
        "unmask": "0.5 * epochs",
        "train": "0.02 * num_examples | 100 ms",
        "default": "7 s",
    }
    world = fleet({"count": 1}, computing={"kind": "declared", "seconds": seconds})
    run = play(main, world, tmp_path, _with_action(), run_config={"epochs": 3})
    assert run.participations["training_s"].tolist() == pytest.approx(
        [1.0, 1.5, 0.02, 0.1, 7.0]
    )


def test_what_a_strategy_makes_of_metrics_is_a_table_of_the_page(tmp_path):
    """By its own rounds, of which each has two exchanges here."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp.strategy import FedAvg

    def evaluate(number, arrays):
        return MetricRecord({"accuracy": 0.25 * number})

    def main(grid, context):
        arrays = ArrayRecord([np.zeros(1)])
        FedAvg().start(grid, arrays, num_rounds=2, evaluate_fn=evaluate)

    def answer(message, context):
        return payload(2.0 + context.node_config["partition-id"])

    run = play(main, fleet(), tmp_path, client(answer))
    told = {(n, kind): m for n, kind, m in run.manifest["round_metrics"]}
    for number in range(3):
        accuracy = {"accuracy": 0.25 * number}
        assert told[number, "the server's evaluation"] == accuracy
    assert [told[n, "nodes' training"] for n in (1, 2)] == [{"v": 2.5}] * 2
    page = build_page([run], sections=["app"])
    assert [text for text in ("accuracy 0.5", "v 2.5") if text not in page] == []


def _with_action():
    """An echo that also knows an action."""
    from flwr.app import Message

    app = client()
    app.train("sum")(
        lambda message, context: Message(message.content, reply_to=message)
    )
    return app


@pytest.mark.long
def test_a_measured_app_is_charged_what_it_takes(app, capsys):
    """Its nodes' samples halve as nodes double.

    A setting that the plays doubled is tripled.
    """
    code = next(app.rglob("apps.py"))
    work = "np.sort(np.arange(3000) * 7919 % 3001)"
    code.write_text(code.read_text().replace(work, "worked[0] += 1e-4") + PROCESSOR)
    assert main(["flower", "measure", str(app), "--nodes", "2", "--quiet"]) == 0
    work = load_work(app / "app.work.yaml")
    (train,) = work.kinds
    assert work.nodes == [2, 4, 8]
    assert work.run_config == {"num-server-rounds": [3, 2], "local-epochs": [2, 4, 1]}
    assert work.settings == {"num-server-rounds": COUNT, "local-epochs": SIZE}
    assert work.busy < 0.05
    assert train.names == {"num_examples", "local_epochs"}
    assert work.imports > 0
    charged_s = []
    for epochs in (6, 2):  # into one folder, of which tables are read when asked for
        played = run(app, "--run-config", f"local-epochs={epochs} num-server-rounds=1")
        assert "code has changed" not in " ".join(played.manifest["warnings"])
        charged_s.append(played.participations["training_s"].sum())
    assert charged_s[0] / charged_s[1] == pytest.approx(3, rel=0.01)
    assert (played.participations["start_s"] > 0).all()  # each message starts a node
    assert main(["flower", "measure", str(app)]) == 2
    assert "there is a work file already" in capsys.readouterr().err


PROCESSOR = """
from simfed.flower import children

worked = [0.0]
children.read_processor_s = lambda: worked[0]
"""
"""One that nothing else takes part of: an app's work takes the seconds that are written
there."""


def test_an_app_that_does_not_run_is_said_once(app, capsys):
    code = next(app.rglob("apps.py"))
    code.write_text("import no_such_module" + code.read_text())
    assert main(["flower", "measure", str(app), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert "(--nodes), failed: " in said
    assert "No module named 'no_such_module'" in said
    assert said.count("\n") == 1
    assert not (app / "app.work.yaml").exists()
    assert main(["flower", "measure", str(app), "--sizes", "local-epoch"]) == 2
    said = capsys.readouterr().err
    assert "--sizes: got 'local-epoch', expected a number of the app's" in said
    nowhere = str(app / "none" / "my.work.yaml")
    assert main(["flower", "measure", str(app), "--out", nowhere]) == 2
    assert capsys.readouterr().err.count("\n") == 1  # before any play
    assert main(["flower", "measure", str(app), "--run-config", "local-epochs"]) == 2
    said = capsys.readouterr().err
    assert "--run-config: got 'local-epochs', expected key=value pairs" in said
