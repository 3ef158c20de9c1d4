"""Ctrl-C and SIGTERM that lose nothing.

A run asks at the border of each round whether somebody wants it to stop, and saves its
state first; a second Ctrl-C stops at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simfed.ground.errors import Interrupted


class CtrlC:
    """A memory of Ctrl-C, as not all code lets the exception through.

    pydantic takes a KeyboardInterrupt inside a validator or serializer for a value that
    does not fit, and goes on. So the signal is remembered, and `check` raises it where
    that is safe.
    """

    def __init__(self) -> None:
        self._asked = False
        self._patient = False
        self._notice = ""

    @contextmanager
    def heard(self) -> Iterator[CtrlC]:
        """Remember Ctrl-C in the block, and put the former handler back after it.

        It works in the main thread: others get no signals, and for them the block does
        nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        outer = getattr(before, "__self__", None)
        if isinstance(outer, CtrlC):  # which may have heard one already
            self._asked = outer._asked
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def hear_on(self) -> None:
        """Remember Ctrl-C from here to the end of the process.

        The first one raises nothing; workers of a study are ended by the study.
        """
        self._patient = True
        signal.signal(signal.SIGINT, self._on_signal)

    @contextmanager
    def patient(self, notice: str = "") -> Iterator[None]:
        """Print `notice` at the first Ctrl-C in the block, and only remember it.

        It is for whoever asks `asked` now and then; the second one raises at once.
        """
        self._patient, self._notice = True, notice
        try:
            yield
        finally:
            self._patient = False

    def asked(self) -> bool:
        """Return whether Ctrl-C was pressed inside `heard`, or a block around it."""
        return self._asked

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed, where that is safe."""
        if self._asked:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: object) -> None:
        again, self._asked = self._asked, True
        if again or not self._patient:
            raise KeyboardInterrupt
        if self._notice:
            print(self._notice, file=sys.stderr)


@contextmanager
def sigterm_is_ctrl_c() -> Iterator[None]:
    """Take SIGTERM in the block for Ctrl-C with exit code 143.

    It is what a cluster sends at its time limit.

    Raises:
        Interrupted: SIGTERM came; what was raised says what is kept.
    """
    asked = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.raise_signal(signal.SIGINT)

    try:
        before = signal.signal(signal.SIGTERM, on_signal)
    except ValueError:  # only the main thread may handle signals
        yield
        return
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        if not asked:
            raise
        interrupted = (
            error if isinstance(error, Interrupted) else Interrupted("interrupted")
        )
        interrupted.exit_code = 128 + signal.SIGTERM
        raise interrupted from None
    finally:
        signal.signal(signal.SIGTERM, before)
