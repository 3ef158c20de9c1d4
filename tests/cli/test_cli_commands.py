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
import yaml

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


def test_the_default_folder_is_the_next_free_one(tiny, tmp_path):
    for _ in range(2):
        assert cli(f"run {tiny} {CLOCK}") == 0
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"tiny", "tiny-2"}


def test_a_run_that_takes_no_time_has_a_picture_and_a_report(tiny, tmp_path, recwarn):
    free = "clients[0].device.assume={training: 0 s, compression: 0 s}"
    sets = ["--set", "clients[0].link={}", "--set", free]
    assert main(["run", tiny, "--time-only", "--out", "r", *sets]) == 0
    assert json.loads(Path("r/summary.json").read_text())["simulated_s"] == 0
    for kind in ("svg", "perfetto", "html"):
        assert cli(f"timeline r --format {kind}") == 0
    assert cli("report r") == 0
    assert {"timeline.png", "timeline.svg", "report.html"} <= {
        p.name for p in Path("r").iterdir()
    }
    assert [str(warning.message) for warning in recwarn] == []


def test_a_quiet_run_takes_its_options_and_a_broken_invariant_is_exit_code_3(
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run none.yaml", "none.yaml: no such file"),
        ("run tiny.yaml --set rounds", "--set: got 'rounds', expected key.path=value"),
        ("run tiny.yaml --set clients[*].link.upp=1", "did you mean 'up'?"),
        ("run tiny.yaml --rounds 0", "tiny.yaml: rounds: got 0, expected a whole"),
        (
            "run tiny.yaml --workers 0",
            "--workers: got 0, expected a whole number of at",
        ),
        ("run tiny.yaml --device tpu", "--device: got 'tpu', expected cpu or cuda"),
        ("run tiny.yaml --resume", "--resume: no run is named, expected --out DIR of"),
        ("verify .", "a run directory"),
        ("verify nowhere", "nowhere"),
        ("list modles", "profiles or scenarios (did you mean 'models'?)"),
    ],
)
def test_wrong_input_is_one_sentence(tiny, capsys, words, sentence):
    assert cli(words) == 2
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("simfed: ")]
    assert sentence in line
    assert "Traceback" not in err


def test_a_kind_is_listed_by_its_singular_too():
    assert cli("list codec") == 0


