"""For the tests of reports."""

from report_runs import report_folder, report_run  # noqa: F401
