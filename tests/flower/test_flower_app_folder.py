"""Flower apps from their folders, by the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flower_worlds import write_app

import simfed
from simfed.cli import main
from simfed.record import open_run

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """times = 2
deep.er = "x"
"""
APPS = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    assert context.run_config["deep.er"] == "x"
    return Message(message.content, reply_to=message)


@server.main()
def main(grid, context):
    for _ in range(context.run_config["times"]):
        content = RecordDict({"config": ConfigRecord({"a": 1})})
        asked = [Message(content, n, "train") for n in grid.get_node_ids()]
        list(grid.send_and_receive(asked))
"""
WAITING = """

def _wait_for_one(grid):
    while not (nodes := list(grid.get_node_ids())):
        pass
    return nodes
"""
FLEET = """
name: tiny
clients: [{count: 2, device: x86-2core-vm, link: {}}]
computing: {kind: declared, seconds: 1 s}
"""


@pytest.fixture
def app(tmp_path, request):
    """A folder with an app in a package of a name of its own."""
    package = "app_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return write_app(tmp_path / "app", package, APPS, CONFIG)


def command(app, *more):
    words = ["--fleet", str(app.parent / "fleet.yaml"), "--overwrite", "--quiet"]
    out = str(app.parent / "run")
    return main(["flower", "run", str(app), "--out", out, *words, *more])


def run(app, *more):
    """The run of a command that ends well."""
    assert command(app, *more) == 0
    return open_run(app.parent / "run")


def test_an_app_runs_from_its_folder_and_the_run_is_an_ordinary_one(app):
    played = run(app, "--run-config", "times=3")
    path = str(played.path)
    assert main(["verify", path]) == 0
    assert main(["report", path, "--out", str(app.parent / "page.html")]) == 0
    assert main(["timeline", path, "--out", str(app.parent / "timeline.svg")]) == 0
    assert played.manifest["mode"] == "flower"
    assert played.manifest["repeatable"] is True
    assert (played.summary["rounds"], played.summary["simulated_s"]) == (3, 3.0)


