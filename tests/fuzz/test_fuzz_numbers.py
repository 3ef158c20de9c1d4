"""Every number of a file, and every other value, as one that nobody means: refused in a
sentence, or taken.
"""

import copy
import json
import math

import pytest
import readers
import yaml

from simfed import InputError, InputErrors
from simfed.ground import parse_yaml

ODD = [10**400, 1e308, math.nan, True]
MORE = [
    *(-(10**400), -1e308, 5e-324, math.inf, -math.inf, -0.0, 0, -1, False, 2**63),
    *(10**18, "10", "", "nan", "1e400 s", None, [], {}),
]

FILES = {
    "scenario": (readers.SCENARIO, "scenario.yaml", readers.scenario),
    "study": (readers.STUDY, "study.yaml", readers.study),
    "cases": (readers.CASES, "cases.json", readers.cases),
}


def leaves(value, path=()):
    """The places of all values that hold no others."""
    if isinstance(value, (dict, list)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inner:
            yield from leaves(part, (*path, key))
    else:
        yield path


def list_changed(data, values):
    """The data with each of these values in the place of each of its own."""
    for path in leaves(data):
        for value in values:
            changed = copy.deepcopy(data)
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            yield changed


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    "values", [ODD, pytest.param(MORE, marks=pytest.mark.long)], ids=["odd", "more"]
)
def test_value_that_nobody_means_is_refused_in_a_sentence_or_taken(good, kind, values):
    text, name, read = FILES[kind]
    data, write = parse_yaml(text, where=name), yaml.safe_dump
    if name.endswith("json"):
        data, write = json.loads(text), json.dumps
    for changed in list_changed(data, values):
        (good / name).write_text(write(changed))
        try:
            read(good / name)
        except (InputError, InputErrors) as error:
            for one in getattr(error, "errors", [error]):
                assert "\n" not in str(one)
