"""Registries: lazy, with a did-you-mean, open to installed packages and scripts."""

import sys

import pytest

import simfed.ground.registry
from simfed.ground import IMPORTS, Registry
from simfed.ground.registry import blame_part, import_file, registry


class _EntryPoint:
    name, dist = "theirs", None

    def load(self):
        return "their part"


def test_naming_does_not_import():
    before = set(sys.modules)
    assert "top-k" in registry("codec").names()
    assert "simfed.compress." not in " ".join(set(sys.modules) - before)


def test_entry_points_and_registered_parts_are_found(monkeypatch):
    monkeypatch.setattr(
        simfed.ground.registry, "entry_points", lambda group: [_EntryPoint()]
    )
    parts = Registry("policy", {"text": "builtins:str"})
    parts.add("mine", int)
    assert parts.names() == ["text", "theirs", "mine"]
    assert [parts.get(name) for name in parts.names()] == [str, "their part", int]
    origins = " ".join(parts.origin(name) for name in parts.names())
    assert origins == "built in installed registered"


def test_a_taken_name_is_replaced_where_asked():
    policies = Registry("policy", {"text": "builtins:str"})
    policies.add("text", int, replace=True)
    assert policies.get("text") is int


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
    tmp_path, monkeypatch, add_part, call, sentence
):
    monkeypatch.setenv(IMPORTS, "")  # and as it was afterwards
    path = tmp_path / "parts.py"
    path.write_text(PARTS)
    import_file(path)
    [module] = [
        m for name, m in sys.modules.items() if name.startswith("simfed_import_parts_")
    ]
    add_part("policy", "first", module.First)
    add_part("policy", "second", module.Second)
    with pytest.raises((ArithmeticError, ValueError)) as error:
        call(module)
    blame = blame_part(error.value)
    del sys.modules[module.__name__]
    assert (blame is None) if sentence is None else blame.startswith(sentence)
