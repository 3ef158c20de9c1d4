"""The command line: exit codes, one sentence per error, and what is not imported."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simfed import InputError
from simfed.cli import main

TINY = """
name: tiny
rounds: 3
dataset: {name: mnist-mini, public: 32}
prototypes: {small: {model: lenet5-half}}
clients: [{count: 2, prototype: small, device: rtx3090-ryzen4800h, link: {up: 50 Mbps}}]
policy: {kind: uniform, strategy: top-k}
"""


CLOCK = "--time-only --quiet --no-figures"


def cli(words):
    return main(words.split())


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return "tiny.yaml"


def test_run_and_verify(tiny, capsys):
    assert cli(f"run {tiny} --workers 1 --timings --out r") == 0
    said = capsys.readouterr()
    assert "simulated time" in said.out
    assert "learning" in said.out
    assert "round 3/3" in said.err
    assert cli("verify r") == 0
    assert "all invariants hold" in capsys.readouterr().out


def test_run_that_takes_no_time_has_a_picture_and_a_report(tiny, tmp_path, recwarn):
    free = "{training: 0 s, compression: 0 s}"
    sets = ["--set", "clients[0].link={}", "--set", f"clients[0].device.assume={free}"]
    assert main([*f"run {tiny} --time-only --out r".split(), *sets]) == 0
    assert json.loads(Path("r/summary.json").read_text())["simulated_s"] == 0
    for kind in ("svg", "perfetto", "html"):
        assert cli(f"timeline r --format {kind}") == 0
    assert cli("report r") == 0
    assert {"timeline.png", "timeline.svg", "report.html"} <= {
        p.name for p in Path("r").iterdir()
    }
    assert [str(warning.message) for warning in recwarn] == []


def test_quiet_run_takes_its_options_and_a_broken_invariant_is_exit_code_3(
    tiny, capsys
):
    options = "--seed 7 --rounds 5 --set clients[*].link.up=5Mbps --out r"
    assert cli(f"run {tiny} {CLOCK} {options}") == 0
    assert capsys.readouterr() == ("", "")
    manifest = json.loads(Path("r/manifest.json").read_text())
    summary = json.loads(Path("r/summary.json").read_text())
    assert (manifest["seed"], summary["rounds"]) == (7, 5)
    summary["uplink_bytes"] += 1
    Path("r/summary.json").write_text(json.dumps(summary))
    assert cli("verify r") == 3
    assert "uplink_bytes" in capsys.readouterr().err


def test_kind_is_listed_by_its_singular_too():
    assert cli("list codec") == 0


@pytest.mark.parametrize("words", ["nonsense", "run", "validate --foo", ""])
def test_wrong_usage_is_exit_code_2(words, capsys):
    assert cli(words) == 2
    assert "Usage" in "".join(capsys.readouterr())


def list_refused(capsys):
    return [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]


def test_validate_reports_every_error_of_every_file(tiny, capsys):
    unknown = TINY.replace("rtx3090-ryzen4800h", "none")
    Path("bad.yaml").write_text(TINY + "colour: red\n")
    Path("worse.yaml").write_text(unknown.replace("rounds: 3", "rounds: 0"))
    Path("unknown.yaml").write_text(unknown)
    assert cli(f"validate bad.yaml worse.yaml {tiny} unknown.yaml") == 2
    assert list_refused(capsys) == ["bad.yaml", "worse.yaml", "unknown.yaml"]
    assert cli(f"validate {tiny}") == 0
    assert capsys.readouterr().out == "tiny.yaml: valid (2 clients, 3 rounds)\n"


def test_validate_checks_every_run_of_a_study(tiny, capsys):
    study = "name: two\nbase: tiny.yaml\nseeds: [0, 1]\ngrid: {rounds: [1, 2]}\n"
    Path("two.yaml").write_text(study)
    Path("bad.yaml").write_text(study.replace("[1, 2]", "[1, 0]"))
    Path("gone.yaml").write_text(study + "set: {clients[*].device: nobody}\n")
    assert cli(f"validate two.yaml {tiny}") == 0
    assert "two.yaml: valid (a study of 4 runs)" in capsys.readouterr().out
    assert cli("validate bad.yaml gone.yaml") == 2
    assert list_refused(capsys) == ["bad.yaml", "gone.yaml"]
    assert cli("validate two.yaml --resolved") == 2


def test_debug_shows_the_traceback(tiny):
    with pytest.raises(InputError):
        cli("--debug run none.yaml")


def test_schema_is_json(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "extends" in schema["properties"]


LIGHT = """
import sys
from simfed.cli import main
for words in {commands}:
    code = main(words)
    heavy = sorted({heavy} & set(sys.modules))
    assert (code, heavy) == (0, []), (words, code, heavy)
