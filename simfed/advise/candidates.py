"""The ways of compressing that are worth a try on a scenario's fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simfed.experiment.checks import check
from simfed.ground.errors import InputError, InputErrors
from simfed.ground.plain import Plain
from simfed.scenario import Scenario, load_scenario

CODECS = {
    "dense": "dense",
    "8 bit": "qsgd(127)",
    "Top-K 10 %": "top-k@10%",
    "Top-K 3 %": "top-k@3%",
    "sign": "ef-sign",
    "Top-K 1 %": "top-k@1%",
    "DGC 1 %": "dgc(warmup=0)@1%",
    "Top-K 0.1 %": "top-k@0.1%",
    "DGC 0.1 %": "dgc(warmup=0)@0.1%",
}
"""Fixed codecs by the names that people know, each sending less than the one before."""

ADAPTIVE = ("ascend", "balance", "adaptive-k", "bcrs")
"""Policies that choose by themselves. Other bandits learn from ASCEND's rewards and
were later than it wherever they were compared."""

MOMENTUM = {"kind": "fedopt", "optimizer": "momentum"}
"""Plain averaging with momentum at the server, which costs no bytes."""


@dataclass(frozen=True, eq=False)
class CompressionCandidate:
    """One way of compressing, as changes of a scenario.

    Two candidates are never equal, so they can be keys.
    """

    name: str
    changes: Mapping[str, Plain]
    """Key path → value; none: the scenario as it is."""
    codecs: Sequence[str] = ()
    """The fixed codec of each group by its name; none: a policy chooses."""

    @property
    def momentum(self) -> bool:
        """True if it adds momentum at the server."""
        return "method" in self.changes

    def apply(self, path: Path) -> Scenario:
        """Return the scenario of a file with this written in.

        Plug-ins of the file are imported without asking: whoever calls has consented.

        Args:
            path: the scenario's file.

        Raises:
            InputError, InputErrors: it cannot be played.
        """
        made = load_scenario(path, self.changes, allow_plugins=True)
        check(made, source=path)
        return made


def give_codecs(
    scenario: Scenario, names: Sequence[str], *, momentum: bool = False
) -> CompressionCandidate:
    """Return the candidate that gives each group of clients its codec.

    Args:
        scenario: the one to change.
        names: keys of `CODECS`, one for each group.
        momentum: add momentum at the server.
    """
    policies = [{"kind": "uniform", "strategy": CODECS[name]} for name in names]
    name = " | ".join(names if len({*names}) > 1 else names[:1])
    changes = _set_policies(scenario, policies)
    if momentum:
        name, changes["method"] = f"{name} + momentum", MOMENTUM
    return CompressionCandidate(name, changes, names)


def list_candidates(
    path: Path, scenario: Scenario
) -> tuple[list[CompressionCandidate], dict[str, str]]:
    """Return what can race on a scenario, and why others cannot.

    Momentum at the server is tried beside codecs that have none of their own, where the
    method is plain averaging; the scenario as it is, unless it equals another.

    Args:
        path: the scenario's file.
        scenario: as it was read from there.

    Returns:
        The candidates, and name → reason of those that the scenario refuses.
    """
    alike = [[name] * len(scenario.clients) for name in CODECS]
    tried = [give_codecs(scenario, names) for names in alike]
    if scenario.method.kind == "fedavg":
        without = [names for names in alike if not names[0].startswith("DGC")]
        tried += [give_codecs(scenario, names, momentum=True) for names in without]
    for kind in ADAPTIVE:
        policies = [{"kind": kind} for _ in scenario.clients]
        tried.append(CompressionCandidate(kind, _set_policies(scenario, policies)))
    tried.append(CompressionCandidate("as it is", {}))
    found, left_out, seen = [], {}, []
    for candidate in tried:
        try:
            made = candidate.apply(path)
        except (InputError, InputErrors) as error:
            left_out[candidate.name] = str(error).partition("\n")[0]
            continue
        if made not in seen:
            seen.append(made)
            found.append(candidate)
    return found, left_out


def _set_policies(
    scenario: Scenario, policies: Sequence[Mapping[str, Plain]]
) -> dict[str, Plain]:
    """Return the changes that give each group its policy.

    It is one key for all where they are alike and no group has its own.
    """
    alike = all(policy == policies[0] for policy in policies)
    if alike and all(group.policy is None for group in scenario.clients):
        return {"policy": policies[0]}
    return {f"clients[{i}].policy": policy for i, policy in enumerate(policies)}
