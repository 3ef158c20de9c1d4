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
    assert (
        f"{min(sooner):.1f} to {max(sooner):.1f} times sooner than dense at 93 %"
        in PAGE
    )
    assert all(cell.rival.verdict >= 0 for cell in late)
    slow = [cell.rival.verdict for cell in late if cell.link.startswith("AT&T")]
    assert (sum(slow), len(slow)) == (1, 6)
    assert "one cell of six tells them apart" in PAGE
    assert all(cell.rival.verdict for cell in late if not cell.link.startswith("AT&T"))
    links = pd.read_csv(recorded_links.LINKS).set_index(["network", "way"])
    assert links.loc[("AT&T, driving", "up"), "mean_mbps"] < 1


def test_no_compression_shortens_an_outage_and_asking_more_does():
    made_up, whole, without = (
        {arm: tail.over_reference[-1].value for arm, tail in tails.items()}
        for tails in recorded_links.longest_rounds().values()
    )
    codecs = {codec for codec, _ in whole}
    assert min(whole[codec, "wait for all"] for codec in codecs) > 0.94
    assert 1 / whole["dense", "25 % more, late merged"] == pytest.approx(18, abs=0.5)
    assert without["Top-K 1 %", "wait for all"] < 0.7
    assert without["Top-K 1 %", "25 % more, late merged"] < 0.25
    assert made_up["Top-K 1 %", "wait for all"] == pytest.approx(1 / 3, abs=0.03)


def test_the_longest_rounds_against_the_median_one():
    made_up, whole, _ = (
        tails[recorded_links.REFERENCE].quantiles_s
        for tails in recorded_links.longest_rounds().values()
    )
    assert made_up[2].value / made_up[0].value == pytest.approx(3, abs=0.2)
    assert whole[2].value / whole[0].value == pytest.approx(16, abs=0.5)


def test_who_is_left_out_follows_from_the_rows():
    rows = pd.read_parquet(recorded_links.ROUNDS)
    made_up = rows[rows["fleet"] == "made up"]
    sizes = made_up.groupby(["codec", "server", "seed", "start"], observed=True).size()
    assert set(sizes) == {50}
    assert len(sizes) == 12 * 5 * 4
    shares = recorded_links.shares_of(rows).round()
    dropped, merged = (
        shares.loc["25 % more, late dropped"],
        shares.loc["25 % more, late merged"],
    )
    assert (
        f"Dropping the late throws {dropped['lost']:.0f} % of the participations away"
    ) in PAGE
    assert (
        f"those on the move less: {dropped['moving']:.0f} % of what is merged" in PAGE
    )
    assert f"loses {merged['lost']:.0f} %, and hears those" in PAGE
    assert f"asked for: {merged['moving']:.0f} % of what is merged" in PAGE
