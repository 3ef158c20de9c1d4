"""Style, types and the direction of imports, checked by the tools that know them."""

import subprocess
import sys
from pathlib import Path

import grimp
import networkx as nx
import pytest
from importlinter.api import read_configuration

from simfed.cli import main
from simfed.experiment import check
from simfed.study import plan_study

pytestmark = pytest.mark.usefixtures("own_parts")
ROOT = Path(__file__).resolve().parents[2]
TOOLS = {
    "imports point down": [
        "-c",
        ("from importlinter.cli import lint_imports_command as c; c()"),
    ],
    "style": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "."],
    "types": ["-m", "mypy"],
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(w, marks=[pytest.mark.long] if w == "types" else []) for w in TOOLS],
)
def test_tools_are_content(what):
    command = [sys.executable, *TOOLS[what]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def floors_of(text):
    """The rooms of each line, from the top floor down."""
    rooms = [line.split("  ")[0].split(" | ") for line in text.strip().splitlines()]
    return [sorted(floor) for floor in rooms]


def test_the_picture_in_the_readme_has_the_floors_of_the_linter():
    settings = read_configuration(str(ROOT / "pyproject.toml"))
    floors = settings["contracts_options"][0]["layers"]
    architecture = (ROOT / "README.md").read_text().split("## Architecture")[1]
    assert floors_of(architecture.split("```")[1]) == floors_of("\n".join(floors))


def test_no_circle_of_imports_not_even_a_lazy_one():
    """Those inside functions and those for type checkers count."""
    graph = grimp.build_graph("simfed", cache_dir=None)
    imports = nx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    circles = [
        sorted(c) for c in nx.strongly_connected_components(imports) if len(c) > 1
    ]
    assert circles == []


def test_every_scenario_that_ships_is_valid():
    files = {str(path): path.read_text() for path in ROOT.glob("scenarios/*.yaml")}
    clock = [name for name, text in files.items() if "facts: {" in text]
    learning = files.keys() - clock
    assert main(["validate", "--allow-plugins", *learning]) == 0
    assert main(["validate", "--time-only", *clock]) == 0


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("scenarios/studies/*.yaml")), ids=lambda path: path.stem
)
def test_every_study_that_ships_has_valid_scenarios(path):
    """As `simfed study run` checks them.

    Here not all, but every value of every axis.
    """
    plan = plan_study(path, allow_plugins=True)
    checked = set()
    for run in plan.runs:
        if not run.point.items() <= checked:
            check(run.scenario, source=plan.study.base)
            checked |= run.point.items()
    assert checked


def test_every_scenario_says_what_it_asks():
    for path in (ROOT / "scenarios").rglob("*.yaml"):
        if path.parent.name == "profiles":
            continue  # of devices
        header = path.read_text().split("\n\n")[0]
        for word in ("Question", "Expected", "Runs in"):
            assert word in header, f"{path} has no {word}"
