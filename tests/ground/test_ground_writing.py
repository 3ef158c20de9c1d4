"""Files that somebody asked for are whole, or as they were."""

import errno
import os
import threading
from pathlib import Path

import pytest

from simfed import InputError
from simfed.ground.writing import put_output


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path, whole = tmp_path / "report.html", Path.write_bytes

    def fill_the_disk(path, content):
        whole(path, content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    put_output(path, "before")
    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    for out in (path, tmp_path / "new.html"):
        with pytest.raises(
            InputError, match=f"{out}: cannot be written: No space left"
        ):
            put_output(out, "after")
    assert (path.read_text(), os.listdir(tmp_path)) == ("before", ["report.html"])


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    link, pipe, read = tmp_path / "link.csv", tmp_path / "pipe", []
    link.symlink_to(tmp_path / "there.csv")
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    put_output(link, "rows")
    put_output(pipe, "rows")
    reader.join()
    assert read == ["rows"]
    assert link.is_symlink()
    assert (tmp_path / "there.csv").read_text() == "rows"
