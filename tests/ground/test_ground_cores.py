"""Cores that a process may use."""

import os
from pathlib import Path

import pytest

from simfed.ground import cores


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [
        ("max 100000", 4, 4),
        ("250000 100000", 4, 2),
        ("50000 100000", 4, 1),
        ("900000 100000", 4, 4),
        (None, 3, 3),
    ],
)
def test_neither_more_than_the_affinity_nor_than_the_quota(
    monkeypatch, quota, affinity, expected
):
    def read_text(path, *arguments, **options):
        if quota is None:
            raise FileNotFoundError(path)
        return quota

    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False
    )
    monkeypatch.setattr(Path, "read_text", read_text)
    assert cores.available_cores() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cgroup.controllers": "io cpu memory"}, "."),
        ({"cgroup.controllers": "io memory"}, None),
        ({"cpu/cgroup.procs": "1"}, "cpu"),
        ({"cgroup.controllers": "cpuset", "cpu/cgroup.procs": ""}, "cpu"),
        ({}, None),
    ],
)
def test_groups_with_a_quota_are_made_where_the_system_has_them(
    monkeypatch, tmp_path, files, expected
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "_CGROUP", tmp_path)
    assert cores.find_cpu_groups() == (expected and tmp_path / expected)
