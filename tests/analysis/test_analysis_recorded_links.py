"""Recorded links are measured as they are, and their page says what its kept rows say."""

import answers
import pandas as pd
import pytest
import recorded_links
import tail_figure

PAGE = " ".join(recorded_links.PAGE.read_text(encoding="utf-8").split())


def test_a_link_is_measured_in_whole_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_links, "NETWORKS", {"made up": "made-up"})
    # packets of 12 kbit: 2 in the first second, none in the second, 4 in the third, and half of one
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
    assert f"{min(sooner):.1f} to {max(sooner):.1f} times sooner than dense at 93 %" in PAGE
    assert all(cell.rival.verdict >= 0 for cell in late)
    slow = [cell for cell in late if cell.link == "AT&T, driving"]
    assert not any(cell.rival.verdict for cell in slow)
    links = pd.read_csv(recorded_links.LINKS).set_index(["network", "way"])
    assert links.loc[("AT&T, driving", "up"), "mean_mbps"] < 1


def test_no_compression_shortens_an_outage_and_asking_more_does():
    rounds = pd.read_parquet(recorded_links.ROUNDS).assign(start=0, merged=1, moving=0, lost=0)
    longest = {
        fleet: {
            (one.codec, one.server): one.over_reference[-1].value
            for one in tail_figure.tails(rounds[rounds["fleet"] == fleet])
        }
        for fleet in recorded_links.FLEETS
    }
    whole, without = longest["all"], longest["without the outage"]
    codecs = {codec for codec, _ in whole}
    assert min(whole[codec, "wait for all"] for codec in codecs) > 0.94
    assert 0.05 < whole["dense", "25 % more, late merged"] < 0.06
    assert without["Top-K 1 %", "wait for all"] < 0.7
    assert without["Top-K 1 %", "25 % more, late merged"] < 0.25
