"""Folders of files that come with simfed beside its code: profiles, documentation."""

from __future__ import annotations

import site
import sys
from pathlib import Path


def list_shipped_folders(name: str) -> tuple[Path, ...]:
    """Return where the folder `name` may lie, the likeliest place first.

    It is beside the code in a clone, else below `share/simfed` of wherever the wheel
    was installed (environment, user, `--target`).

    >>> folders = list_shipped_folders("docs")
    >>> any((folder / "scenario.md").is_file() for folder in folders)
    True
    """
    beside = Path(__file__).resolve().parents[2]
    if (beside / "setup.cfg").is_file():
        return (beside / name,)
    # site-packages stands below lib/pythonX.Y of the place that data go to
    above = beside.parents[2:3]
    places = (Path(sys.prefix), *above, Path(site.getuserbase()), beside)
    return tuple(dict.fromkeys(place / "share" / "simfed" / name for place in places))
