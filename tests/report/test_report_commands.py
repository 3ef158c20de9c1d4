"""`simfed timeline` and `simfed report`, from the command line."""

import shutil
import subprocess
import sys

import pytest

from simfed.cli import main


@pytest.fixture
def run(report_folder, tmp_path):
    return shutil.copytree(report_folder(), tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "file", "start"),
    [
        (["--rounds", "1"], "timeline.png", b"\x89PNG"),
        (["--format", "svg", "--rounds", "1"], "timeline.svg", b"<?xml"),
        (
            ["--format", "pdf", "--width", "88mm", "--rounds", "2"],
            "timeline.pdf",
            b"%PDF",
        ),
        (["--format", "perfetto"], "timeline.json.gz", b"\x1f\x8b"),
        (["--out", "{}/own.json.gz", "--rounds", "1"], "own.json.gz", b"\x1f\x8b"),
        (["--format", "html", "--rounds", "3:4"], "timeline.html", b"<!doctype html>"),
    ],
)
def test_timeline_writes_every_format(run, capsys, arguments, file, start):
    arguments = [text.format(run) for text in arguments]
    assert main(["timeline", str(run), *arguments]) == 0
    assert (run / file).read_bytes().startswith(start)
    assert capsys.readouterr().out.strip() == str(run / file)


def test_report_writes_one_page_about_one_or_several_runs(
    run, report_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run)]) == 0
    assert 1e6 < (run / "report.html").stat().st_size < 3e6
    assert main(["report", str(run), str(report_folder(10, 20, 1))]) == 0
    assert "Results, side by side" in (tmp_path / "report.html").read_text()


def test_open_opens_the_page_and_says_where_it_is_when_there_is_no_browser(
    run, capsys, monkeypatch
):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or False)
    assert main(["report", str(run), "--open"]) == 0
    assert opened == [(run / "report.html").as_uri()]
    assert "no browser found" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["timeline", "report"])
def test_what_is_no_whole_run_directory_is_one_sentence(run, capsys, command):
    def said():
        assert main([command, str(run)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    spans = run / "spans.parquet"
    spans.write_bytes(spans.read_bytes()[:1000])
    assert "spans.parquet: cannot be read" in said()
    spans.unlink()
    assert "spans.parquet is missing" in said()
    (run / "manifest.json").write_text('{"format": 1, "sta')
    assert (
        "manifest.json: cannot be read: Unterminated string starting at: line "
        "1 column 15 (char 14), expected a whole"
    ) in said()


def test_neither_torch_nor_simpy_is_imported(report_folder, tmp_path):
    run = shutil.copytree(report_folder(4, 2), tmp_path / "run")
    code = (
        "import sys; from simfed.cli import main; assert main(['report', "
        f"{str(run)!r}]) == 0; assert main(['timeline', {str(run)!r}, '--rounds', "
        "'1']) == 0; print([m for m in ('torch', 'simpy', 'simfed.sim', "
        "'simfed.learn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
