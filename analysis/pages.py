"""Tables of pages, made of kept rows.

    python analysis/pages.py [NAME …]  # renews pages, of all studies or of those named

A study's module says which page quotes it (`PAGE`) and what stands there between two
comments (`page_parts`: name → text), made of its kept rows alone.
tests/analysis/test_analysis_pages.py holds every page to that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from simfed.report.statistics import PairedTimes

STUDIES = (
    "answers",
    "answers_first",
    "answers_tuned",
    "advised_fleets",
    "not_waiting",
    "rivals_figure",
    "recorded_links",
    "codecs_table",
    "gpu_table",
    "cell_figure",
    "network_errors",
    "tcp_errors",
    "edges_figure",
    "methods_page",
    "paper",
    "flower_laws",
    "flower_originals",
    "privacy_figure",
    "processors",
    "instructions",
    "private",
    "long",
    "peers",
    "quickstart_tables",
    "robustness_figure",
    "top_k_map",
    "theory_bandits",
    "theory_steps",
    "theory_descent",
)
"""Modules of this folder and of benchmarks/."""


class Study(Protocol):
    """What this module asks of a study's module."""

    PAGE: Path

    def page_parts(self) -> Mapping[str, str]:
        """The name of each place in the page → what stands there."""


def study(name: str) -> Study:
    """Return the module of a study, of this folder or of benchmarks/."""
    if (folder := str(Path(__file__).parent / "benchmarks")) not in sys.path:
        sys.path.append(folder)
    return cast("Study", import_module(name))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def in_words(paired: PairedTimes) -> str:
    """A ratio as far as it is known.

    >>> from simfed.report.statistics import compare_times
    >>> in_words(compare_times([1.0, 1.0], [True] * 2, [2.0, 2.0], [True] * 2))
    '2.00'
    >>> in_words(compare_times([4.0], [False], [2.0], [True]))
    '<0.50'
    """
    ratio = paired.ratio
    if ratio.is_exact:
        return f"{ratio.least:.2f}"
    return f"<{ratio.most:.2f}" if ratio.least == 0 else f">{ratio.least:.2f}"


def with_interval(paired: PairedTimes) -> str:
    """A ratio and its 95 % interval."""
    ratio = paired.ratio
    if not ratio.is_exact or not ratio.coverage:
        return in_words(paired)
    return f"{in_words(paired)} [{ratio.low:.2f}, {ratio.high:.2f}]"


def as_share(paired: PairedTimes) -> str:
    """What the first of two takes of what the second takes, and its 95 % interval.

    >>> from simfed.report.statistics import compare_times
    >>> as_share(compare_times([1.0, 1.0], [True] * 2, [50.0, 50.0], [True] * 2))
    '2% [2%, 2%]'
    >>> as_share(compare_times([4.0], [False], [2.0], [True]))
    '>200%'
    """
    ratio = paired.ratio
    if not ratio.is_exact:
        return (
            f">{_inverse(ratio.most)}"
            if ratio.least == 0
            else f"<{_inverse(ratio.least)}"
        )
    share, low, high = (_inverse(end) for end in (ratio.least, ratio.high, ratio.low))
    return f"{share} [{low}, {high}]" if ratio.coverage else share


def _inverse(ratio: float) -> str:
    if not ratio:
        return "∞"
    return f"{1 / ratio:.0%}" if ratio <= 10 else f"{100 / ratio:.2g}%"


def put_between(page: str, name: str, text: str) -> str:
    """The page with `text` in the place of this name: after `<!-- name -->`, up to
    `<!-- end -->`.

    >>> put_between("<!-- a -->\\n\\nold\\n\\n<!-- end -->\\nrest", "a", "new")
    '<!-- a -->\\n\\nnew\\n\\n<!-- end -->\\nrest'
    """
    before, rest = page.split(f"<!-- {name} -->\n", 1)
    _, after = rest.split("<!-- end -->", 1)
    return f"{before}<!-- {name} -->\n\n{text}\n\n<!-- end -->{after}"


def write_page(name: str) -> None:
    """Put the tables of a study's kept rows in their places."""
    module = study(name)
    page = module.PAGE.read_text(encoding="utf-8")
    for place, text in module.page_parts().items():
        page = put_between(page, place, text)
    module.PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or STUDIES:
        write_page(chosen)
