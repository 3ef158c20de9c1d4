"""Questions are played one at a time, the newest of each page first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simfed.explore.world import Answer, ExploredWorld, play
from simfed.ground.errors import Interrupted, SimfedError
from simfed.ground.plain import Plain


@dataclass
class Question:
    """A page's question, and the place of its answers; None ends them."""

    page: str
    """The page's name, made by itself."""
    number: int
    """Ascends in a page."""
    asked: Mapping[str, Plain]
    """See `ClockRun`."""
    answers: queue.Queue[Answer | None] = field(default_factory=queue.Queue)
    shown: bool = False
    """True if a first part was sent."""

    def answer(self, part: Answer) -> None:
        """Send a part of the answer."""
        self.shown = True
        self.answers.put({"seq": self.number, **part})

    def drop(self) -> None:
        """Tell the page that a newer question has taken its place."""
        self.answer({"stale": True})
        self.answers.put(None)


class QuestionQueue:
    """A thread that plays; two plays at once would share settings of the interpreter.

    Pages number their questions, since requests may overtake one another. Pages that
    follow the run share one play of it, which goes on whenever nobody asks else.
    """

    def __init__(self, world: ExploredWorld) -> None:
        """Start the thread, which waits for questions about a world."""
        self.world = world
        self._changed = threading.Condition()
        self._waiting: dict[str, Question] = {}
        self._following: dict[str, Question] = {}
        self._newest: dict[str, int] = {}
        self._followed: Answer = {}
        """The answer that followers were told last."""
        threading.Thread(target=self._work, daemon=True).start()

    def ask(
        self, page: str, number: int, asked: Mapping[str, Plain]
    ) -> Iterator[Answer]:
        """Yield the parts of the answer.

        The last one says `done`, `stale` or `error`.

        Args:
            page: the page's name.
            number: the question's; one that is not above the page's last is stale.
            asked: the question, see `ClockRun`.
        """
        question = Question(page, number, asked)
        with self._changed:
            if number <= self._newest.get(page, 0):
                question.drop()
            else:
                self._newest[page] = number
                self._drop_older(page)
                if asked.get("follow"):
                    self._following[page] = question
                    if self._followed:
                        question.answer(self._followed)
                else:
                    self._waiting[page] = question
                self._changed.notify()
        yield from iter(question.answers.get, None)

    def forget(self, page: str, number: int) -> None:
        """Stop the question of a page that was closed.

        Unless it has asked something else meanwhile.
        """
        with self._changed:
            if self._newest.get(page) == number:
                del self._newest[page]
                self._drop_older(page)

    def _drop_older(self, page: str) -> None:
        """Take back what a page has asked and nobody plays yet."""
        for questions in (self._waiting, self._following):
            if (older := questions.pop(page, None)) is not None:
                older.drop()

    def _work(self) -> None:
        """Play the oldest page's question, or follow the run, for ever."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting or self._following))
                question = None
                if self._waiting:
                    question = self._waiting.pop(next(iter(self._waiting)))
            if question is None:
                self._follow()
            else:
                self._play(question)
                question.answers.put(None)

    def _play(self, question: Question) -> None:
        """Play a question until it is answered, or overtaken by its page's next one."""

        def is_overtaken() -> bool:
            # each shows something first: a drag would else show nothing until it ends
            return question.shown and self._newest.get(question.page) != question.number

        try:
            play(self.world, question.asked, question.answer, is_overtaken)
        except Interrupted:
            question.answer({"stale": True})
        except Exception as error:  # a page must not wait for ever
            question.answer(_describe_failure(error))

    def _follow(self) -> None:
        """Play what the run has recorded, and go on with it, until asked otherwise."""

        def tell(part: Answer) -> None:
            # after an interruption the rounds that were told are played again, in
            # silence
            if (
                len(part["ends_s"]) < len(self._followed.get("ends_s", ()))
                and not part["done"]
            ):
                return
            self._followed = part
            with self._changed:
                for question in self._following.values():
                    question.answer(part)

        try:
            play(
                self.world,
                {"follow": True},
                tell,
                lambda: bool(self._waiting) or not self._following,
            )
            last = None
        except Interrupted:
            return
        except Exception as error:
            last = _describe_failure(error)
        with self._changed:
            for question in self._following.values():
                if last is not None:
                    question.answer(last)
                question.answers.put(None)
            self._following.clear()


def _describe_failure(error: Exception) -> Answer:
    """Return the last part of an answer that failed: a sentence for the page."""
    if isinstance(error, SimfedError):
        return {"error": str(error)}
    return {"error": f"this setting cannot be played: {type(error).__name__}: {error}"}
