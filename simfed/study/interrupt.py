"""Ctrl-C that is not lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CtrlC"]


class CtrlC:
    """Ctrl-C as a fact besides an exception, because not all code lets the exception through.

    pydantic takes a KeyboardInterrupt inside a validator or serializer for a value that does not fit,
    and goes on. So the signal is remembered, and `check` raises it where that is safe.
    """

    def __init__(self) -> None:
        self._asked = False
        self._patient = False

    @contextmanager
    def heard(self) -> Iterator[CtrlC]:
        """Meanwhile Ctrl-C is remembered (in the main thread: others get no signals)."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Meanwhile the first Ctrl-C waits for the next `check`; the second one raises at once."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def check(self) -> None:
        """Raises: `KeyboardInterrupt` if somebody asked to stop."""
        if self._asked:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: object) -> None:
        again, self._asked = self._asked, True
        if again or not self._patient:
            raise KeyboardInterrupt
