"""What holds for all tests: which of them are collected, and the examples of property tests.

Property tests draw the same examples in every run, so that a suite that passed passes again;
`pytest --hypothesis-profile=explore` draws new ones. Without Flower, what needs it is not
collected: `.ci/flower` runs it, with Flower installed.
"""

from importlib.util import find_spec

from hypothesis import settings

settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeat")

HAS_FLOWER = find_spec("flwr") is not None
NEED_FLOWER = (
    *("crew", "exchanges", "grid", "hooks", "legacy", "loading", "messages", "play", "work"),
)

if not HAS_FLOWER:
    collect_ignore = [f"simfed/flower/{name}.py" for name in NEED_FLOWER]
    collect_ignore_glob = ["tests/flower/*flower_app*.py"]


def pytest_report_header() -> str:
    """What is left out."""
    return "" if HAS_FLOWER else "no flwr: tests of Flower apps are left to .ci/flower"
