"""Errors that a user can act on.

Every error that is somebody's to mend says in one sentence *where* it is, *what is allowed*,
*what was found*, and, where we can guess, *what was meant*. Anything else that escapes simfed is
a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "BrokenInvariant",
    "InputError",
    "InputErrors",
    "Interrupted",
    "RunFailed",
    "SimfedError",
    "did_you_mean",
    "listed",
]


class SimfedError(Exception):
    """An error with a sentence for the user and an exit code for the shell."""

    exit_code: int = 1


class RunFailed(SimfedError):
    """A run that began could not be finished: why, what is kept, how to go on. Exit code 1."""


class InputError(SimfedError):
    """The input is wrong: `where: what is allowed, got what (hint)`. Exit code 2.

    >>> where = "edge.yaml: clients[2].link.up"
    >>> print(InputError("a rate with its unit such as 20 Mbps", where=where, got="20 Mb"))
    edge.yaml: clients[2].link.up: a rate with its unit such as 20 Mbps, got '20 Mb'
    """

    exit_code = 2

    def __init__(
        self, allowed: str, *, where: str | None = None, got: object = ..., hint: str | None = None
    ) -> None:
        self.allowed = allowed
        self.where = where
        self.got = got
        self.hint = hint
        super().__init__(allowed)

    def within(self, outer: str) -> InputError:
        """The same error, seen from further out: `outer` is put before `where`."""
        where = f"{outer}: {self.where}" if self.where else outer
        return InputError(self.allowed, where=where, got=self.got, hint=self.hint)

    def __str__(self) -> str:
        text = f"{self.where}: {self.allowed}" if self.where else self.allowed
        if self.got is not ...:
            text += f", got {_shown(self.got)}"
        if self.hint:
            text += f" ({self.hint})"
        return text

    def __reduce__(self) -> tuple[object, ...]:  # keyword-only arguments do not survive pickling
        return _rebuild_input_error, (self.allowed, self.where, self.got, self.hint)


class InputErrors(SimfedError):
    """Several things are wrong with one input: all of them, one sentence each. Exit code 2."""

    exit_code = 2

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = list(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class BrokenInvariant(SimfedError):
    """An invariant of a run, or a bound that the user gave, does not hold. Exit code 3."""

    exit_code = 3


class Interrupted(SimfedError):
    """The user stopped the work; what was done is kept. Exit code 130."""

    exit_code = 130


def did_you_mean(name: str, choices: Iterable[str]) -> str | None:
    """The hint for a name that is close to one of `choices`, in whatever case, else None.

    >>> did_you_mean("topk", ["top-k", "random-k"]), did_you_mean("MNIST", ["mnist-mini", "mnist"])
    ("did you mean 'top-k'?", "did you mean 'mnist'?")
    """
    plain: dict[str, str] = {}
    for choice in choices:
        plain.setdefault(choice.lower(), choice)
    close = difflib.get_close_matches(str(name).lower(), list(plain), n=1, cutoff=0.6)
    return f"did you mean {plain[close[0]]!r}?" if close else None


def listed(names: Iterable[str]) -> str:
    """Names as a phrase: `a, b or c`."""
    names = list(names)
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _rebuild_input_error(
    allowed: str, where: str | None, got: object, hint: str | None
) -> InputError:
    return InputError(allowed, where=where, got=got, hint=hint)