@pytest.mark.long
def test_an_app_that_imports_pytorch_in_its_first_message_is_counted_and_seeded_there(
    app,
):
    """In a process of its own, as this one has PyTorch already."""
    code = next(app.rglob("apps.py"))
    work = """
    import torch

    draws = torch.randn(64, 64, requires_grad=True)
    print("drawn", float(draws.mm(torch.ones(64, 64)).sum()))
"""
    code.write_text(code.read_text().replace("    assert", f"{work}    assert", 1))
    fleet, out = app.parent / "fleet.yaml", app.parent / "run"
    fleet.write_text(FLEET.partition("computing")[0])
    simfed = [sys.executable, "-m", "simfed", "flower", "run", "--no-figures"]
    command = [*simfed, app, "--fleet", fleet, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    drawn = [line for line in done.stdout.splitlines() if line.startswith("drawn")]
    assert len(drawn) == len(set(drawn)) == 4
    participations = open_run(out).participations
    assert (participations["training_s"] > 0).all()
    assert participations["training_s"].nunique() == 1


def test_what_is_measured_is_not_repeatable_and_the_run_says_so(app):
    manifest = run(app, "--set", "computing={kind: measured, speed: 0.5}").manifest
    assert manifest["repeatable"] is False
    assert "another run takes another time" in manifest["warnings"][-1]


def test_a_folder_that_is_no_app_is_said(app, capsys):
    (app / "pyproject.toml").unlink()
    assert command(app) == 2
    assert capsys.readouterr().err == (
        f"simfed: {app}: got 'a folder without pyproject.toml', expected the folder of "
        f"a Flower "
        "app, with its pyproject.toml\n"
    )


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("pyproject.toml", ("serverapp", "servapp"), "the project of a Flower app"),
        ("pyproject.toml", (":server", ":srv"), "a ServerApp that can be imported"),
        (
            "pyproject.toml",
            (":client", ":main"),
            ("got 'function', expected a ClientApp"),
        ),
        (
            "apps.py",
            ("from flwr.app", "from flwr.ap"),
            ("a ServerApp that can be imported"),
        ),
        (
            "apps.py",
            ("from", "import no_such_module\nfrom"),
            "(what the app needs is in",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_is_said(app, capsys, file, change, sentence):
    (path,) = app.rglob(file)
    path.write_text(path.read_text().replace(*change, 1))
    assert command(app) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_key_that_the_app_does_not_have_is_said(app, capsys):
    assert command(app, "--run-config", "tims=3") == 2
    allowed = "expected a key of the app's configuration: times or deep.er"
    assert f"--run-config: got 'tims', {allowed}" in capsys.readouterr().err


def test_the_example_runs(tmp_path):
    folder, out = ROOT / "scenarios" / "flower", str(tmp_path / "run")
    words = f"{folder}/digits --fleet {folder}/phones.yaml --quiet --no-figures --out"
    rounds = ["--run-config", "num-server-rounds=1"]
    assert main(["flower", "run", *words.split(), out, *rounds]) == 0
    assert main(["verify", out]) == 0


STUDY = """
name: tiny
base: fleet.yaml
seeds: [1, 2]
set: {app: app}
grid: {app.run_config.times: [1, 3]}
compare: {arms: app.run_config.times}
"""


def study(app, text=STUDY):
    """The exit code of a study in a folder of its name."""
    path, out = app.parent / "study.yaml", str(app.parent / "study")
    path.write_text(text)
    words = ["--jobs", "1", "--allow-plugins", "--quiet"]
    return main(["study", "run", str(path), "--out", out, *words])


def test_a_study_of_an_app_is_an_ordinary_one(app):
    assert study(app) == 0
    out = app.parent / "study"
    played = simfed.load_study(out)
    assert list(played.summary["status"]) == ["finished"] * 4
    assert played.rounds.groupby("address").size().tolist().count(3) == 2
    assert played.verdicts
    ((entry, one),) = (
        (entry, one)
        for entry, one in played.finished
        if entry["seed"] == 2 and entry["values"]["app.run_config.times"] == 3
    )
    assert one.manifest["app"]["run_config"]["times"] == 3
    alone = run(app, "--run-config", "times=3", "--seed", "2")
    assert alone.fingerprint == one.fingerprint
    assert main(["verify", str(out / "runs" / entry["address"])]) == 0


def test_a_study_by_a_work_file_that_is_not_there_is_one_sentence(app, capsys):
    priced = "set: {app: app, computing: {kind: work, file: gone.work.yaml}}"
    assert study(app, STUDY.replace("set: {app: app}", priced)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{app.parent / 'gone.work.yaml'}: no such file" in said


def test_a_run_of_a_study_that_fails_is_told_and_tried_again(app, capsys):
    code = next(app.rglob("apps.py"))
    right = code.read_text()
    wrong = (
        'if context.run_config["times"] == 3:\n        raise OSError("no more")\n '
        "   for _"
    )
    code.write_text(right.replace("for _", wrong, 1))
    assert study(app) == 1
    said = capsys.readouterr().err
    assert "2 of 4 runs failed" in said
    assert "the server app raised OSError: no more" in said
    code.write_text(right)
    assert study(app) == 0


@pytest.mark.parametrize(
    ("line", "nodes", "sentence"),
    [
        (
            "import no_such_module",
            "grid.get_node_ids()",
            "all 4 messages failed: node 0 raised ModuleNotFoundError: No module",
        ),
        (
            "raise SystemExit(3)",
            "grid.get_node_ids()",
            "all 2 messages failed or came to nothing: node 0 ended its process",
        ),
        (
            "raise SystemExit(3)",
            "_wait_for_one(grid)",
            "waits for more than 0 nodes waits for ever; on 2 more the app has ended "
            "its process",
        ),
    ],
)
def test_a_run_whose_messages_all_came_to_nothing_ends_with_status_1(
    app, capsys, line, nodes, sentence
):
    code = next(app.rglob("apps.py"))
    ends = code.read_text().replace("    assert", f"    {line}\n    assert")
    code.write_text(ends.replace("grid.get_node_ids()", nodes) + WAITING)
    assert command(app) == 1
    assert sentence in capsys.readouterr().err


def test_a_fleet_of_another_size_than_the_app_names_is_said(app):
    project = app / "pyproject.toml"
    federations = "[tool.flwr.federations]\ndefault = 'local'\n"
    federations += "local.options.num-supernodes = 10\n"
    project.write_text(project.read_text() + federations)
    first, *_ = run(app).manifest["warnings"]
    assert first.startswith(f"{project} has num-supernodes = 10, the fleet 2 nodes")
    warnings = run(app, "--set", "clients[0].count=10").manifest["warnings"]
    assert not [warning for warning in warnings if "num-super" in warning]


def test_a_run_of_an_app_does_not_resume_and_says_why(app, capsys):
    assert command(app, "--resume") == 2
    assert (
        "--resume: a Flower app cannot go on where it stopped"
        in capsys.readouterr().err
    )


@pytest.mark.long
def test_the_apps_of_a_checkout_are_played_one_by_one(app, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "analysis"))
    from flower_originals import main as play_originals

    checkout, out = app.parent / "flower", app.parent / "out"
    shutil.copytree(app, checkout / "examples" / "good")
    broken = shutil.copytree(app, checkout / "examples" / "broken")
    code = next(broken.rglob("apps.py"))
    code.write_text("import no_such_module\n" + code.read_text())
    words = f"{checkout} --fleet {app.parent}/fleet.yaml --out {out} --compare"
    assert play_originals(words.split()) == 1
    bad, good = (out / "apps.csv").read_text().splitlines()[1:]
    assert good.startswith("examples/good,finished,2.0,")
    # replies, and by how much they differ from Flower's engine
    assert ",4,0.0," in good
    assert bad.startswith("examples/broken,refused,,")
    assert "No module named 'no_such_module'" in bad
    assert "1 of 2 apps finished" in capsys.readouterr().out
