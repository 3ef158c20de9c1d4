"""The reference page says every key, and is the one that is committed."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from simfed.cli.app import app
from simfed.scenario.model import _POLICY_KEYS
from simfed.scenario.reference import reference_page, scenario_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scenario.md"


def test_the_committed_page_is_what_the_command_prints():
    printed = CliRunner().invoke(app, ["schema", "--format", "markdown"])
    assert printed.exit_code == 0
    assert printed.output == reference_page()
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "simfed schema --format markdown > docs/scenario.md"  # fmt: skip


def test_every_key_is_explained():
    schema = scenario_schema()
    for name, mapping in {"Scenario": schema, **schema["$defs"]}.items():
        for key, node in mapping["properties"].items():
            assert node.get("description"), f"{name}.{key}"


def test_every_mapping_has_a_section_and_every_link_a_target():
    page = reference_page()
    titles = re.findall(r"^## `(.+)`$", page, re.MULTILINE)
    assert len(titles) == len(set(titles)) == len(scenario_schema()["$defs"])
    anchors = {re.sub(r"[^a-z0-9_-]", "", title.lower()) for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def test_defaults_that_depend_on_the_policy_are_said():
    for keys in _POLICY_KEYS.values():
        for key, default in keys.items():
            if default is not ...:
                assert re.search(rf"\| `{key}` .*; {default:g} if omitted \|", reference_page())


def test_an_unknown_format_is_one_sentence():
    refused = CliRunner().invoke(app, ["schema", "--format", "xml"])
    assert "json or markdown" in str(refused.exception)
