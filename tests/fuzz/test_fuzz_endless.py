"""Whatever a scenario or a run folder names may be a pipe, a device, a sparse file, a
link to itself or a folder: each ends in a sentence that names it, at once.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest
import readers

import simfed
from simfed import SimfedError
from simfed.device import profile_names
from simfed.ground import read_bytes
from simfed.learn import files_digest, labels_in
from simfed.scenario import DatasetSpec
from simfed.verify import verify

LIMIT_S = 20


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def sparse(path):
    path.touch()
    os.truncate(path, 1 << 42)


def loop(path):
    path.symlink_to(path.name)


HOSTILE = [pipe, device, sparse, loop, Path.mkdir]


class Hangs(BaseException):
    pass


def hang(*_):
    raise Hangs


@pytest.fixture(autouse=True)
def _ends():
    """A pipe that is waited for fails the test; nothing is measured."""
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def sentence(read, *arguments):
    with pytest.raises(SimfedError) as refused:
        read(*arguments)
    said = str(getattr(refused.value, "errors", [refused.value])[0])
    assert "\n" not in said
    return said


def dataset(key, within=False, **keys):
    """A reader of a data set's file, or of the folder that it is in."""

    def read(path):
        spec = DatasetSpec(**{key: str(path.parent if within else path)}, **keys)
        labels_in(spec)
        files_digest(spec)

    return read


def picture(path):
    readers.calls("learn.data.pictures:read_picture", "picture.png")(str(path))


def server_key(path):
    readers.calls("deploy.access:load_server_tls", path)(path)


def beside(text, read):
    """A reader of a file that names the one at the path."""

    def read_other(path):
        other = path.with_name("other.yaml")
        other.write_text(text.format(path.name))
        read(other)

    return read_other


load = readers.calls("scenario:load_scenario", allow_plugins=True)
plan = readers.calls("study.plan:plan_study")
FILES = {
    "scenario.yaml": readers.scenario,
    "extended.yaml": beside("extends: {}", load),
    "base.yaml": beside("name: s\nbase: {}\nseeds: [0]\n", plan),
    "study.yaml": readers.study,
    "profile.yaml": readers.profile,
    "rows.csv": readers.measured,
    "devices.csv": readers.devices,
    "devices.parquet": readers.devices,
    "there.csv": readers.there,
    "up.csv": readers.csv_trace,
    "mahimahi.txt": readers.mahimahi,
    "pensieve": readers.pensieve,
    "graph.gml": readers.graph,
    "graph.graphml": readers.graph,
    "cases.json": readers.cases,
    "data.npz": dataset("file"),
    "data.csv": dataset("table", target="y"),
    "data.parquet": dataset("table", target="y"),
    "leaf.json": dataset("leaf", within=True),
    "state.json": dataset("huggingface", within=True),
    "picture.png": picture,
    "public.npz": readers.calls("learn.data.own:public_digest"),
    "log.csv": readers.calls("calibrate.twin_log:read_log"),
    "ca.pem": readers.calls("deploy.access:load_client_tls"),
    "key.pem": server_key,
    "part.py": readers.calls("ground.registry:import_file"),
    "named.py": beside("plugins: [{}]", load),
    "app.work.yaml": readers.calls("flower.workfile:load_work"),
}


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("name", FILES)
def test_file_that_never_ends_is_refused_by_its_name(tmp_path, name, make):
    path = tmp_path / "within" / name
    path.parent.mkdir()
    make(path)
    said = sentence(FILES[name], path)
    assert name in said or "/dev/zero" in said


KEPT = [
    "manifest.json", "summary.json", "scenario.yaml", "rounds.parquet",
    "participations.parquet", "spans.parquet", "calibration/x86-2core-vm.yaml",
]  # fmt: skip


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("name", KEPT)
def test_so_is_one_in_a_run(tmp_path, good, name, make):
    run = tmp_path / "run"
    shutil.copytree(good / "run", run)
    (run / name).unlink()
    make(run / name)
    try:
        said = " ".join(verify(run))
    except SimfedError as error:
        said = str(error)
    assert Path(name).name in said


@pytest.mark.parametrize("make", [pipe, device, sparse, Path.mkdir])
@pytest.mark.parametrize(
    "below", ["checkpoint/*.json", "checkpoint/*.safetensors", "*.jsonl"]
)
def test_so_is_a_checkpoint(tmp_path, good, below, make):
    begun = tmp_path / "begun"
    shutil.copytree(good / "begun", begun)
    for path in begun.glob(below):
        path.unlink()
        make(path)
    assert Path(below).suffix in sentence(readers.checkpoint, begun)


@pytest.mark.parametrize("make", HOSTILE)
def test_kept_trajectories_are_passed_over(tmp_path, good, make):
    shutil.copytree(good / "cache", tmp_path / "cache")
    for path in [*tmp_path.glob("cache/*/*"), *tmp_path.glob("cache/*/states/*")]:
        if path.is_file():
            path.unlink()
            make(path)
    readers.kept(tmp_path / "cache")


@pytest.mark.parametrize("make", HOSTILE)
def test_study_is_none_then(tmp_path, make):
    make(tmp_path / "study.json")
    assert "study.json" in sentence(simfed.load_study, tmp_path)


def test_files_of_the_system_that_say_they_are_empty_are_not_waited_for():
    assert read_bytes("/proc/self/stat") == b""


def test_profiles_of_a_folder_are_listed_past_a_pipe(tmp_path):
    pipe(tmp_path / "p.yaml")
    assert "p" not in profile_names([tmp_path])
