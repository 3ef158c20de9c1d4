"""A workload that answers from journals of runs, and says from where on none knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simfed.compress.choice import Choice
from simfed.explore.known import KnownAnswers
from simfed.fleet.contract import Outcome, Task
from simfed.ground.errors import SimfedError
from simfed.ground.plain import Plain
from simfed.record.journal import Journal
from simfed.replay.journaled import Answered, Journaled
from simfed.tasks.tasks import Tasks


class UnknownLearning(SimfedError):
    """An answer of learning that the clock needs, and that no journal has."""


class ForeseenWorkload(Journaled):
    """Learning as journals of runs tell it, while decisions are those of one of them.

    Beyond, a merge only counts; where policies learn from it, the clock ends after it.
    """

    def __init__(
        self,
        tasks: Tasks,
        answers: KnownAnswers,
        *,
        policies_learn: bool,
        wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin with answers.

        Args:
            tasks: of the setting that is played.
            answers: what journals know.
            policies_learn: whether choices follow from rewards, and so from learning.
            wait: waits for further answers, and returns whether there may be some.
        """
        super().__init__(tasks, Journal(Path(), appends=False))
        self.unknown: int | None = None
        """The first round whose merge no journal has."""
        self._answers, self._wait = answers, wait
        self._policies_learn = policies_learn
        self._round = 1

    def ask(self, key: str, label: str, ask: Callable[[], Plain]) -> Plain:
        """Return the journals' answer, and wait for it where a run is followed.

        Args:
            key: the hash of all decisions up to here.
            label: what is asked, such as `merge 3`.
            ask: the real learning, which is never asked.

        Raises:
            UnknownLearning: where no journal has it; from then on for everything.
        """
        while self.unknown is None:
            answer = self._answers.find(f"{key} {label}")
            if answer is not None:
                return answer
            if not self._wait():
                self.unknown = self._round
        raise UnknownLearning(f"{label} is not known")

    def execute(self, task: Task, choice: Choice, edge: Any = None) -> Answered:
        """Begin a participation.

        Args:
            task: what the client is to do.
            choice: of arm and K.
            edge: the edge server that it sends to; None: the server itself.

        Raises:
            UnknownLearning: where the choice was made of it.
        """
        if (
            self._policies_learn
            and self.unknown is not None
            and task.round > self.unknown
        ):
            raise UnknownLearning("policies were told what is not known")
        return super().execute(task, choice, edge)

    def merge(
        self, round: int, contributions: Sequence[Any], weights: Sequence[float] = ()
    ) -> Outcome:
        """Return the outcome of a merge.

        Gains that are not known are 0: no choice follows from them.

        Args:
            round: its number.
            contributions: what is merged, of clients or edge servers.
            weights: of each contribution; none: the method's own.
        """
        self._round = round
        try:
            outcome = super().merge(round, contributions, weights)
        except UnknownLearning:
            self._version += bool(contributions)
            for one in contributions:
                self._close(one)
            prototypes = dict.fromkeys(self._tasks.scenario.prototypes, 0.0)
            labels = [
                one.task.label
                for each in contributions  # an edge server's are its clients'
                for one in each.merged or [each]
            ]
            outcome = Outcome(
                round,
                self._version,
                shared_loss=prototypes,
                shared_loss_before=prototypes,
                local_loss=dict.fromkeys(labels, (0.0, 0.0)),
            )
        self._round = round + 1
        return outcome
