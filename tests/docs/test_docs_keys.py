"""Pages and code name the same: every part has its page.

Keys and commands on pages exist.
"""

import inspect
import re
from pathlib import Path

import pytest
import typer.main

from simfed.cli.app import app
from simfed.device.load import PHASES
from simfed.flower import WorkFile
from simfed.ground.registry import registry
from simfed.scenario import FleetFile, build_scenario_schema
from simfed.scenario.study import Study

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE_OF = {
    "method": "methods",
    "codec": "compression",
    "policy": "policies",
    "selection": "fleets",
    "availability": "fleets",
    "rule": "robustness",
    "attack": "robustness",
    "model": "learning",
    "dataset": "data",
}
"""Kind → the page that CONTRIBUTING.md names."""
PAGES = [page for page in sorted(DOCS.glob("*.md")) if page.stem != "from-flgo"]
PAGES += [DOCS.parent / "README.md", DOCS.parent / "scenarios" / "README.md"]
FILES = (".parquet", ".py", ".md", ".json", ".yaml")
OTHERS = {"repeatable", "energy", "damped", "chain", "layers", "quantiles"}
"""Keys of a manifest, of levels, of rules, of codes and of profiles."""


def list_properties(schema):
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        schema = schema.values()
    for inner in schema:
        if isinstance(inner, (dict, list)):
            yield from list_properties(inner)


def list_options(codec):
    return inspect.signature(registry("codec").get(codec)).parameters


SCENARIO = build_scenario_schema()
OF_FILES = [model.model_json_schema() for model in (Study, FleetFile, WorkFile)]
COMMANDS = typer.main.get_command(app)
PARTS = {kind: registry(kind).names() for kind in PAGE_OF}
KEYS = {
    *list_properties([SCENARIO, *OF_FILES]),
    *(option for name in PARTS["codec"] for option in list_options(name)),
    *(name for names in PARTS.values() for name in names),
    *PHASES,
    *OTHERS,
}


@pytest.mark.parametrize("kind", PAGE_OF)
def test_every_part_stands_on_the_page_of_its_kind(kind):
    text = (DOCS / f"{PAGE_OF[kind]}.md").read_text()
    for name in PARTS[kind]:
        if registry(kind).origin(name) == "built in":
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name


def name_page(page):
    return f"{page.parent.name}-{page.stem}"


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_key_that_a_page_names_exists(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for code in re.findall(r"`([^`\n]+)`", text):
        top, named = re.match(r"[a-z_]+(?=[.\[])", code), []
        if top and top[0] in SCENARIO["properties"] and not code.endswith(FILES):
            named = re.findall(r"[a-z_]{2,}", code.partition("=")[0])
        elif re.match(r"\{?[a-z_]+: (?!ClassVar)", code):
            named = re.findall(r"(?:^|[{,]\s*)\{?([a-z_]{2,}):", code)
        assert KEYS.issuperset(named), code


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_command_and_option_that_a_page_names_exists(page):
    text = page.read_text().replace("\\\n", " ")
    told = re.findall(r"`simfed ([a-z][^`\n]*)`", text)
    for block in re.findall(r"^```.*?^```", text, flags=re.S | re.M):
        told += re.findall(r"(?:^|\$ |&& )simfed ([a-z][^\n#]*)", block, flags=re.M)
    for line in told:
        command, words = COMMANDS, line.split()
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if hasattr(command, "commands") and words:
            assert not re.fullmatch("[a-z]+", words[0]), line
        known = {"--debug", "--help"}
        known.update(*(one.opts + one.secondary_opts for one in command.params))
        assert known.issuperset(re.findall(r"(?<![\w-])--[a-z-]+", line)), line
