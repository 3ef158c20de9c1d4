"""Getting data sets, against servers on loopback: nothing reaches the network."""

import dataclasses
import errno
import gzip
import io
import os
import shutil
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from learn_tiny import TINY, TINY_FILES, write_tar, write_tiny

import simfed.learn.data.fetch as fetching
from simfed import InputError, SimfedError
from simfed.ground.registry import registry
from simfed.learn import get

PACKED = {
    f"/{name}.gz": gzip.compress(content, mtime=0)
    for name, content in TINY_FILES.items()
}
FIRST = "/train-images-idx3-ubyte.gz"


class Server(ThreadingHTTPServer):
    """Serves `files`.

    `cut` bytes into an answer it hangs up; remembers the path of every request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cut, self.requests = dict(PACKED), {}, []
        self.base = f"http://127.0.0.1:{self.server_port}"

    def origin(self):
        return tuple(self.base + path for path in PACKED)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut.get(self.path)])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(
            target=running.serve_forever, kwargs={"poll_interval": 0.01}
        )
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where simfed keeps things in this test: its data folder and its cache folder."""
    monkeypatch.setenv("SIMFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return tmp_path


def tiny(*origins):
    return dataclasses.replace(TINY, origins=origins)


def files_in(folder):
    found = folder.rglob("*")
    return {str(path.relative_to(folder)) for path in found if path.is_file()}


INSTALLED = {f"data/Tiny/raw/{name}" for name in TINY_FILES}


# ---- what works ----------------------------------------------------------------------


def test_files_are_fetched_unpacked_checked_and_installed(place, server):
    seen = []
    published = tiny(server.origin())
    where, how = get(published, progress=lambda *report: seen.append(report))
    assert (where, how) == (place / "data/Tiny/raw", f"from {server.base}")
    assert files_in(place) == INSTALLED
    assert published().facts.train_samples == 20
    assert (FIRST[1:], len(PACKED[FIRST]), len(PACKED[FIRST])) in seen


def test_what_is_here_is_not_fetched_again(place, server):
    write_tiny(place / "data/Tiny/raw")
    assert get(tiny(server.origin())) == (place / "data", "already here")
    assert server.requests == []


def test_what_is_here_but_damaged_is_fetched_again(place, server):
    write_tiny(place / "data/Tiny/raw")
    (place / "data/Tiny/raw/t10k-labels-idx1-ubyte").write_bytes(b"damaged")
    _, how = get(tiny(server.origin()))
    assert how == f"from {server.base}"
    assert tiny()().facts.test_samples == 5


def test_an_archive_is_fetched_whole_and_read(place, server):
    write_tar(place / "tiny.tar.gz", "Tiny/raw/")
    server.files = {"/tiny.tar.gz": (place / "tiny.tar.gz").read_bytes()}
    (place / "tiny.tar.gz").unlink()
    get(tiny((f"{server.base}/tiny.tar.gz",)))
    assert files_in(place) == INSTALLED


def test_the_next_origin_is_tried(place, server):
    _, how = get(tiny((f"{server.base}/none.gz",), server.origin()))
    assert how == f"from {server.base}"
    assert files_in(place) == INSTALLED


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["Tiny/raw", "", "z/deep/below"])
def test_in_a_folder_that_the_user_names_the_digest_decides(place, folder, packed):
    write_tiny(place / "mine" / folder, packed=packed)
    (place / "mine/another").mkdir()
    (place / "mine/another/t10k-labels-idx1-ubyte").write_bytes(b"of another set")
    get(tiny(), source=place / "mine")
    assert {f"data/{name}" for name in files_in(place / "data")} == INSTALLED


def test_an_archive_that_the_user_names(place):
    write_tar(place / "content.tar", "package/data/")
    get(tiny(), source=place / "content.tar")
    assert files_in(place) == INSTALLED | {"content.tar"}


def test_an_embedded_data_set_is_already_there(place):
    mini = registry("dataset").get("mnist-mini")
    assert get(mini) == (mini.home, "comes with simfed")


def test_no_origin_works_and_the_sentence_says_which_files_go_where(place):
    closed = "http://127.0.0.1:9"  # the discard port: nobody listens
    origins = ((f"{closed}/a.gz",), (f"{closed}/other/b.gz",))
    with pytest.raises(SimfedError) as caught:
        get(tiny(*origins))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert f"{closed}: a.gz: no connection, Connection refused" in sentence
    assert f"{closed}/other: b.gz: no connection, Connection refused" in sentence
    assert f"put {', '.join(TINY_FILES)} into {place / 'data/Tiny/raw'}" in sentence
    assert "--from" in sentence
    assert caught.value.exit_code == 1
    assert files_in(place) == set()


