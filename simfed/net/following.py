"""Links whose capacity varies, and the error of one that carries nothing any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simfed.net.flows import Flow
from simfed.net.traces import LinkTrace, Moment


class DeadLink(Exception):
    """A link that flows wait for will never carry anything again."""

    def __init__(
        self, link: int, flows: Sequence[Flow], at_s: float, trace_ended: bool
    ) -> None:
        super().__init__(link, flows, at_s, trace_ended)
        self.link = link
        self.flows = flows
        self.at_s = at_s
        """The instant on the clock of the traces."""
        self.trace_ended = trace_ended
        """The trace's end policy is `error`, and its end is reached."""


@dataclass(slots=True, eq=False)
class TraceFollower:
    """A link in use whose capacity follows a trace."""

    link: int
    trace: LinkTrace
    moment: Moment | None
    """The piece in force; None: the trace has ended."""
    stamp: int = 0
