"""The reference page says every key, and is the one that is committed."""

import re
from pathlib import Path

import pytest
from scenario_page import format_page

from simfed.ground import REGISTRIES
from simfed.scenario import build_scenario_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scenario.md"


@pytest.fixture(autouse=True)
def only_built_in(monkeypatch):
    """What other tests of this process have registered is not on the page."""
    for entries in REGISTRIES.values():
        monkeypatch.setattr(entries, "_added", {})


def test_the_committed_page_is_what_the_script_prints():
    command = "python analysis/scenario_page.py > docs/scenario.md"
    assert PAGE.read_text(encoding="utf-8") == format_page(), command


def test_every_key_is_explained():
    schema = build_scenario_schema()
    for name, mapping in {"Scenario": schema, **schema["$defs"]}.items():
        for key, node in mapping["properties"].items():
            assert node.get("description"), f"{name}.{key}"


def test_every_mapping_has_a_section_and_every_link_a_target():
    page = format_page()
    titles = re.findall(r"^## `(.+)`$", page, re.MULTILINE)
    assert len(titles) == len(set(titles)) == len(build_scenario_schema()["$defs"])
    anchors = {
        re.sub(r"[^a-z0-9_-]", "", title.lower().replace(" ", "-")) for title in titles
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def sections():
    """Title → text of the page's sections."""
    parts = re.split(r"^## (.+)$", format_page(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_a_kind_has_a_section_with_the_keys_and_defaults_of_its_constructor():
    pages = sections()
    for row in (
        "| `warmup` | whole number | `5` | warm-up plays per strategy |",
        "| `ema` | number or `1/n` | `0.1` |",
        "| `initial` | `warm-up-mean`, `ema-from-zero` | `warm-up-mean` |",
        "| `count_forced` | `true`, `false` | `false` |",
    ):
        assert row in pages["`policy` of `kind: ascend`"]
    uniform = pages["`policy` of `kind: uniform`"]
    assert "| `strategy` | `top-k`, " in uniform
    assert "**required**" in uniform
    assert "`warmup`" not in pages["`policy`"]


def test_a_policy_of_ones_own_is_in_schema_and_page(add_part):
    class Mine:
        """Mine alone."""

        def __init__(
            self, arms, reward_range=(-1.0, 1.0), *, depth: int = 3, mood="good"
        ):
            pass

    add_part("policy", "mine", Mine)
    options = build_scenario_schema()["$defs"]["PolicySpec.mine"]["properties"]
    assert (options["depth"]["default"], options["depth"]["type"]) == (3, "integer")
    assert options["mood"]["default"] == "good"
    assert sections()["`policy` of `kind: mine`"].strip().startswith("Mine alone.")
