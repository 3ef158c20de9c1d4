"""Scripts of `analysis/` are imported as they stand."""

import json
import sys

import pytest
from analysis_made_up import ANALYSIS

sys.path.insert(0, str(ANALYSIS))


@pytest.fixture
def keep(tmp_path):
    """Writes made-up results, each under a hash of its setting; their folder."""
    from simfed.replay.key import digest_of

    folder = tmp_path / "results"
    folder.mkdir()

    def write(*several):
        for one in several:
            one["hash"] = digest_of([one["setting"], one["seed"]])[:16]
            (folder / f"{one['hash']}.json").write_text(json.dumps(one))
        return folder

    return write
