"""Errors of the model of TCP against Linux and ns-3: a table in docs/network.md.

    python analysis/tcp_errors.py    # puts it into the page

The cases are in tests/golden (ns3_tcp, linux_tcp).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from network_errors import Case, load
from pages import markdown, write_page

from simfed import net

PAGE = Path(__file__).parents[1] / "docs" / "network.md"


def tcp_table() -> str:
    """Return errors against Linux and ns-3, single transfers apart from stars."""
    linux, ns3 = load("linux_tcp"), load("ns3_tcp")
    lines = [
        ["the `tcp` model held against", "mean error", "median", "worst", "makespan"]
    ]
    for text, cases in (
        (
            "Linux 6.18, CUBIC: {} single transfers, 1–50 Mbps, 5–100 ms, 10 kB–3 MB",
            _singles(linux),
        ),
        (
            "Linux 6.18, CUBIC: {} stars of 10 or 20 clients",
            _stars(linux, congested=False),
        ),
        (
            "Linux 6.18, CUBIC: {} heavily congested star of 20 clients",
            _stars(linux, True),
        ),
        ("ns-3 3.44, CUBIC: {} single transfers", _singles(ns3)),
        ("ns-3 3.44, CUBIC: {} stars of 20 clients", _stars(ns3, congested=False)),
        (
            "ns-3 3.44, CUBIC: {} heavily congested star of 20 clients",
            _stars(ns3, True),
        ),
    ):
        pooled = net.error_table(cases, [net.replay(case, "tcp") for case in cases])[-1]
        cells = [
            _two_digits(error) for error in (pooled.mean, pooled.median, pooled.worst)
        ]
        cells.append(_two_digits(pooled.makespan) if len(cases[0]["flows"]) > 1 else "")
        lines.append([text.format(len(cases)), *cells])
    return markdown(lines)


def _singles(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if len(case["flows"]) == 1]


def _stars(cases: Sequence[Case], congested: bool) -> list[Case]:
    """In `star20-4` hundreds of packets are lost where the queue overflows."""
    several = [case for case in cases if len(case["flows"]) > 1]
    return [case for case in several if (case["name"] == "star20-4") == congested]


def _two_digits(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def page_parts() -> dict[str, str]:
    """Return the table by the name of its place in the page."""
    return {"tcp errors": tcp_table()}


if __name__ == "__main__":
    write_page("tcp_errors")
