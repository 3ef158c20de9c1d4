"""Scripts of `analysis/` are imported as they stand."""

import json
import sys

import pytest
from analysis_made_up import ANALYSIS

_OTHERS = ANALYSIS / "others"
sys.path[:0] = map(str, (ANALYSIS, ANALYSIS / "paper", _OTHERS, *_OTHERS.glob("*/")))


@pytest.fixture(scope="session")
def planned_hashes():
    """Coordinates and seed → the hash of the campaign's run."""
    from campaign import campaign, setting_of

    hashes = {}
    for planned in campaign():
        scenario = planned.run.scenario
        setting, models = setting_of(scenario.model_dump(mode="json")), tuple(scenario.prototypes)
        hashes[coordinates(setting, scenario.seed)] = (planned.hash, setting, scenario.seed, models)
    return hashes


def coordinates(setting, seed):
    numbers = {
        k: round(float(v), 6) if isinstance(v, (int, float)) else v for k, v in setting.items()
    }
    return json.dumps([numbers, seed], sort_keys=True)


@pytest.fixture
def keep(tmp_path, planned_hashes):
    """Writes made-up results, each under the hash of the campaign's run in its place; their
    folder."""
    from simfed.record.digest import digest_value

    folder = tmp_path / "results"
    folder.mkdir()

    def write(*several):
        for one in several:
            where = one["setting"], one["seed"]
            planned = planned_hashes.get(coordinates(*where))
            one["hash"] = one["hash"] or (planned[0] if planned else digest_value(where)[:16])
            (folder / f"{one['hash']}.json").write_text(json.dumps(one))
        return folder

    return write
