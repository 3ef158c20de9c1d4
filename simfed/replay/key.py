"""The learning key: a hash of everything that learning depends on, and of nothing else.

A part of a scenario that is not listed here as belonging to the clock counts as
learning, so a key that is added to scenarios later can cost shared trajectories, never
correctness. In the key: the scenario without the clock's sections
(`describe_learning`), digests of data and pretrained weights (`data_digest`), sources
of simfed (`code_digest`) and of parts of the user's (`digest_parts`), and whatever
decides the last bits of arithmetic on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from simfed.compress.choice import Choice
from simfed.fleet.columns import Fleet
from simfed.fleet.presence import OwnPresence
from simfed.ground.cores import identify_processor
from simfed.ground.plain import Plain
from simfed.ground.registry import compute_code_digest, registry
from simfed.ground.seeding import Streams
from simfed.learn.pretrained import BASE_FILES
from simfed.native import name_layer_engine
from simfed.record.digest import digest_file, digest_value
from simfed.replay.parts import digest_part
from simfed.scenario import Scenario
from simfed.schema.distribution import Distribution

_ROOT = Path(__file__).parents[1]

_CLOCK = ("name", "network", "server", "charge", "downlink", "checkpoint", "faults")
"""Keys of a scenario that only the clock side reads."""

_GROUP_CLOCK = (
    "count",
    "device",
    "link",
    "policy",
    "k",
    "devices",
    "availability",
    "failure",
    "local_time",
)
"""Keys of a client group that only the clock side reads (K counts, per client, after
its default; the steps at which training is cut off are a decision)."""

_CHOOSES_KERNELS = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
"""Variables by which users choose among the libraries' kernels, which round
differently."""

_NOT_RUN = (
    "advise",
    "calibrate",
    "cli",
    "deploy",
    "explore",
    "flower",
    "report",
    "study",
    "templates",
    "testing",
    "verify",
)
"""Rooms that no run of a scenario imports. All others count, new ones as well."""


def learning_key(scenario: Scenario, *, device: str = "cpu") -> str:
    """Return the name of the trajectory tree of a run of `scenario` on `device`.

    Runs of one key learn alike as long as they decide alike: links, devices' speeds and
    everything else of the clock is not in it.

    Args:
        scenario: Its data set is digested for it.
        device: Where it learns, `cpu` or `cuda`.
    """
    return digest_value(describe_learning(scenario, device=device))


def describe_learning(scenario: Scenario, *, device: str = "cpu") -> dict[str, Plain]:
    """Return the plain values of which the key is a hash.

    The decisions of a run (participants, arms, K, lost uploads) are not in it: they are
    the way down the tree. Rounds are in it only under a schedule that looks at their
    number.

    Args:
        scenario: The run's.
        device: Where it learns.

    Returns:
        `scenario`, `clients`, `data`, `parts`, `code`, `machine`, and `packages` where
        there are plug-ins that are folders; JSON-able.
    """
    # plug-ins count by the parts of theirs that are in use
    elsewhere = {"policy", "clients", "client_order", "plugins"}
    plain = scenario.model_dump(mode="json", exclude={*_CLOCK, *elsewhere})
    if scenario.training.schedule.kind in ("constant", "inverse-sqrt", "step"):
        del plain["rounds"]
    for key in scenario.dataset.paths:
        # where they lie decides nothing; their digest is below
        plain["dataset"].pop(key, None)
    sizes = scenario.dataset.partition.sizes
    if isinstance(sizes, Distribution):
        drawn = Fleet(scenario, Streams(scenario.seed)).sizes(sizes)
        plain["dataset"]["partition"]["sizes"] = digest_value(drawn.tolist())
    for prototype in plain["prototypes"].values():
        if "pretrained" in prototype:
            prototype["pretrained"] = ""
    changes = scenario.downlink.compression
    if changes is not None:
        plain["changes"] = changes.model_dump(mode="json", exclude={"index_code"})
    # data that a package holds may be learned from, whichever parts of it are in use
    packages = [p.file for p in scenario.plugins if os.path.isdir(p.file)]
    return {
        "scenario": plain,
        "clients": _group_clients(scenario),
        "data": data_digest(scenario),
        **({"packages": [*map(compute_code_digest, packages)]} if packages else {}),
        "parts": digest_parts(scenario),
        "code": code_digest(),
        "machine": _machine(device),
    }


def _group_clients(scenario: Scenario) -> dict[str, Plain]:
    """Return what learning sees of each client, as distinct kinds and their members."""
    kinds = []
    fleet = Fleet(scenario, Streams(scenario.seed))
    for i, group in enumerate(scenario.clients):
        policy = scenario.policy_of_group(group)
        seen = group.model_dump(mode="json", exclude=set(_GROUP_CLOCK))
        drawn = fleet.drawn(i, "k")
        seen["k"] = (
            scenario.k_of_group(group)
            if drawn is None
            else digest_value(drawn.tolist())
        )
        # f_n is computed for clients whose policy wants rewards, or where the selection
        # looks at it
        seen["local_loss"] = (
            policy.reward.local_loss.model_dump(mode="json")
            if scenario.measures_losses(group)
            else None
        )
        kinds.append(json.dumps(seen, sort_keys=True))
    distinct = sorted(set(kinds))
    number = {kind: i for i, kind in enumerate(distinct)}
    order = [number[kinds[group]] for group in scenario.group_of_client()]
    return {"kinds": distinct, "order": order}


# --- what stands behind names ---------------------------------------------------------


def data_digest(scenario: Scenario) -> str:
    """Return the digest of a scenario's data set, and of its pretrained weights.

    It is of the data's published files where they are fixed, of the files of one's own
    as they are now, else of their content.

    Raises:
        InputError: Files are missing.
    """
    from simfed.learn.data import files_digest, public_digest

    data, bases = scenario.dataset, list_bases(scenario)
    if bases:
        whole = scenario.model_copy(update={"prototypes": {}})
        return digest_value([data_digest(whole), [*map(_digest_base, bases)]])
    private = files_digest(data) if data.name is None else digest_named_data(data.name)
    if data.public_file is None:
        return private
    return digest_value([private, public_digest(data.public_file)])


def list_bases(scenario: Scenario) -> list[str]:
    """Return the pretrained weights that a scenario names, each once."""
    named = (spec.pretrained for spec in scenario.prototypes.values())
    return list(dict.fromkeys(path for path in named if path is not None))


def _digest_base(path: str) -> str:
    """Return the digest of pretrained weights: of a folder, of what is read in it."""
    files = [Path(path) / n for n in BASE_FILES] if os.path.isdir(path) else [path]
    return digest_value([digest_file(Path(file)) for file in files])


@cache
def digest_named_data(name: str) -> str:
    """Return the digest of a registered data set.

    Of one with known files it is made of their digests, and nothing is read.
    """
    part = registry("dataset").get(name)
    files = getattr(part, "files", None)
    if files and all(hasattr(file, "sha256") for file in files.values()):
        return digest_value({path: file.sha256 for path, file in files.items()})
    from simfed.learn.data import load_dataset

    return str(load_dataset(name).digest)


def digest_parts(scenario: Scenario) -> dict[str, str]:
    """Return the sources of the parts in use that do not come with simfed.

    Built-in ones are its code.

    Returns:
        `KIND NAME` → digest of `simfed.replay.parts`.
    """
    policies = [scenario.policy_of_group(group) for group in scenario.clients]
    named = {name for policy in policies for name in policy.names("codec")}
    if any(policy.arms_from is not None for policy in policies):
        named |= set(registry("codec").names())  # a recorded run may have used any
    if scenario.downlink.compression is not None:
        named.add(scenario.downlink.compression.strategy)
    used = {
        "method": {scenario.method.kind},
        "model": {p.model for p in scenario.prototypes.values() if p.model is not None},
        "codec": {
            name
            for label in named | set(scenario.compression.strategies)
            for name in Choice.of(label).names
            if name in registry("codec")
        },
        "policy": {policy.kind for policy in policies},
        "rule": {scenario.aggregation.rule.kind},
        "attack": {
            group.attack.kind for group in scenario.clients if group.attack is not None
        },
        "selection": {scenario.participation.selection.kind},
        "availability": {
            group.availability.kind
            for group in scenario.clients
            if isinstance(group.availability, OwnPresence)
        },
    }
    return {
        f"{kind} {name}": digest_part(registry(kind).get(name))
        for kind, names in used.items()
        for name in sorted(names)
        if registry(kind).origin(name) != "built in"
    }


@cache
def code_digest(*also: str, root: Path = _ROOT) -> str:
    """Return a hash over simfed's sources at `root` that a run may import.

    An upgrade or an edit changes it.

    Args:
        also: Files and rooms that count although no run of a scenario imports them.
        root: The package's folder.
    """
    running = hashlib.blake2b(digest_size=16)
    for file in sorted(root.rglob("*")):
        place = file.relative_to(root)
        counts = place.parts[0] not in _NOT_RUN or {
            place.parts[0],
            place.as_posix(),
        } & {*also}
        if counts and file.suffix in (".py", ".cpp", ".h"):
            running.update(place.as_posix().encode() + b"\0" + file.read_bytes())
    return running.hexdigest()


@cache
def _machine(device: str) -> dict[str, str]:
    """Return what decides the last bits of floating-point results.

    Does not import torch: versions are those of installed packages.
    """
    kind = device.partition(":")[0]
    return {
        **{package: _find_version(package) for package in ("torch", "numpy")},
        "device": kind,
        "processor": " ".join(identify_processor()),
        "layers": name_layer_engine(),
        **{name: os.environ[name] for name in _CHOOSES_KERNELS if name in os.environ},
        **(_identify_gpu() if kind == "cuda" else {}),
    }


def _identify_gpu() -> dict[str, str]:
    """Return the cards, their driver, and the libraries that hold their kernels."""
    proc = Path("/proc/driver/nvidia")
    lines = [
        line
        for card in sorted(proc.glob("gpus/*/information"))
        for line in card.read_text().splitlines()
    ]
    cards = "; ".join(line for line in lines if line.startswith("Model"))
    if not cards:  # in a container
        with suppress(OSError, subprocess.SubprocessError):
            command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            told = subprocess.run(
                command, capture_output=True, text=True, timeout=30, check=True
            )
            cards = told.stdout
    driver = ""
    with suppress(OSError):
        driver = (proc / "version").read_text()
    names = sorted({str(d.metadata["Name"]) for d in metadata.distributions()})
    facts = {name: _find_version(name) for name in names if name.startswith("nvidia-")}
    chosen = {
        name: os.environ.get(name, "")
        for name in ("CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES")
    }
    return {**facts, **chosen, "cards": cards, "driver": driver}


def _find_version(package: str) -> str:
    """Return the version of an installed package; `none`: it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
