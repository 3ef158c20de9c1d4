"""Cores that a process may use."""

from __future__ import annotations

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
def test_neither_more_than_the_affinity_nor_than_the_quota(monkeypatch, quota, affinity, expected):
    def read_text(path, *arguments, **options):
        if quota is None:
            raise FileNotFoundError(path)
        return quota

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    monkeypatch.setattr(Path, "read_text", read_text)
    assert cores.available_cores() == expected
