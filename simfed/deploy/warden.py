"""Takes down what a deployment on this machine has put up, whatever becomes of it."""

from __future__ import annotations

import subprocess

_SCRIPT = """
trap '' INT TERM
while read -r line; do all="$line; $all"; done
eval "$all"
"""


class Warden:
    """A shell of its own, which is told commands, a line each.

    It runs them when its input ends, because the deployment is done, was interrupted or
    was killed: the last first. So no end of the deployment's process leaves namespaces,
    interfaces, groups or clients behind.
    """

    def __init__(self) -> None:
        # Ctrl-C reaches a whole group of processes, and this one must outlive that
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def will(self, command: str) -> None:
        """Add a command to run in the end, before those that were added earlier."""
        print(command, file=self._shell.stdin, flush=True)

    def close(self) -> None:
        """Run them all, and wait until it is done."""
        self._shell.communicate()
