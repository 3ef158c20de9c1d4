"""A process that draws a run's pictures when it is told to: matplotlib is loaded by then.

The run learns meanwhile; of the second that the first picture takes, most is loading. It reads
the run's folder from standard input, draws, and prints the names of the pictures, one a line, and
an empty line. Whoever began it may go at any time: then its input ends, and so does it.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Load what drawing takes, then draw the run whose folder standard input names."""
    from simfed.record.read import open_run
    from simfed.report.curves import accuracy_figure  # noqa: F401  what drawing loads
    from simfed.report.gantt import gantt_figure  # noqa: F401
    from simfed.report.run_pictures import draw_run

    folder = sys.stdin.readline().rstrip("\n")
    if folder:
        for path in draw_run(open_run(folder), folder):
            print(path.name)
        print(flush=True)
