"""What simfed depends on: declared versions, installed ones, and weaknesses that are
known.
"""

import csv
from configparser import ConfigParser
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
    return [
        Requirement(line)
        for line in setup["options"]["install_requires"].strip().split("\n")
    ]


def lowest(requirement):
    return next(Version(s.version) for s in requirement.specifier if s.operator == ">=")


@pytest.mark.parametrize("weakness", KNOWN, ids=lambda row: row["name"])
def test_known_weaknesses_are_mended_in_every_version_allowed_and_installed(weakness):
    mended = Version(weakness["mended_in"])
    # simfed never calls what is weak: older versions may stay
    if weakness["reached"] == "no":
        assert not _calls(weakness["what"].split()[0])
        return
    for requirement in declared():
        if requirement.name.lower() == weakness["package"]:
            assert lowest(requirement) >= mended, (
                f"setup.cfg allows {requirement}: {weakness}"
            )
    try:
        installed = Version(version(weakness["package"]))
    except PackageNotFoundError:
        return
    # what a machine was installed with is not simfed's to mend, unless it is needed to
    # run
    if weakness["package"] != "setuptools":
        assert installed >= mended, f"{installed} is installed: {weakness}"


def _calls(name):
    """The modules that call, say, `torch.load`."""
    return [
        path
        for path in (ROOT / "simfed").rglob("*.py")
        if f"{name}(" in path.read_text()
    ]


def test_what_is_installed_fits_together():
    """As `pip check` says it, of what simfed needs, and what that needs, and so on."""
    waiting, seen, wrong = declared(), set(), []
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate(
            {"extra": ""}
        ):
            continue
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement} is not installed")
            continue
        if not requirement.specifier.contains(installed.version, prereleases=True):
            wrong.append(f"{requirement}, but {installed.version} is installed")
        if requirement.name.lower() not in seen:
            seen.add(requirement.name.lower())
            waiting += [Requirement(text) for text in installed.requires or ()]
    assert not wrong
