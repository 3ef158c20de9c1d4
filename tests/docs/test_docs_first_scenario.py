"""The first page reads the quickstart as it is, line by line, and what it says of it is
so.
"""

import re
from pathlib import Path

import simfed
from simfed.learn import model_facts

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-scenario.md").read_text()
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"


def test_its_lines_are_those_of_the_quickstart():
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    assert "".join(blocks) == re.sub("^#.*\n", "", QUICKSTART.read_text(), flags=re.M)


def test_what_it_says_of_defaults_and_sizes_is_so():
    scenario = simfed.load_scenario(QUICKSTART)
    assert scenario.method.kind == "fedkd"
    assert scenario.compression.strategies == ("top-k", "random-k", "periodic-k")
    assert f"{model_facts('lenet5', (1, 28, 28), 10).parameters:,}" == "61,706"
    assert "61,706" in PAGE