@pytest.mark.parametrize("words", ["nonsense", "run", "validate --foo", ""])
def test_wrong_usage_is_exit_code_2(words, capsys):
    assert cli(words) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_validate_reports_every_error_of_every_file(tiny, tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text(TINY + "colour: red\n")
    (tmp_path / "worse.yaml").write_text(
        TINY.replace("rounds: 3", "rounds: 0").replace("rtx3090-ryzen4800h", "none")
    )
    (tmp_path / "unknown.yaml").write_text(TINY.replace("rtx3090-ryzen4800h", "none"))
    assert cli(f"validate {tiny} bad.yaml worse.yaml unknown.yaml") == 2
    said = capsys.readouterr()
    assert said.out == "tiny.yaml: valid (2 clients, 3 rounds)\n"
    starts = [line.split(": ")[1] for line in said.err.splitlines()]
    assert starts == ["bad.yaml", "worse.yaml", "unknown.yaml"]


def test_validate_checks_every_run_of_a_study(tiny, tmp_path, capsys):
    study = "name: two\nbase: tiny.yaml\nseeds: [0, 1]\ngrid: {rounds: [1, 2]}\n"
    (tmp_path / "two.yaml").write_text(study)
    (tmp_path / "bad.yaml").write_text(study.replace("[1, 2]", "[1, 0]"))
    (tmp_path / "gone.yaml").write_text(study + "set: {clients[*].device: nobody}\n")
    assert cli(f"validate two.yaml {tiny}") == 0
    assert "two.yaml: valid (a study of 4 runs)" in capsys.readouterr().out
    assert cli("validate bad.yaml gone.yaml") == 2
    starts = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert starts == ["bad.yaml", "gone.yaml"]
    assert cli("validate two.yaml --resolved") == 2


def test_debug_shows_the_traceback(tiny):
    from simfed import InputError

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


HEAVY = {
    "torch",
    "simpy",
    "pandas",
    "matplotlib",
    "scipy",
    "websockets",
    "cryptography",
}


@pytest.mark.parametrize(
    ("heavy", "commands"),
    [
        (HEAVY | {"numpy"}, [["--help"], ["run", "--help"]]),
        (HEAVY, [["schema"], ["validate", "tiny.yaml"]]),
    ],
)
def test_light_commands_import_nothing_heavy(tiny, heavy, commands):
    script = LIGHT.format(heavy=heavy, commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_error(tiny):
    command = f"{sys.executable} -m simfed schema | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


SIGNALS = [
    (signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
]
"""What ends a command, and what it then answers."""


def in_a_process(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "simfed", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_runs_begun_at_once_have_folders_of_their_own_and_the_clock_alone_no_torch(
    tiny, tmp_path
):
    script = LIGHT.format(heavy={"torch"}, commands=[["run", tiny, *CLOCK.split()]])
    command = [sys.executable, "-c", script]
    runs = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"tiny", "tiny-2"}


def test_a_refused_run_leaves_no_folder(tiny, tmp_path):
    assert main(["run", tiny, *CLOCK.split(), "--set", "policy={kind: ascend}"]) == 2
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "how",
    [["--workers", "1"], pytest.param(["--workers", "2"], marks=pytest.mark.long)],
)
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_a_run_after_its_round_with_its_state_saved(
    tiny, number, code, how
):
    """To the whole process group, as a terminal and a cluster's scheduler do."""
    endless = ["--rounds", "100000", "--set", "checkpoint.every=1", *how]
    run = in_a_process(
        "run", tiny, *endless, "--quiet", "--out", "r", start_new_session=True
    )
    while run.poll() is None and not Path("r/checkpoint/state.json").exists():
        time.sleep(0.02)
    os.killpg(run.pid, number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == code, err
    assert err.splitlines()[-1].startswith("simfed: stopped after round ")
    manifest = json.loads(Path("r/manifest.json").read_text())
    state = json.loads(Path("r/checkpoint/state.json").read_text())
    assert manifest["status"] == "interrupted"
    assert manifest["reason"] == f"stopped after round {state['round']}"


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_a_study_after_the_rounds_under_way(tiny, number, code):
    study = {
        "name": "s",
        "base": str(tiny),
        "seeds": [0, 1],
        "grid": {"rounds": [100_000]},
    }
    Path("s.yaml").write_text(yaml.safe_dump(study))
    words = "study run s.yaml --time-only --quiet --jobs 1 --out s"
    process = in_a_process(*words.split(), start_new_session=True)
    begun = lambda: [*Path("s/runs").glob("*/manifest.json")]  # noqa: E731
    while process.poll() is None and not begun():
        time.sleep(0.02)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert err.splitlines()[-1].startswith(
        "simfed: interrupted with 0 of 2 runs finished"
    )
    (said,) = [json.loads(path.read_text()) for path in begun()]
    assert said["status"] == "interrupted"
    assert said["reason"].startswith("stopped after round ")


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(tiny, monkeypatch):
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
        monkeypatch.setattr(sys, name, stream)
    assert cli(f"run {tiny} --time-only --no-figures --out r") == 0
    assert b"2 clients, 3 rounds ? r" in sys.stderr.buffer.getvalue()
    assert b"simulated time" in sys.stdout.buffer.getvalue()


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("serve tiny.yaml --tls-cert cert.pem", "--tls-cert: one of --tls-cert and"),
        ("serve tiny.yaml --join-within 0", "--join-within: got 0.0, expected seconds"),
        ("serve tiny.yaml --silence -1", "--silence: got -1.0, expected seconds above"),
        ("serve tiny.yaml --at-least 0", "--at-least: got 0, expected a whole number"),
        ("serve none.yaml --at-least 1", "none.yaml: no such file"),
        ("join 127.0.0.1:9 --client -1", "--client: got -1, expected a whole number"),
        ("join 127.0.0.1:9 --client 0 --patience 0", "--patience: got 0.0, expected"),
        (
            "deploy tiny.yaml --queue 50ms",
            "--queue: without --shaped this says nothing",
        ),
    ],
)
def test_a_deployment_s_options_are_checked_before_anything_begins(
    tiny, capsys, words, refused
):
    assert cli(words) == 2
    assert capsys.readouterr().err.startswith(f"simfed: {refused}")
    assert not Path("runs").exists()
