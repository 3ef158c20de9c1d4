"""Addresses of before the rooms: they are followed, with a warning that names the new one."""

import importlib
import subprocess
import sys

import pytest

from simfed.ground.moved import NEW_ADDRESSES, NEW_NAMES


@pytest.mark.parametrize(("old", "new"), NEW_ADDRESSES.items(), ids=lambda name: str(name))
def test_an_old_address_is_the_module_at_the_new_one(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)


@pytest.mark.parametrize(("old", "new"), NEW_NAMES.items(), ids=lambda name: str(name))
def test_an_old_name_is_what_it_is_called_now(old, new, monkeypatch):
    (module, name), (home, present) = (one.rsplit(".", 1) for one in (old, new))
    if module in NEW_ADDRESSES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{module}.* is simfed.* now"):
        moved = getattr(importlib.import_module(module), name)
    assert moved is getattr(importlib.import_module(home), present)


def test_a_name_that_never_was_is_none_of_a_module():
    with pytest.raises(AttributeError, match="has no attribute 'Flotilla'"):
        importlib.import_module("simfed.fleet").Flotilla  # noqa: B018


def test_the_warning_points_at_the_line_that_imports(tmp_path):
    script = tmp_path / "parts.py"
    script.write_text("import simfed\n\nfrom simfed.errors import InputError\n")
    shown = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", str(script)],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert "parts.py:3: DeprecationWarning: simfed.errors is simfed.ground.errors now" in shown


def test_an_address_that_never_was_is_no_module():
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("simfed.nowhere")
