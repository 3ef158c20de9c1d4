"""For pytest in an environment without torch: tests that come to need it are skipped, and counted.

`.ci/on_python` names it; every other failure stays one.
"""

import re
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path):
    """Files that import torch at their head."""
    if collection_path.suffix == ".py":
        text = collection_path.read_text(encoding="utf-8")
        return re.search(r"^(import|from) torch\b", text, re.MULTILINE) is not None or None
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    error = call.excinfo.value if call.excinfo else None
    while error is not None and getattr(error, "name", None) != "torch":
        error = error.__cause__ or error.__context__
    if isinstance(error, ModuleNotFoundError):
        report = outcome.get_result()
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "needs torch")
