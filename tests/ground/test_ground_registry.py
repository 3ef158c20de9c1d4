"""Registries: lazy, with a did-you-mean, open to installed packages and scripts."""

import sys

import pytest

import simfed.ground.registry
from simfed import InputError
from simfed.ground import IMPORTS, REGISTRIES, Registry
from simfed.ground.registry import blame_part, import_file, registry


class _EntryPoint:
    name, dist = "theirs", None

    def load(self):
        return "their part"


def test_a_wrong_name_gets_a_hint():
    with pytest.raises(
        InputError, match=r"no model 'lenet', expected .* \(did you mean 'lenet5'\?\)"
    ):
        registry("model").get("lenet")


def test_a_wrong_kind_gets_a_hint():
    with pytest.raises(InputError, match=r"did you mean 'model'"):
        registry("models")


def test_naming_does_not_import():
    before = set(sys.modules)
    assert "top-k" in registry("codec").names()
    assert not {
        m for m in set(sys.modules) - before if m.startswith("simfed.compress.")
    }


def test_entry_points_and_registered_parts_are_found(monkeypatch):
    monkeypatch.setattr(
        simfed.ground.registry, "entry_points", lambda group: [_EntryPoint()]
    )
    parts = Registry("policy", {"text": "builtins:str"})
    parts.add("mine", int)
    assert parts.names() == ["text", "theirs", "mine"]
    assert (parts.get("text"), parts.get("theirs"), parts.get("mine")) == (
        str,
        "their part",
        int,
    )
    assert [parts.origin(name) for name in parts.names()] == [
        "built in",
        "installed",
        "registered",
    ]


def test_a_taken_name_is_refused_unless_replaced():
    policies = Registry("policy", {"text": "builtins:str"})
    with pytest.raises(
        InputError, match="there is a policy 'text', expected a new name"
    ):
        policies.add("text", int)
    policies.add("text", int, replace=True)
    assert policies.get("text") is int


@pytest.mark.parametrize("name", [" ", None])
def test_a_part_needs_a_name(name):
    policies = Registry("policy", {})
    with pytest.raises(InputError, match="text as the name of a policy"):
        policies.add(name, int)
    assert policies.names() == []


@pytest.mark.parametrize("kind", list(REGISTRIES))
def test_every_built_in_part_can_be_imported(kind):
    for name in registry(kind).names():
        assert registry(kind).get(name) is not None


PARTS = """
def stumble():
    raise ValueError("no\\nmore")


class First:
    pass


class Second:
    def pull(self, rng):
        return rng / 0
"""


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda module: module.Second().pull(1),
            "your policy 'second', called as pull(rng), raised ZeroDivisionError: "
            "division by zero",
        ),
        (
            # of neither: the first part of the file stands for it
            lambda module: module.stumble(),
            "your policy 'first', called as stumble(), raised ValueError: no "
            "(parts.py, line 3",
        ),
        (lambda module: int("x"), None),
    ],
)
def test_an_error_is_blamed_on_the_part_whose_code_was_called(
    tmp_path, monkeypatch, call, sentence
):
    monkeypatch.setenv(IMPORTS, "")  # and as it was afterwards
    (tmp_path / "parts.py").write_text(PARTS)
    import_file(tmp_path / "parts.py")
    module = next(
        m for name, m in sys.modules.items() if name.startswith("simfed_import_parts_")
    )
    policies = registry("policy")
    policies.add("first", module.First)
    policies.add("second", module.Second)
    try:
        with pytest.raises((ArithmeticError, ValueError)) as error:
            call(module)
        blame = blame_part(error.value)
    finally:
        policies.remove("first")
        policies.remove("second")
        del sys.modules[module.__name__]
    assert (blame is None) if sentence is None else blame.startswith(sentence)
