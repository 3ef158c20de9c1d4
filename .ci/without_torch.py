"""For pytest in an environment without torch: what comes to need it is skipped, and
counted.

`.ci/on_python` names it; every other failure stays one.
"""

import pytest

_SAID = "No module named 'torch"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    """Files that import torch, or what imports it, at their head."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and _SAID in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "needs torch")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and _SAID in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "needs torch")
