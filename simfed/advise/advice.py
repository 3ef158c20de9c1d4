"""Advice, as sentences and as a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from simfed.advise.candidates import CompressionCandidate
from simfed.experiment.assembly import make_parts
from simfed.ground.writing import writing
from simfed.scenario import Scenario, dump_scenario
from simfed.study.results import StudyResult


@dataclass(frozen=True)
class Advice:
    """What each group of a scenario's clients should send, and why.

    Printed, it is a line for each group and the reasons; `scenario` has it written in.
    `advise` and `advise_by_clock` make it.
    """

    path: Path
    """The scenario's file."""
    candidate: CompressionCandidate
    reasons: Sequence[str]
    """Sentences: what it was ahead of, what could not be told apart or tried."""
    result: StudyResult | None = None
    """The study of the finalists, the chosen one first; None where nothing was
    learned."""

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario with the advice written in; read from `path` on first use."""
        return self.candidate.apply(self.path.resolve())

    def __str__(self) -> str:
        scenario, codecs = self.scenario, self.candidate.codecs
        lines = [
            f"clients[{i}] ({group.count:,} × {group.prototype}): "
            + (
                codecs[i]
                if codecs
                else f"policy {scenario.policy_of_group(group).kind}"
            )
            for i, group in enumerate(scenario.clients)
        ]
        if self.candidate.momentum:
            lines.append("the server: method: {kind: fedopt, optimizer: momentum}")
        return "\n".join((*lines, *self.reasons))

    def write(self, out: Path) -> None:
        """Write the scenario with the advice in it: resolved, valid in any folder.

        The reasons stand above it as comments.

        Args:
            out: the file; one of this name is replaced.

        Raises:
            InputError: it cannot be written.
        """
        files = make_parts(self.scenario, self.path).profile_files
        dumped = dump_scenario(
            self.scenario, {name: str(files[name]) for name in files}
        )
        note = "".join(f"# {line}\n" for line in str(self).splitlines())
        with writing(out):
            out.write_text(note + dumped, encoding="utf-8")
