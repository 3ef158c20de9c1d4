"""Parts are composed: nobody changes what another module keeps to itself."""

import importlib
import inspect
import pkgutil

import pytest

import simfed.sim

ROOMS = [
    r.name
    for r in pkgutil.iter_modules(simfed.__path__)
    if r.ispkg and r.name != "native"
]


def classes_of(room):
    package = importlib.import_module(f"simfed.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"simfed.{room}."):
        try:
            imported = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] != "flwr":  # `.ci/flower` has it
                raise
            continue
        for _, kind in inspect.getmembers(imported, inspect.isclass):
            if kind.__module__ == module.name:
                yield kind


def does_anything(method):
    """Whether this is a method that subclasses are not asked to write."""
    code = getattr(method, "__code__", None)
    return code is not None and "NotImplementedError" not in code.co_names


def private_overrides(kind):
    """Methods with an underscore that a class changes of a base in another module of
    simfed.
    """
    for base in kind.__mro__[1:]:
        if base.__module__ == kind.__module__ or not base.__module__.startswith(
            "simfed."
        ):
            continue
        for name, method in vars(base).items():
            private = name.startswith("_") and not name.startswith("__")
            if private and name in vars(kind) and does_anything(method):
                yield f"{kind.__module__}.{kind.__name__}.{name} of {base.__module__}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_class_overrides_what_is_private_to_another_module(room):
    assert [name for kind in classes_of(room) for name in private_overrides(kind)] == []


def test_an_override_would_be_found():
    class Meddling(simfed.sim.Simulation):
        def _border(self, outcome):
            self.stopped = True

    assert len(list(private_overrides(Meddling))) == 1
