"""What simfed depends on: declared versions, installed ones, and weaknesses that are
known.
"""

import csv
from configparser import ConfigParser
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
with (ROOT / ".ci" / "advisories.csv").open(encoding="utf-8") as file:
    KNOWN = list(csv.DictReader(file))


def declared():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].strip().split("\n")
    return [*map(Requirement, lines)]


def lowest(requirement):
    return next(Version(s.version) for s in requirement.specifier if s.operator == ">=")


@pytest.mark.parametrize("weakness", KNOWN, ids=lambda row: row["name"])
def test_known_weaknesses_are_mended_in_every_version_allowed_and_installed(weakness):
    mended, package = Version(weakness["mended_in"]), weakness["package"]
    # simfed never calls what is weak: older versions may stay
    if weakness["reached"] == "no":
        weak = f"{weakness['what'].split()[0]}("
        for path in ROOT.glob("simfed/**/*.py"):
            assert weak not in path.read_text(), path
        return
    for requirement in declared():
        if requirement.name.lower() == package:
            assert lowest(requirement) >= mended
    # what a machine was installed with is not simfed's to mend, unless it is needed to
    # run
    if package != "setuptools":
        with suppress(PackageNotFoundError):
            assert Version(version(package)) >= mended


def test_what_is_installed_fits_together():
    """As `pip check` says it, of what simfed needs, and what that needs, and so on."""
    waiting, seen = declared(), set()
    while waiting:
        requirement = waiting.pop()
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"extra": ""}):
            continue
        installed = distribution(requirement.name)
        assert requirement.specifier.contains(installed.version, prereleases=True)
        if requirement.name.lower() not in seen:
            seen.add(requirement.name.lower())
            waiting += map(Requirement, installed.requires or ())
