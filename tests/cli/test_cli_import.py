"""`--import FILE.py` and `plugins`: parts of one's own from a file, in this process and
in those it starts; files that say so run no code unless somebody consents.
"""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

import simfed
from simfed.cli import main
from simfed.ground import IMPORTS
from simfed.ground.registry import registry
from simfed.replay import digest_named_data

PARTS = """
import simfed
from simfed.policy import Uniform


class Second(Uniform):
    \"\"\"Always the second strategy.\"\"\"

    def __init__(self, arms, reward_range):
        super().__init__(arms, reward_range, strategy=arms[1])


simfed.register("policy", "always-second", Second)
"""
SCENARIO = yaml.safe_load("""
name: own
rounds: 2
dataset: {name: mnist-mini}
prototypes: {small: {model: lenet5-half}}
clients: [{count: 2, prototype: small, device: rtx3090-ryzen4800h, link: {}}]
policy: {kind: always-second}
""")


def forget():
    """As a new process begins."""
    for name in [name for name in sys.modules if name.startswith("simfed_import_")]:
        del sys.modules[name]
    for kind, name in ("policy", "always-second"), ("dataset", "mine"):
        if name in registry(kind):
            registry(kind).remove(name)
    os.environ[IMPORTS] = ""
    digest_named_data.cache_clear()


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A file of parts, which are forgotten again."""
    monkeypatch.setenv(IMPORTS, "")
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(SCENARIO))
    yield tmp_path / "parts.py"
    forget()


def test_name_of_ones_own_is_known_with_its_file_alone(parts, capsys):
    validate = ["validate", str(parts.with_name("own.yaml"))]
    own = ["--import", str(parts)]
    assert main(validate) == 2
    assert "parts of your own: --import FILE.py" in capsys.readouterr().err
    for _ in range(2):  # twice is once
        assert main([*validate, *own]) == 0
    assert main(["list", "policies", *own]) == 0
    assert "always-second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"bad.py": "x = 1\nraise KeyError('k')"}, "KeyError: 'k' (bad.py, line 2)"),
        ({"bad.py": "def f(:"}, "SyntaxError: invalid syntax (bad.py, line 1)"),
        (
            {
                "bad/deep.py": "raise ValueError(3)",
                "bad/__init__.py": "from . import deep",
            },
            "ValueError: 3 (deep.py, line 1)",
        ),
    ],
)
def test_file_that_does_not_run_is_one_sentence(parts, tmp_path, capsys, files, said):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    bad = tmp_path / name.partition("/")[0]
    assert main(["list", "policies", "--import", str(bad)]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.endswith(f": it fails with {said}")


def test_part_that_raises_is_one_sentence_with_its_name(parts, capsys):
    raises = "    def pull(self, rng):\n        return 1 / 0\n\n\nsimfed.register"
    parts.write_text(PARTS.replace("\nsimfed.register", raises))
    scenario, out = parts.with_name("own.yaml"), parts.with_name("out")
    words = f"run {scenario} --out {out} --time-only --quiet --import {parts}".split()
    assert main(words) == 1
    assert capsys.readouterr().err == (
        "simfed: your policy 'always-second', called as pull(rng), raised "
        "ZeroDivisionError: "
        "division by zero (parts.py, line 13, in pull; --debug shows more)\n"
    )
    with pytest.raises(ZeroDivisionError):
        main([*words, "--overwrite", "--debug"])


@pytest.fixture
def scenario(parts):
    """A scenario whose file names its parts, and parts that leave a mark where they are
    run.
    """
    mark = parts.with_name("was-run")
    parts.write_text(f"open({str(mark)!r}, 'w').close()\n{PARTS}")
    path = parts.with_name("own.yaml")
    path.write_text(yaml.safe_dump({**SCENARIO, "plugins": [parts.name]}))
    return path


def test_file_alone_runs_no_code(scenario, tmp_path, capsys):
    study, ran = "name: s\nbase: own.yaml\n", tmp_path / "was-run"
    (tmp_path / "study.yaml").write_text(study)
    (tmp_path / "first.yaml").write_text(f"{study}plugins: parts.py\n")
    for words in (
        "validate {}/own.yaml",
        "run {}/own.yaml --out {}/out",
        "show fleet {}/own.yaml",
        "study run {}/study.yaml --out {}/out",
        "study run {}/first.yaml --out {}/out",
    ):
        assert main(words.format(tmp_path, tmp_path).split()) == 2
        [said] = capsys.readouterr().err.splitlines()
        asked = "parts.py is code, and nobody has asked to run it"
        assert f"plugins: {asked} (--allow-plugins, or --import" in said
    with pytest.raises(simfed.InputError, match=asked):
        simfed.run({**SCENARIO, "plugins": ["parts.py"]}, source=scenario)
    with pytest.raises(simfed.InputError, match=asked):
        simfed.load_scenario(scenario)
    assert not ran.exists()
    made = simfed.load_scenario(scenario, allow_plugins=True)
    assert made.policy.kind == "always-second"
    assert ran.exists()


def test_run_keeps_its_plug_ins_and_finds_them_again(scenario, tmp_path, capsys):
    run = f"run {scenario} --out {tmp_path}/out --time-only --quiet --no-figures"
    verify = f"verify {tmp_path}/out"
    assert main(f"{run} --allow-plugins".split()) == 0
    assert main(f"{run} --resume".split()) == 0  # this process has consent
    forget()
    assert main(f"{run} --resume".split()) == 2
    assert main(verify.split()) == 2  # a stranger's run is data as well
    said = "plugins/parts.py is code, and nobody has asked to run it"
    assert said in capsys.readouterr().err
    # the same content
    assert main(f"{verify} --import {tmp_path}/parts.py".split()) == 0


def test_the_processes_of_a_study_find_its_plug_ins(scenario, tmp_path):
    scenario.write_text(yaml.safe_dump(SCENARIO))  # the study alone names them
    study = {"name": "s", "base": "own.yaml", "plugins": ["parts.py"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    words = f"study run {tmp_path}/study.yaml --out {tmp_path}/out --time-only --quiet"
    assert main(f"{words} --jobs 1 --allow-plugins".split()) == 0


# ---- files beside plug-ins, and packages ---------------------------------------------

READS = """
from pathlib import Path

