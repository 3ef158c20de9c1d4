"""Without Flower, what needs it is not collected: `.ci/flower` runs it where Flower is installed."""

from importlib.util import find_spec

HAS_FLOWER = find_spec("flwr") is not None

NEED_FLOWER = ["exchanges", "grid", "hooks", "legacy", "loading", "messages", "play", "work"]

if not HAS_FLOWER:
    collect_ignore = [f"simfed/flower/{name}.py" for name in NEED_FLOWER]
    collect_ignore_glob = ["tests/flower/test_flower_app*.py"]


def pytest_report_header() -> str:
    return (
        "" if HAS_FLOWER else "flwr is not installed: tests of Flower apps are left to .ci/flower"
    )