"""


HEAVY = {"torch", "simpy", "pandas", "matplotlib", "scipy", "websockets"}
HEAVY |= {"cryptography"}


def in_a_process(*command, **options):
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def begin_light(heavy, *commands):
    script = LIGHT.format(heavy=heavy, commands=[line.split() for line in commands])
    return in_a_process("-c", script)


@pytest.mark.parametrize(
    ("heavy", "commands"),
    [
        (HEAVY | {"numpy"}, ["--help", "run --help"]),
        (HEAVY, ["schema", "validate tiny.yaml"]),
    ],
)
def test_light_commands_import_nothing_heavy(tiny, heavy, commands):
    process = begin_light(heavy, *commands)
    _, said = process.communicate()
    assert process.returncode == 0, said


def test_runs_begun_at_once_have_folders_of_their_own_and_the_clock_alone_no_torch(
    tiny, tmp_path
):
    assert cli(f"run {tiny} {CLOCK}") == 0
    runs = [begin_light({"torch"}, f"run {tiny} {CLOCK}") for _ in range(2)]
    said = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert names == {"tiny", "tiny-2", "tiny-3"}


def test_closed_pipe_is_no_error(tiny):
    command = f"set -o pipefail; {sys.executable} -m simfed schema | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


SIGNALS = [
    (signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
]
"""What ends a command, and what it then answers."""


def end_by(number, code, process, begun):
    """End a command as a terminal and a cluster's scheduler do, once it has begun.

    Its whole process group; returned is the last thing that it says.
    """
    while process.poll() is None and not begun():
        time.sleep(0.02)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return err.splitlines()[-1]


def test_refused_run_leaves_no_folder(tiny, tmp_path):
    assert main(["run", tiny, *CLOCK.split(), "--set", "policy={kind: ascend}"]) == 2
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "how",
    [["--workers", "1"], pytest.param(["--workers", "2"], marks=pytest.mark.long)],
)
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signal_ends_a_run_after_its_round_with_its_state_saved(
    tiny, number, code, how
):
    state, words = Path("r/checkpoint/state.json"), f"run {tiny} --quiet --out r"
    endless = ["--rounds", "100000", "--set", "checkpoint.every=1", *how]
    command = ("-m", "simfed", *words.split(), *endless)
    run = in_a_process(*command, start_new_session=True)
    said = end_by(number, code, run, state.exists)
    round = json.loads(state.read_text())["round"]
    assert said.startswith(f"simfed: stopped after round {round}")
    manifest = json.loads(Path("r/manifest.json").read_text())
    reason = manifest["status"], manifest["reason"]
    assert reason == ("interrupted", f"stopped after round {round}")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signal_ends_a_study_after_the_rounds_under_way(tiny, number, code):
    seeds = "seeds: [0, 1]\ngrid: {rounds: [100000]}\n"
    Path("s.yaml").write_text(f"name: s\nbase: {tiny}\n{seeds}")
    words = "-m simfed study run s.yaml --time-only --quiet --jobs 1 --out s"
    study = in_a_process(*words.split(), start_new_session=True)
    begun = lambda: [*Path("s/runs").glob("*/manifest.json")]  # noqa: E731
    said = end_by(number, code, study, begun)
    assert said.startswith("simfed: interrupted with 0 of 2 runs finished")
    [manifest] = [json.loads(path.read_text()) for path in begun()]
    assert manifest["status"] == "interrupted"
    assert manifest["reason"].startswith("stopped after round ")


def test_terminal_that_lacks_a_character_gets_a_question_mark(tiny, monkeypatch):
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
        monkeypatch.setattr(sys, name, stream)
    assert cli(f"run {tiny} --time-only --no-figures --out r") == 0
    assert b"2 clients, 3 rounds ? r" in sys.stderr.buffer.getvalue()
    assert b"simulated time" in sys.stdout.buffer.getvalue()
