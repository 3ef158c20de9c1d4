"""`simfed verify`: a run is what its scenario comes to.

Its files are held against each other (`simfed.verify.invariants`), then the scenario is
taken up again with the parts that play it: the run is played once more over its
journal, and every row is held against what comes out (`simfed.verify.again.replay`).
What learning came to is not derived.
"""

from __future__ import annotations

import os
from pathlib import Path

from simfed.experiment.assembly import Parts, load_parts
from simfed.experiment.checks import Checks
from simfed.experiment.running import collect_facts_at_start, make_self_contained
from simfed.ground.errors import InputError, InputErrors
from simfed.record.manifest import NOT_ALWAYS
from simfed.record.read import Run, open_run
from simfed.scenario.load import import_plugins
from simfed.verify.again import compare_versions, replay
from simfed.verify.invariants import Broken, RunColumns, find_broken, run_check


def verify(path: str | os.PathLike[str], *, allow_plugins: bool = False) -> list[str]:
    """Return what is broken in a run directory, one sentence each; empty: nothing.

    Files are held against each other first; only where they agree is the run played
    again, which takes as long as a time-only run of the scenario. An app on Flower's
    messages follows from no scenario: its clock's rows are checked in place of it.

    Args:
        path: the run directory.
        allow_plugins: run the plug-ins that the run keeps, see `simfed.load_scenario`.

    Returns:
        Sentences that begin with the file; the last one names other versions of
        libraries than the run's, where something is broken.

    Raises:
        InputError: for what is no finished run directory at all, or plug-ins without
            consent.
    """
    run = open_run(path)
    mode = run.manifest.get("mode")
    broken = find_broken(run, clock=mode == "flower")
    if not broken and mode != "flower":  # what an app did follows from no scenario
        broken = _follow(run, path, allow_plugins=allow_plugins)
    return broken + (compare_versions(run) if broken else [])


def _follow(
    run: Run, path: str | os.PathLike[str], *, allow_plugins: bool
) -> list[str]:
    """Return the differences of a run from what its scenario comes to.

    Args:
        run: whose files agree with each other.
        path: its directory, whose copies of files the scenario is built from.
        allow_plugins: run the plug-ins that it keeps.
    """
    import_plugins(
        run.scenario,
        source=f"{path}{os.sep}scenario.yaml",
        folder=Path(path),
        allow=allow_plugins,
    )
    try:
        parts = load_parts(run, path)
    except InputErrors as several:
        return [*map(str, several.sentences())]
    except InputError as error:
        return [str(error)]
    facts = RunColumns(run)
    # of another manifest, playing again would trip over what it says
    broken = run_check(_manifest_is_that_of_such_a_run, facts, parts)
    return broken or run_check(_plays_again, facts, parts)


def _manifest_is_that_of_such_a_run(facts: RunColumns, parts: Parts) -> Broken:
    """Yield what a run says from its beginning otherwise than its scenario does.

    How the scenario and the files beside it are written follows from it as well.

    Args:
        facts: the run.
        parts: those that its scenario comes to, built anew.
    """
    manifest = facts.run.manifest
    again = collect_facts_at_start(parts, manifest["mode"], manifest["device"])
    keys = again.keys() | (manifest.keys() & NOT_ALWAYS)
    for key in sorted(keys - {"versions", "warnings"}):
        if manifest.get(key) != again.get(key):
            yield (
                f"manifest.json: {key} is {manifest.get(key)}, that of scenario.yaml "
                f"is {again.get(key)}"
            )
    missing = sorted(set(Checks(parts).warnings()) - set(manifest["warnings"]))
    if missing:
        yield f"manifest.json: the run does not warn of this: {missing[0]}"
    files, text = make_self_contained(parts)
    if text != facts.run.scenario_yaml:
        yield "scenario.yaml: is not as simfed writes this scenario"
    strange = sorted(files.keys() ^ manifest["files"].keys())
    if strange:
        yield (
            f"manifest.json: {strange[0]} is either no file of the scenario or not "
            f"named here"
        )


def _plays_again(facts: RunColumns, parts: Parts) -> Broken:
    """Yield the differences of the tables from what playing again comes to."""
    yield from replay(facts.run, parts)
