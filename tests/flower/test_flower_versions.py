"""What is said where Flower is missing or of another version; needs no Flower."""

from __future__ import annotations

from importlib import metadata

import pytest

import simfed
from simfed import InputError
from simfed.cli import main
from simfed.flower.versions import flower_version


def pretend(monkeypatch, version):
    def found(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)


@pytest.mark.parametrize("version", ["1.38.0", "1.41.0", "1.42.3"])
def test_supported_versions_are_taken(monkeypatch, version):
    pretend(monkeypatch, version)
    assert flower_version() == version


@pytest.mark.parametrize(
    ("version", "got"), [(None, "'none'"), ("1.32.1", "'1.32.1'"), ("2.0.0", "'2.0.0'")]
)
def test_others_are_refused_in_a_sentence(monkeypatch, capsys, tmp_path, version, got):
    pretend(monkeypatch, version)
    with pytest.raises(InputError) as refused:
        simfed.flower.run(None, None, {})
    assert str(refused.value) == (
        f"Flower: got {got}, expected flwr 1.38 to 1.42 (pip install 'simfed[flower]')"
    )
    assert main(["flower", "run", str(tmp_path), "--fleet", "fleet.yaml"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
