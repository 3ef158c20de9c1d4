"""Errors that a user can act on.

Every error that is somebody's to mend says in one sentence *where* it is, *what is
wrong*, *what is allowed*, and, where we can guess, *what was meant*, in this order.
Anything else that escapes simfed is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from simfed.ground.plain import Plain


class SimfedError(Exception):
    """An error with a sentence for the user and an exit code for the shell.

    The base of all that simfed raises on purpose: catch it to catch every one. Whatever
    else comes out of simfed is a fault of simfed, or of a part that a user wrote.
    """

    exit_code: int = 1


class RunFailed(SimfedError):
    """A run that began could not be finished: why, what is kept, how to go on.

    Exit code 1.
    """


class InputError(SimfedError, ValueError):
    """The input is wrong: `where: got what, expected what is allowed (hint)`.

    Exit code 2.

    `problem` says in words what is wrong where no value shows it: something is missing,
    or cannot be read. As it is a `ValueError`, pydantic collects those of all keys.

    >>> allowed, where = "a rate such as 20 Mbps", "edge.yaml: clients[2].link.up"
    >>> print(InputError(allowed, where=where, got="20 Mb"))
    edge.yaml: clients[2].link.up: got '20 Mb', expected a rate such as 20 Mbps
    >>> hint = "did you mean edge.yaml?"
    >>> print(InputError(where="edge.yml", problem="no such file", hint=hint))
    edge.yml: no such file (did you mean edge.yaml?)
    """

    exit_code = 2

    def __init__(
        self,
        allowed: str = "",
        *,
        where: str | None = None,
        got: object = ...,
        problem: str = "",
        hint: str | None = None,
    ) -> None:
        self.allowed = allowed
        self.where = where
        self.got = got
        self.problem = problem
        self.hint = hint
        super().__init__(allowed or problem)

    def changed(self, **changes: object) -> InputError:
        """Return a copy with another `where`, `got`, `problem` or `hint`."""
        return _make_error({**vars(self), **changes})

    def within(self, outer: str) -> InputError:
        """Return the same error, seen from further out: `outer` goes before `where`."""
        return self.changed(where=f"{outer}: {self.where}" if self.where else outer)

    def __str__(self) -> str:
        wrong = self.problem or (
            "" if self.got is ... else f"got {_format_value(self.got)}"
        )
        allowed = f"expected {self.allowed}" if self.allowed else ""
        sentence = ", ".join(filter(None, (wrong, allowed)))
        if self.hint:
            sentence += f" ({self.hint})"
        return f"{self.where}: {sentence}" if self.where else sentence

    # keyword-only arguments do not survive pickling
    def __reduce__(self) -> tuple[object, ...]:
        return _make_error, (vars(self),)


MOST_ERRORS = 20
"""The most errors of one input that are said; more are counted."""


class InputErrors(SimfedError):
    """Several things are wrong with one input, one sentence each. Exit code 2.

    The first `MOST_ERRORS` are kept; `more` counts the others, with those that the
    caller left out.
    """

    exit_code = 2

    def __init__(self, errors: Sequence[InputError], more: int = 0) -> None:
        self.errors = list(errors[:MOST_ERRORS])
        self.more = more + len(errors) - len(self.errors)
        super().__init__(self.errors, self.more)

    def sentences(self) -> list[str | InputError]:
        """Return what there is to say: the errors, and how many more there are."""
        return [*self.errors, *([f"and {self.more:,} more"] if self.more else [])]

    def __str__(self) -> str:
        return "\n".join(map(str, self.sentences()))


class BrokenInvariant(SimfedError):
    """An invariant of a run, or a bound that the user gave, does not hold.

    Exit code 3.
    """

    exit_code = 3


class Interrupted(SimfedError):
    """The user stopped the work: why, and how to go on.

    What was done is kept. Exit code 130.

    >>> print(Interrupted("stopped after round 3", "--resume goes on from there"))
    stopped after round 3; --resume goes on from there
    """

    exit_code = 130

    @property
    def reason(self) -> str:
        """The reason, without how to go on."""
        return str(self.args[0])

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


def did_you_mean(name: str, choices: Iterable[str]) -> str | None:
    """Return the hint for a name that is close to one of `choices`, else None.

    Upper and lower case do not matter.

    >>> did_you_mean("topk", ["top-k", "random-k"])
    "did you mean 'top-k'?"
    >>> did_you_mean("MNIST", ["mnist-mini", "mnist"])
    "did you mean 'mnist'?"
    >>> did_you_mean("zzz", ["top-k"])
    """
    near = find_closest(name, choices)
    return f"did you mean {near!r}?" if near else None


def check_known(
    name: object, choices: Iterable[object], what: str = "", *, where: str | None = None
) -> None:
    """Raise an `InputError` with a did-you-mean where a name is none of the `choices`.

    what: stands before them in the error, such as `a network model:`.
    """
    choices = list(choices)
    if name not in choices:
        names = [str(choice) for choice in choices]
        allowed = f"{what} {listed(names) or 'none'}".strip()
        raise InputError(
            allowed, where=where, got=name, hint=did_you_mean(str(name), names)
        )


@contextmanager
def within(outer: str) -> Iterator[None]:
    """Put `outer` before the place of an `InputError` raised in the block."""
    try:
        yield
    except InputError as error:
        raise error.within(outer) from None


def unwrap_error(error: Exception) -> Exception:
    """Return the error that a process raised.

    SimPy raises a copy in each process that waits for it, made from its arguments
    alone.
    """
    while type(error.__cause__) is type(error) and error.__cause__.args == error.args:
        copy, error = error, error.__cause__
        # raised where the copy is handled, it would be behind itself
        copy.__cause__ = None
    return error


_LONGEST_NAME = 200
"""The longest name of which a misspelling is looked for: time grows with its square."""


def find_closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the one of `choices` that a misspelt name may stand for, in whatever case.

    None: none.
    """
    plain: dict[str, str] = {}
    if len(str(name)) > _LONGEST_NAME:
        return None
    for choice in choices:
        plain.setdefault(choice.lower(), choice)
    close = difflib.get_close_matches(str(name).lower(), list(plain), n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def listed(names: Iterable[str]) -> str:
    """Return names as a phrase.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b or c')
    """
    names = list(names)
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _format_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _make_error(values: dict[str, Plain]) -> InputError:
    names = "allowed", "where", "got", "problem", "hint"
    return InputError(**{name: values[name] for name in names})
