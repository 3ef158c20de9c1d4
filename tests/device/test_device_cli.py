"""`simfed calibrate fit`, `check` and `show` from outside."""

import numpy as np
import pytest
from device_made_up import measured_table, write_csv
from typer.testing import CliRunner

from simfed import BrokenInvariant
from simfed.cli.calibrate import app
from simfed.device import load_profile


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    table = measured_table(np.random.default_rng(0))
    write_csv(folder / "table.csv", table)
    other = measured_table(np.random.default_rng(1), sessions=1)
    write_csv(folder / "other.csv", other)
    write_csv(folder / "slow.csv", table, slower=2)
    result = call("fit", folder / "table.csv", "--out", folder / "made-up.yaml")
    assert result.exit_code == 0, result.output
    return folder


def test_fit_writes_a_profile_and_reports_its_errors(folder):
    again = folder / "again.yaml"
    words = ("--name", "made-up", "--description", "made up")
    result = call("fit", folder / "table.csv", "--out", again, *words)
    assert "law profile; recommended for these measurements" in result.output
    assert "affine-samples" in result.output
    provenance = load_profile(again).provenance
    assert provenance["description"] == "made up"
    assert provenance["files"][0]["name"] == "table.csv"
    call("fit", folder / "table.csv", "--out", again, "--name", "made-up")
    assert again.read_text() == (folder / "made-up.yaml").read_text()


def test_check_gives_a_verdict_and_exit_code_3_beyond_the_bound(folder):
    profile = folder / "made-up.yaml"
    held = call("check", profile, folder / "other.csv", "--bound", "10%")
    assert held.exit_code == 0
    assert "The profile holds" in held.output
    broken = call("check", profile, folder / "slow.csv", "--bound", "0.1")
    assert isinstance(broken.exception, BrokenInvariant)
    assert "above the bound of 10.0%" in str(broken.exception)
    assert "does not describe" in broken.output
    assert call("check", profile, folder / "slow.csv").exit_code == 0
    assert "was fitted to" not in held.output
    assert "was fitted to" in call("check", profile, folder / "table.csv").output


def test_show_draws_the_profile_over_its_points(folder):
    result = call("show", folder / "made-up.yaml", "--out", folder / "s.png")
    assert result.exit_code == 0
    assert (folder / "s.png").read_bytes().startswith(b"\x89PNG")
    assert "affine-k" in result.output
    result = call("show", "rtx3090-ryzen4800h", "--out", folder / "source.svg")
    assert result.exit_code == 0
    assert "compression lenet5-half top-k 3 rows 500 5,000" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize("model", ["[/x]", "[bold]x[/]"])
def test_a_models_name_is_said_as_it_is_written(tmp_path, model):
    table, profile = tmp_path / "t.csv", tmp_path / "p.yaml"
    table.write_text(f"model,batch_size,seconds\n{model},8,0.1\n{model},16,0.2\n")
    for arguments in (
        ("fit", table, "--out", profile, "--description", model),
        ("check", profile, table),
        ("show", profile, "--out", tmp_path / "p.png"),
    ):
        result = call(*arguments)
        assert result.exit_code == 0, result.output
        assert f"training  {model} " in result.output
    assert f"p: law profile; {model}\n" in result.output


def test_points_are_drawn_from_the_very_files_that_were_fitted(tmp_path, monkeypatch):
    one, two = (tmp_path / name / "t.csv" for name in "12")
    for path, seconds in ((one, 0.1), (two, 0.2)):
        path.parent.mkdir()
        path.write_text(f"model,batch_size,seconds\nm,8,{seconds}\nm,16,{seconds}1\n")
    drawn = []
    report, profile = "simfed.report", one.with_name("p.yaml")
    monkeypatch.setattr(
        f"{report}.calibration.profile_figure", lambda _, points: drawn.append(points)
    )
    monkeypatch.setattr(f"{report}.pictures.save_picture", lambda _, path: path)
    for tables in ([one], [one, two]):
        assert call("fit", *tables, "--out", profile).exit_code == 0
        assert call("show", profile).exit_code == 0
    alone, both = drawn
    assert (len(alone.rows), both) == (2, None)


def test_a_k_that_a_model_lacks_is_left_out_and_said(tmp_path):
    words = "--models logistic-regression,lenet5-half --only compression --repeat 1"
    words += " --strategies top-k --k 10,7851,99999999"
    result = call("measure", "--out", tmp_path / "m.csv", *words.split())
    assert result.exit_code == 0, result.output
    notes = [line for line in result.output.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: K = 7,851 or 99,999,999 is left out: logistic-regression has 7,850 "
        "entries",
        "note: K = 99,999,999 is left out: lenet5-half has 15,738 entries",
    ]
    assert "3 new measurements" in result.output
