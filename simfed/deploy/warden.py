"""Takes down what a deployment on this machine has put up, whatever becomes of it.

A process of its own that reads from a pipe what is to be undone, each a line of JSON: a command, a
folder to remove, a process group to end. When the pipe ends (because the deployment is done, was
interrupted, or was killed) everything is undone, the last first. Standard library only.

    {"end": 4711}                            a process group
    {"run": ["ip", "netns", "del", "…"]}     a command
    {"remove": "/sys/fs/cgroup/…"}           an empty folder
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_GRACE_S = 3.0


class Warden:
    """The deployment's end of the pipe."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        # Ctrl-C reaches a whole group of processes, and this one must outlive that
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def will(self, **undo: int | str | list[str]) -> None:
        """One more thing to undo: `end`, `run` or `remove`."""
        self._pipe.write(json.dumps(undo) + "\n")
        self._pipe.flush()

    def close(self) -> None:
        """Undo it all, and wait until it is done; safe to call twice."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.wait()


def undo(lines: Sequence[str]) -> None:
    """Undo what the lines say, the last first."""
    wills = [json.loads(line) for line in lines]
    groups = [will["end"] for will in wills if "end" in will]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            with contextlib.suppress(OSError):
                os.killpg(group, number)
        until_s = time.monotonic() + _GRACE_S
        while any(map(_is_alive, groups)) and time.monotonic() < until_s:
            time.sleep(0.05)
    for will in reversed(wills):
        if "run" in will:
            subprocess.run(will["run"], capture_output=True, check=False)
        if "remove" in will:
            _remove_folder(Path(will["remove"]))


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _remove_folder(folder: Path) -> None:
    """A cgroup can be removed once its last process is gone."""
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    undo(sys.stdin.readlines())
