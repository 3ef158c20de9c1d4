"""What is learned has the bits of the kept table.

See `bits.py` for how to review and renew it.
"""

from __future__ import annotations

import bits
import pytest


@pytest.mark.long
def test_learning_has_the_bits_of_the_kept_table():
    kept_at, _ = bits.read(bits.KEPT)
    assert bits.differences(bits.KEPT, exact=kept_at == bits.place()) == []


def test_the_kept_table_is_of_these_scenarios_and_of_three_roundabout_ways():
    _, columns = bits.read(bits.KEPT)
    ways = {f"{bits.RESUMED} resumed", f"{bits.REPLAYED} replayed", "deployed"}
    assert {scenario for scenario, *_ in columns} == bits.SCENARIOS.keys() | ways


def test_a_column_that_moves_is_told_and_last_bits_are_called_so(tmp_path, monkeypatch):
    path = tmp_path / "kept.csv"
    path.write_text("here\na,rounds,loss,1111,2.0000001\na,rounds,k,3333,7\n")
    now = [("a", "rounds", "loss", "2222", "2"), ("a", "rounds", "k", "4444", "8")]
    monkeypatch.setattr(bits, "rows", lambda: iter(now))
    assert bits.differences(path, exact=True) == [
        "a · rounds · k: 7 → 8",
        "a · rounds · loss: 2.0000001 → 2 (last bits)",
    ]
    assert bits.differences(path, exact=False) == ["a · rounds · k: 7 → 8"]
