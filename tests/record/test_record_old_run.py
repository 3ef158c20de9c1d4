"""A run directory that 0.1.0 wrote: what stands keeps standing."""

import json
import shutil
from pathlib import Path

import pytest

from simfed.cli import main
from simfed.ground.version import VERSION
from simfed.record import RunDirectory
from simfed.record.digest import digest_manifest
from simfed.record.read import read_manifest

OLD = Path(__file__).parent / "runs" / "0.1.0"


@pytest.fixture
def old_run(tmp_path):
    """A copy, since commands write beside the tables."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_it_is_verified(old_run, capsys):
    assert main(["verify", str(old_run)]) == 0, capsys.readouterr().err


def test_what_is_written_now_is_refused_by_it(old_run, tmp_path):
    """It reads its own format alone, and this version both."""
    written = RunDirectory.create(tmp_path / "new", scenario_yaml="{}", manifest={"name": "new"})
    assert read_manifest(old_run)["format"] == 1
    assert read_manifest(written.path)["format"] == 2


def test_it_is_reported_and_drawn(old_run, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", str(old_run), "--out", str(page)]) == 0
    assert "run of 0.1.0" in page.read_text()
    figure = tmp_path / "timeline.svg"
    assert main(["timeline", str(old_run), "--format", "svg", "--out", str(figure)]) == 0


def test_it_is_compared_with_itself(old_run, capsys):
    assert main(["compare", str(old_run), str(old_run), "--bound", "1%"]) == 0


def test_a_forged_cell_of_it_is_named(old_run, capsys):
    """Of another version keys may be missing; its facts must hold all the same."""
    summary = old_run / "summary.json"
    facts = json.loads(summary.read_text())
    summary.write_text(json.dumps(facts | {"simulated_s": facts["simulated_s"] + 1}))
    assert main(["verify", str(old_run)]) == 3
    assert "simulated_s" in capsys.readouterr().err


def test_an_unfinished_one_does_not_go_on(old_run, capsys):
    begun = read_manifest(old_run) | {"status": "interrupted"}
    begun["digest"] = digest_manifest(begun)
    (old_run / "manifest.json").write_text(json.dumps(begun))
    code = main(["run", str(old_run / "scenario.yaml"), "--out", str(old_run), "--resume"])
    assert code == 2
    said = capsys.readouterr().err
    assert f"simfed 0.1.0 began this run, this is {VERSION}" in said
    assert "--overwrite begins the run again" in said
