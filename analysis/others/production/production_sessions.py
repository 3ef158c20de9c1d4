"""How production sessions end, of those that were begun."""

from __future__ import annotations

from pathlib import Path

from ledger import FITTED, STATED, Row, play

SESSIONS = {"aggregated": 1_116_401, "dropped": 327_478, "failed": 29_771}
"""Done; uploaded too late; interrupted. As the paper counts them, by what simfed calls them."""

_WORDS = {"aggregated": "done", "dropped": "too late", "failed": "interrupted"}


def compare_rows(data: Path | None = None) -> list[Row]:
    """Shares in percent; `data` is not needed."""
    counts = play("production", {}).participations["outcome"].value_counts()
    whole, published = counts.sum(), sum(SESSIONS.values())
    return [
        Row(
            f"sessions that were {_WORDS[outcome]}",
            "%",
            100 * sessions / published,
            100 * counts[outcome] / whole,
            FITTED if outcome == "failed" else STATED,  # the scenario's probability is this share
        )
        for outcome, sessions in SESSIONS.items()
    ]
