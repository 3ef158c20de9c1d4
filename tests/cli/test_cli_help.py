"""What the command says of itself."""

from __future__ import annotations

from simfed.cli import main
from simfed.ground.version import VERSION


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"simfed {VERSION}\n"


def test_help_names_the_switch_for_tracebacks(capsys):
    assert main(["--help"]) == 0
    assert "--debug" in capsys.readouterr().out


def test_data_sets_are_told_apart(capsys):
    assert main(["list", "datasets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line.split(maxsplit=1)[1] for line in lines]
    assert "60,000 training and 10,000 test images of 1×28×28, 10 classes" in said
    assert "comes with simfed" in lines[0]
    assert "50,000" in next(line for line in lines if line.startswith("cifar10"))


def test_every_command_that_reads_scenarios_may_be_let_outside(capsys, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "secret.yaml").write_text("name: [not, yours]\n")
    file = tmp_path / "below" / "s.yaml"
    file.write_text("extends: ../secret.yaml\n")
    study = tmp_path / "below" / "study.yaml"
    study.write_text("name: s\nbase: s.yaml\nseeds: [0]\n")
    out = str(tmp_path / "out")
    for words in (["run"], ["validate"], ["show", "fleet"], ["regret"], ["study", "run"]):
        read = study if words[0] == "study" else file
        more = ["--out", out] if words[0] in ("run", "study") else []
        assert main([*words, str(read), *more]) == 2
        said = capsys.readouterr().err
        assert (
            "extends: '../secret.yaml' lies outside, expected a file in the "
            "scenario's folder or below (--allow-outside"
        ) in said
        assert "yours" not in said
        assert main([*words, str(read), *more, "--allow-outside"]) == 2
        assert "yours" in capsys.readouterr().err
