"""Questions are played one at a time, the newest of each page first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simfed.explore.world import Answer, World, play
from simfed.ground.errors import Interrupted, SimfedError
from simfed.ground.plain import Plain


@dataclass
class Question:
    """What a page asks, and where its answers go; None ends them."""

    page: str
    number: int
    asked: Mapping[str, Plain]
    answers: queue.Queue[Answer | None] = field(default_factory=queue.Queue)
    shown: bool = False
    """Whether a first part was sent."""

    def drop(self) -> None:
        """Say that a newer question has taken its place."""
        self.answers.put({"seq": self.number, "stale": True})
        self.answers.put(None)


class Player:
    """A thread that plays; two plays at once would share settings of the interpreter.

    Pages number their questions, since requests may overtake one another.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._changed = threading.Condition()
        self._waiting: dict[str, Question] = {}
        self._newest: dict[str, int] = {}
        threading.Thread(target=self._work, daemon=True).start()

    def ask(self, page: str, number: int, asked: Mapping[str, Plain]) -> Iterator[Answer]:
        """Yield the parts of the answer; the last one says `done`, `stale` or `error`."""
        question = Question(page, number, asked)
        with self._changed:
            if number <= self._newest.get(page, 0):
                question.drop()
            else:
                self._newest[page] = number
                older = self._waiting.pop(page, None)
                if older is not None:
                    older.drop()
                self._waiting[page] = question
                self._changed.notify()
        yield from iter(question.answers.get, None)

    def forget(self, page: str) -> None:
        """Stop whatever a page that was closed has asked."""
        with self._changed:
            self._newest.pop(page, None)
            if (question := self._waiting.pop(page, None)) is not None:
                question.drop()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                question = self._waiting.pop(next(iter(self._waiting)))
            self._play(question)
            question.answers.put(None)

    def _play(self, question: Question) -> None:
        def emit(part: Answer) -> None:
            question.shown = True
            question.answers.put({"seq": question.number, **part})

        def is_overtaken() -> bool:
            # each shows something first: a drag would else show nothing until it ends
            return question.shown and self._newest.get(question.page) != question.number

        try:
            play(self.world, question.asked, emit, is_overtaken)
        except Interrupted:
            emit({"stale": True})
        except SimfedError as error:
            emit({"error": str(error)})
        except Exception as error:  # a page must not wait for ever
            emit({"error": f"this setting cannot be played: {type(error).__name__}: {error}"})
