"""What was built beside the package is loaded; other tests are skipped where it is not."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from simfed import native


def test_the_engine_that_was_built_is_loaded():
    folder = Path(native.__file__).parent
    built = [suffix for suffix in EXTENSION_SUFFIXES if (folder / f"_sharing{suffix}").is_file()]
    assert (native.sharing() is not None) == bool(built), "built from other sources: build it again"
