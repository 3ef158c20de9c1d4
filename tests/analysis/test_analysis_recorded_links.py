"""Recorded links are measured as they are; their page says what its kept rows say."""

import answers
import pandas as pd
import pytest
import recorded_links

PAGE = " ".join(recorded_links.PAGE.read_text(encoding="utf-8").split())


def test_a_link_is_measured_in_whole_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_links, "NETWORKS", {"made up": "made-up"})
    # packets of 12 kbit: 2 in the first second, none in the second, 4 in the third, and
    # half of one
    times_ms = [0, 500, 2001, 2100, 2200, 2900, 3400]
    for way in ("up", "down"):
        (tmp_path / f"made-up.{way}").write_text("\n".join(map(str, times_ms)) + "\n")
    up, down = recorded_links.measure_links(tmp_path).to_dict("records")
    assert (up["seconds"], up["way"], down["way"]) == (3, "up", "down")
    assert up["mean_mbps"] == pytest.approx(0.024)
    assert up["median_mbps"] == pytest.approx(0.024)
    assert up["silent"] == pytest.approx(1 / 3, abs=1e-4)


def test_the_first_lines_follow_from_the_rows():
    late = [cell for cell in recorded_links.cells() if cell.target == 0.93]
    assert len(late) == len(recorded_links.NETWORKS) * len(recorded_links.DEVICES)
    sooner = [cell.over_dense[answers.RIVAL].ratio.exact for cell in late]
    said = f"{min(sooner):.1f} to {max(sooner):.1f} times sooner than dense at 93 %"
    assert said in PAGE
    slow = [cell.rival.verdict for cell in late if cell.link.startswith("AT&T")]
    assert (sum(slow), len(slow)) == (1, 6)
    assert "one cell of six tells them apart" in PAGE


def test_who_is_left_out_follows_from_the_rows():
    rows = pd.read_parquet(recorded_links.ROUNDS)
    shares = recorded_links.shares_of(rows).round()
    dropped, merged = (
        shares.loc[f"25 % more, late {fate}"] for fate in ("dropped", "merged")
    )
    for said in (
        f"Dropping the late throws {dropped['lost']:.0f} % of the participations away",
        f"those on the move less: {dropped['moving']:.0f} % of what is merged",
        f"loses {merged['lost']:.0f} %, and hears those",
        f"asked for: {merged['moving']:.0f} % of what is merged",
    ):
        assert said in PAGE
