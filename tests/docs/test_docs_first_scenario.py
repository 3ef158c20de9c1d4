"""The first page reads the quickstart as it is, line by line, and what it says of it is
so.
"""

import re
from pathlib import Path

import simfed

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-scenario.md").read_text()


def test_its_lines_are_those_of_the_quickstart():
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    lines = (
        (ROOT / "scenarios" / "quickstart.yaml").read_text().splitlines(keepends=True)
    )
    assert "".join(blocks) == "".join(
        line for line in lines if not line.startswith("#")
    )


def test_what_it_says_of_defaults_and_sizes_is_so():
    from simfed.learn import model_facts

    scenario = simfed.load_scenario(ROOT / "scenarios" / "quickstart.yaml")
    assert scenario.method.kind == "fedkd"
    assert scenario.compression.strategies == ("top-k", "random-k", "periodic-k")
    facts = model_facts("lenet5", (1, 28, 28), 10)
    assert "61,706" in PAGE
    assert facts.parameters == 61_706