def shorten(server, monkeypatch):
    # the server's own copy is too short: its length is consistent, its content is not
    server.files[FIRST] = PACKED[FIRST][:-20]


def spoil(server, monkeypatch):
    label = "t10k-labels-idx1-ubyte"
    server.files[f"/{label}.gz"] = gzip.compress(TINY_FILES[label][:-1] + b"\2")


def hang_up(server, monkeypatch):
    server.cut[FIRST] = 40


def bound(server, monkeypatch):
    monkeypatch.setattr(fetching, "LARGEST_BYTES", 60)


def empty(server, monkeypatch):
    content = io.BytesIO()
    tarfile.open(fileobj=content, mode="w").close()
    server.files = dict.fromkeys(PACKED, content.getvalue())


class FullDisk(io.BytesIO):
    def write(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_disk(server, monkeypatch):
    monkeypatch.setattr(fetching, "open", lambda *_: FullDisk(), raising=False)


def fill_disk_later(server, monkeypatch):
    real = Path.write_bytes

    def full(path, content):
        if path.name.startswith("t10k"):
            real(path, content[:3])
            FullDisk().write(content)
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)


NAME = r"train-images-idx3-ubyte\.gz"
FULL = r"Tiny could not be written to .*: No space left on device"


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (spoil, r"t10k-labels-idx1-ubyte: got '\w{64}', expected .* with SHA-256"),
        (shorten, f"{NAME}: truncated or damaged, expected a whole gzip file"),
        (hang_up, f"{NAME}: the connection broke"),
        (bound, f"{NAME}: more than 60 B"),
        (empty, "expected a whole gzip file"),
        (fill_disk, FULL),
        (fill_disk_later, FULL),
    ],
)
def test_what_goes_wrong_is_a_sentence_and_leaves_nothing(
    place, server, monkeypatch, trouble, sentence
):
    trouble(server, monkeypatch)
    with pytest.raises(SimfedError, match=sentence):
        get(tiny(server.origin()))
    assert files_in(place) == set()
    assert not (place / "data/Tiny").exists()


# ---- disk ----------------------------------------------------------------------------


def test_too_little_space_is_found_before_anything_is_fetched(
    place, server, monkeypatch
):
    usage = shutil.disk_usage(place)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SimfedError, match=r"173 B in .*data, where 100 B are free"):
        get(tiny(server.origin()))
    assert server.requests == []
    assert files_in(place) == set()


# ---- a wrong source ------------------------------------------------------------------


def test_a_source_that_is_not_there_or_holds_something_else(place):
    (place / "empty").mkdir()
    write_tiny(place / "part", leave_out="train-labels-idx1-ubyte")
    (place / "file").write_text("no archive")
    for name, sentence in {
        "none": "none: no such file",
        "empty": "got .*empty', expected a folder or archive with train-images-idx3",
        "part": "train-labels-idx1-ubyte is missing, expected all files of Tiny",
        "file": "a whole tar archive",
    }.items():
        with pytest.raises(InputError, match=f"--from: .*{sentence}"):
            get(tiny(), source=place / name)
    assert not (place / "data/Tiny").exists()


# ---- the command ---------------------------------------------------------------------


@pytest.fixture
def simfed_data(add_part):
    """The `simfed data` command over a registry that also holds Tiny."""
    from simfed.cli.data import app

    def run(published, *arguments):
        add_part("dataset", "tiny", published)
        app(list(arguments), standalone_mode=False)

    return run


def test_the_command_gets_lists_and_shows_the_path(place, server, simfed_data, capsys):
    published = tiny(server.origin())
    simfed_data(published, "list")
    before = capsys.readouterr().out
    assert "not here: simfed data get tiny" in before
    assert "comes with simfed" in before
    simfed_data(published, "get", "tiny")
    said = capsys.readouterr()
    assert said.out == f"tiny: {place / 'data/Tiny/raw'} (from {server.base})\n"
    assert f"fetching {FIRST[1:]}" in said.err
    simfed_data(published, "list")
    row = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny")
    )
    assert row.split() == ["tiny", "20", "5", "1×2×2", "none", str(place / "data")]
    simfed_data(published, "path")
    assert capsys.readouterr().out.splitlines() == [
        str(place / "data"),
        str(place / "cache/simfed/datasets"),
    ]


def test_the_command_takes_a_folder_and_refuses_names(place, simfed_data, capsys):
    write_tiny(place / "mine")
    simfed_data(tiny(), "get", "tiny", "--from", str(place / "mine"))
    assert "from" in capsys.readouterr().out
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        simfed_data(tiny(), "get", "mnits")
    with pytest.raises(
        InputError, match="NAME: got 'tiny', expected a data set that simfed can fetch"
    ):
        simfed_data(lambda: None, "get", "tiny")
