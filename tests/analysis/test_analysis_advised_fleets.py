"""Three drawn fleets: what `simfed advise` said of them, beside the best of a study."""

import advised_fleets as fleets
import pandas as pd
import pytest
import yaml
from kept import PROVENANCE

from simfed import load_scenario, run
from simfed.advise.candidates import list_candidates


@pytest.fixture(scope="module")
def rows():
    return pd.read_csv(fleets.ROWS)


def test_each_fleet_has_all_candidates_under_seeds_that_no_advice_saw(rows):
    assert set(rows["fleet"]) == {*fleets.BUDGETS_S}
    assert min(fleets.SEEDS) > 1000
    for _, of_fleet in rows.groupby("fleet"):
        assert of_fleet["arm"].nunique() >= 19
        for _, of_arm in of_fleet.groupby("arm"):
            assert [*of_arm["seed"]] == [*fleets.SEEDS]
        for says in ("race", "rule"):
            assert of_fleet["arm"][of_fleet[says]].nunique() == 1
    assert rows[[*PROVENANCE]].notna().all().all()


@pytest.mark.long
def test_a_number_of_the_page_comes_again(rows, tmp_path):
    row = rows[(rows["fleet"] == 2) & rows["race"]].iloc[0]
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleets.draw_fleet(2), sort_keys=False))
    candidates, _ = list_candidates(file, load_scenario(file))
    (arm,) = (one for one in candidates if one.name == row["arm"])
    shorter = {"rounds": int(row["round"]), "seed": int(row["seed"])}
    made = load_scenario(file, {**arm.changes, **shorter})
    played = run(made, source=file, progress=False)
    assert played.summary["simulated_s"] == pytest.approx(row["at_s"], rel=1e-6)
