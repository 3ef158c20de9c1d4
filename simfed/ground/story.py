"""A story of a method's own: told once before it is played, to see that it can be.

A story says nothing of links, processors or instants: a world (`simfed.sim.world`)
plays it, each verb begun when the one before has ended. It depends on its arguments
alone, and lets `Interrupt` pass: whoever leaves, or is not waited for any longer, ends
where it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from simfed.ground.errors import InputError
from simfed.ground.method import CLIENT, SERVER, Client, Node, Plan, Story, Who, Work

_MOST_VERBS = 1_000_000


@dataclass(frozen=True)
class OwnStory:
    """The teller of a method's participations in place of `participate`."""

    method: str
    """The method's name."""
    tell: Callable[[Client], Story]

    def rehearse(self, who: Who, round: int, plan: Plan) -> Rehearsal:
        """Return the verbs of one participation, told without playing it.

        Raises: `InputError` for a story that no world can play.
        """
        client = Rehearsal(self.method, who, round, plan)
        try:
            story = self.tell(client)
            if not hasattr(story, "throw"):
                client.refuse("is told nothing with `yield from`")
            for other in story:
                what = f"a {type(other).__name__}"
                client.refuse(
                    f"yields {what}, where every verb is told with `yield from`"
                )
        except InputError:
            raise
        except Exception as error:
            client.refuse(f"raises {type(error).__name__}: {error}")
        client.check_end()
        return client


class Rehearsal:
    """A `Client` that does nothing but note what it is told to do."""

    def __init__(self, method: str, who: Who, round: int, plan: Plan) -> None:
        self.who, self.round, self.plan = who, round, plan
        self.verbs: list[str] = []
        """The verbs that are told, in this order."""
        self.barriers: list[str] = []
        """The barriers that it comes to."""
        self._method, self._begun = method, 0
        self._times = {"receive": 0, "send": 0}

    def receive(self, size_bytes: float | None = None) -> Story:
        """Note the verb and check its place; see `Client`."""
        return self._pass(*self._name_message("receive", size_bytes))

    def work(self, *units: Work, at: Node = CLIENT) -> Story:
        """Note the verb and check its units; see `Client`."""
        if at not in (CLIENT, SERVER):
            self.refuse(f"works at {at!r}, which is neither client nor server")
        return self._pass("work" if at == CLIENT else "work at the server")

    def send(self, size_bytes: float | None = None) -> Story:
        """Note the verb and check its place; see `Client`."""
        return self._pass(*self._name_message("send", size_bytes))

    def wait(self, barrier: str, deadline_s: float = inf) -> Story:
        """Note the verb and its barrier; see `Client`."""
        if not deadline_s > 0:
            self.refuse(
                f"waits at barrier {barrier!r} for {deadline_s!r} s, not for more than "
                f"0 s"
            )
        if barrier in self.barriers:
            self.refuse(f"comes to barrier {barrier!r} twice")
        self.barriers.append(barrier)
        return self._pass(f"wait({barrier!r})")

    def refuse(self, problem: str) -> None:
        """Raise the error that its story is none, where it stands."""
        stood_at = self.verbs[-1] if self.verbs else "its beginning"
        where = f"client {self.who.client} {problem}; it stood at {stood_at}"
        raise InputError(problem=f"the story of {self._method}: {where}")

    def check_end(self) -> None:
        """Refuse a story that has ended too early."""
        if self._begun < len(self.verbs):
            self.refuse("ends with a verb that it never told with `yield from`")
        for verb, fields in (("receive", self.plan.down), ("send", self.plan.up)):
            if fields and not self._times[verb]:
                self.refuse(
                    f"ends without {verb}(), though the plan has something travel so"
                )

    def _name_message(self, verb: str, size_bytes: float | None) -> tuple[str, str]:
        if size_bytes is None:
            return f"{verb}()", verb
        if not 0 <= size_bytes < inf:
            self.refuse(f"has {verb} move {size_bytes!r} bytes")
        return f"{verb}({size_bytes:g})", ""

    def _pass(self, verb: str, whole: str = "") -> Story:
        if self._begun < len(self.verbs):
            self.refuse(
                f"comes to {verb} before the verb ahead of it is told with `yield from`"
            )
        if len(self.verbs) == _MOST_VERBS:
            self.refuse(f"never ends: it is told {_MOST_VERBS:,} verbs")
        self.verbs.append(verb)
        if whole:
            self._times[whole] += 1
            if self._times[whole] == 2:
                self.refuse(f"{whole}s twice")
        return self._tell()

    def _tell(self) -> Story:
        self._begun += 1
        yield from ()
