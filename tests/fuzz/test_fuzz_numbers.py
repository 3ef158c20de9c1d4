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
    -(10**400),
    -1e308,
    5e-324,
    math.inf,
    -math.inf,
    -0.0,
    0,
    -1,
    False,
    2**63,
    10**18,
    "10",
    "",
    "nan",
    "1e400 s",
    None,
    [],
    {},
]

FILES = {
    "scenario": (readers.SCENARIO, "scenario.yaml", readers.scenario),
    "study": (readers.STUDY, "study.yaml", readers.study),
    "cases": (readers.CASES, "cases.json", readers.cases),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return readers.corpus(tmp_path_factory.mktemp("numbers") / "good")


def leaves(value, path=()):
    """The places of all values that hold no others."""
    if isinstance(value, (dict, list)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inner:
            yield from leaves(part, (*path, key))
    else:
        yield path


def with_value(data, path, value):
    changed = copy.deepcopy(data)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def sentences_of(read, path):
    """What a file is refused with; nothing where it is read."""
    try:
        read(path)
    except InputErrors as several:
        return list(map(str, several.errors))
    except InputError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    "values", [ODD, pytest.param(MORE, marks=pytest.mark.long)], ids=["odd", "more"]
)
def test_a_value_that_nobody_means_is_refused_in_a_sentence_or_taken(
    good, kind, values
):
    text, name, read = FILES[kind]
    write = json.dumps if name.endswith("json") else yaml.safe_dump
    data = json.loads(text) if name.endswith("json") else parse_yaml(text, where=name)
    for path in leaves(data):
        for value in values:
            (good / name).write_text(write(with_value(data, path, value)))
            for sentence in sentences_of(read, good / name):
                assert "\n" not in sentence, (path, value)


def test_a_size_that_no_float_holds_is_refused(good):
    profile = (good / "profile.yaml").read_text()
    data = parse_yaml(profile, where="profile.yaml")
    model = next(iter(data["training"]))
    for size in (10**400, math.nan, math.inf, True, 1e308):
        changed = copy.deepcopy(data)
        changed["training"][model] = {size: "1 ms"}
        (good / "profile.yaml").write_text(yaml.safe_dump(changed))
        for sentence in sentences_of(readers.profile, good / "profile.yaml"):
            assert "\n" not in sentence
    (good / "profile.yaml").write_text(profile)