import numpy as np

import simfed
from simfed.learn.data import Dataset


def mine():
    content = np.load(Path(__file__).parent / "mine.npz")
    images, labels = content["images"], content["labels"]
    return Dataset(images, labels, images, labels, classes=2, mean=(0.5,), sd=(0.5,))
"""
REGISTERS = 'simfed.register("dataset", "mine", mine)\n'
MINE = yaml.safe_load("""
name: own
rounds: 2
method: fedavg
dataset: {name: mine}
prototypes: {small: {model: logistic-regression}}
clients: [{count: 2, prototype: small, device: {training: 1 ms}, link: {}}]
policy: {kind: uniform, strategy: dense}
""")
RUN = "run own.yaml --out out --allow-plugins --no-figures --quiet"
COMMANDS = {
    "verify": "verify out --allow-plugins",
    "recompute": "verify out --recompute 1 --allow-plugins",
    "again": "run out/scenario.yaml --out again --allow-plugins --no-figures",
}


def write_data(path, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.random((40, 1, 4, 4)).astype(np.float32)
    np.savez(path, images=images, labels=np.arange(40) % 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a scenario and its plug-in: a file and what it reads, and both as a
    package.
    """
    monkeypatch.setenv(IMPORTS, "")
    monkeypatch.chdir(tmp_path)
    write_data("mine.npz")
    (tmp_path / "parts.py").write_text(READS + REGISTERS)
    package = tmp_path / "mynet"
    package.mkdir()
    write_data(package / "mine.npz")
    (package / "reads.py").write_text(READS)
    (package / "__init__.py").write_text(
        f"import simfed\nfrom .reads import mine\n{REGISTERS}"
    )
    write("parts.py")
    yield tmp_path
    forget()


def write(*plugins):
    with open("own.yaml", "w") as file:
        yaml.safe_dump({**MINE, "plugins": list(plugins)}, file)


def play(command):
    """A command, as if in a process of its own."""
    forget()
    shutil.rmtree("again", ignore_errors=True)
    return main(COMMANDS[command].split())


def list_modules():
    return {
        module.__file__
        for name, module in sys.modules.items()
        if "simfed_import_" in name
    }


def test_copy_is_run_where_it_lay_as_long_as_nobody_has_changed_it(folder, capsys):
    assert main(RUN.split()) == 0
    [plugin] = yaml.safe_load((folder / "out" / "scenario.yaml").read_text())["plugins"]
    assert plugin == {"file": "plugins/parts.py", "origin": str(folder / "parts.py")}
    for command in COMMANDS:
        assert play(command) == 0  # it finds the file beside itself
        assert list_modules() == {str(folder / "parts.py")}
    out, again = (
        json.loads((folder / name / "manifest.json").read_text())
        for name in ("out", "again")
    )
    assert out["fingerprint"] == again["fingerprint"]
    with open("parts.py", "a") as file:
        file.write("# changed\n")
    capsys.readouterr()
    assert play("verify") == 1  # the copy has no such file beside it
    assert "mine.npz" in capsys.readouterr().err
    shutil.copy("mine.npz", folder / "out" / "plugins")
    assert play("recompute") == 0
    assert list_modules() == {str(folder / "out" / "plugins" / "parts.py")}


def test_run_has_a_copy_of_a_package_with_all_that_lies_in_it(folder):
    write("mynet/")
    assert main(RUN.split()) == 0
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    beside = {name for name in manifest["files"] if name.startswith("plugins/")}
    names = "__init__.py", "reads.py", "mine.npz"
    assert beside == {f"plugins/mynet/{name}" for name in names}
    assert play("verify") == 0
    assert str(folder / "mynet" / "reads.py") in list_modules()
    write_data("mynet/mine.npz", seed=1)  # which makes it another package
    assert play("verify") == 0
    assert str(folder / "out" / "plugins" / "mynet" / "reads.py") in list_modules()
    shutil.rmtree("mynet")
    for command in COMMANDS:
        assert play(command) == 0


def test_process_that_begins_with_scenarios_knows_a_package(folder):
    """As workers of a study do; the package imports what is being imported then."""
    code = (
        "import simfed.study.places\n"
        "from simfed.ground.registry import registry\n"
        "assert 'mine' in registry('dataset')"
    )
    environment = {**os.environ, IMPORTS: str(folder / "mynet")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
