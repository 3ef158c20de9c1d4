"""Addresses of runs: hashes of everything that their results depend on.

The resolved scenario and its seed, the data, the files it names (by content, wherever
they are), the code. Not: its name, when it saves checkpoints, who runs it where.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from simfed.experiment.assembly import make_parts
from simfed.fleet.world import WorldSpec
from simfed.ground.inputs import named_in_errors
from simfed.record.digest import digest_file, digest_folder, digest_text, digest_value
from simfed.record.manifest import versions
from simfed.record.read import read_manifest
from simfed.replay.key import (
    code_digest,
    data_digest,
    digest_parts,
    learning_key,
    list_bases,
)
from simfed.scenario import Scenario
from simfed.scenario.fleet_file import FleetFile
from simfed.schema.fields import list_files, rename_texts

_RUNNERS = ("study/work.py", "study/kinds.py")
"""The modules of a study's process that count as well."""


class AddressedRun(TypedDict, total=False):
    """The facts of which an address is the digest.

    Runs of apps have no `data` and no `parts`, runs of scenarios no `versions`.
    """

    scenario: dict[str, object]
    data: object
    parts: object
    versions: dict[str, str]
    code: str
    mode: str
    """`time-only`, the device, or `flower`."""


def compute_addresses(facts: AddressedRun, seeds: Sequence[int]) -> list[str]:
    """Return the addresses of a scenario's runs, one per seed, in their order.

    Equal addresses mean equal results; a study that is run again finds them done.

    Args:
        facts: what the results depend on, as `collect_facts` returns it; its own seed
            does not count.
        seeds: of the runs.

    Returns:
        20 hexadecimal digits each.
    """
    here = "the seed of one run"  # the text is long, and all but its seed the same
    text = json.dumps({**facts, "scenario": {**facts["scenario"], "seed": here}})
    before, after = text.split(f'"seed": "{here}"')
    return [digest_text(f'{before}"seed": {seed}{after}')[:20] for seed in seeds]


def collect_facts(
    scenario: Scenario, *, source: str | Path, device: str, time_only: bool
) -> AddressedRun:
    """Return all that the results of a scenario's runs depend on.

    Under other seeds nothing but the seed differs. Files count by their content,
    wherever they lie.

    Args:
        scenario: as it was validated; its name and its checkpoints do not count.
        source: its file, beside which profiles are looked for.
        device: `cpu`, `cuda` or `cuda:1`, whose number does not count.
        time_only: the clock alone is played.

    Raises:
        InputError: a file that it names cannot be read.
    """
    plain = scenario.model_dump(mode="json", exclude={"name", "checkpoint"})
    digests = _digest_files(scenario, source)
    # digested as `data`
    digests |= {path: key for key, path in scenario.dataset.paths.items()}
    digests |= dict.fromkeys(list_bases(scenario), "pretrained")
    policies = [scenario.policy_of_group(group) for group in scenario.clients]
    recorded = {policy.arms_from for policy in policies if policy.arms_from is not None}
    digests |= {path: str(read_manifest(path).get("fingerprint")) for path in recorded}
    return {
        "scenario": rename_texts(plain, digests),
        "data": data_digest(scenario),
        "parts": digest_parts(scenario),
        "code": own_code(),
        "mode": "time-only" if time_only else device.partition(":")[0],
    }


def collect_app_facts(fleet: FleetFile, *, source: str | Path) -> AddressedRun:
    """Return all that the results of an app's runs depend on.

    These are the fleet, the content of the app's folder, and the versions under both.

    Args:
        fleet: with its app; its name does not count.
        source: its file, beside which profiles are looked for.

    Raises:
        ValueError: a fleet without an app.
        InputError: a file that it names cannot be read.
    """
    if fleet.app is None:
        raise ValueError("a fleet without its app")
    plain = fleet.model_dump(mode="json", exclude={"name"})
    digests = _digest_files(fleet, source)
    digests[fleet.app.folder] = digest_folder(Path(fleet.app.folder))
    if fleet.charged.file is not None:
        with named_in_errors(fleet.charged.file):
            digests[fleet.charged.file] = digest_file(Path(fleet.charged.file))
    of_machine = ("platform", "processor")
    numbers = {
        name: number for name, number in versions().items() if name not in of_machine
    }
    return {
        "scenario": rename_texts(plain, digests),
        "versions": numbers,
        "code": code_digest(*_RUNNERS, "flower"),
        "mode": "flower",
    }


def _digest_files(world: WorldSpec, source: str | Path) -> dict[str, str]:
    """Return the digest of each profile and file that a scenario names."""
    profiles = make_parts(world, source).profile_files
    digests = {name: digest_file(file) for name, file in profiles.items()}
    files = (file for file in list_files(world) if Path(file).is_file())
    return digests | {file: digest_file(Path(file)) for file in files}


def compute_path_key(scenario: Scenario, *, device: str) -> str | None:
    """Return a key that runs share which learn exactly the same, whatever their clocks.

    So a study learns once for all of them. None where learning depends on the clock:
    server modes other than synchronous, edge servers, policies that learn or watch
    time, local work of a given time.

    Args:
        scenario: of the run, under its seed.
        device: where it learns.
    """
    policies = [scenario.policy_of_group(group) for group in scenario.clients]
    server = scenario.aggregation
    if server.mode != "synchronous" or server.edge_servers is not None:
        return None
    if any(policy.learns or policy.follows_clock for policy in policies):
        return None
    if any(group.local_time is not None for group in scenario.clients):
        return None
    choices = [[policy.kind, policy.options, policy.arms_from] for policy in policies]
    counts = [group.count for group in scenario.clients]
    return digest_value(
        [learning_key(scenario, device=device), choices, counts, scenario.rounds]
    )


def own_code() -> str:
    """Return a digest of all code of simfed that a run in this process imports."""
    return code_digest(*_RUNNERS)
