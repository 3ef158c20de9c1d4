"""A Flower app from its folder, loaded as Flower loads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.config import get_fused_config_from_dir, get_project_config
from flwr.serverapp import ServerApp
from flwr.serverapp.server_app import LoadServerAppError
from flwr.supercore.object_ref import load_app

from simfed.errors import InputError, did_you_mean, listed
from simfed.flower.asides import said

__all__ = ["load"]


@contextmanager
def load(
    folder: str | Path, overrides: Mapping[str, Any]
) -> Iterator[tuple[ServerApp, ClientApp, dict[str, Any]]]:
    """(server app, client app, run config) of the app in a folder, by its `pyproject.toml`.

    Its folder is on the path of modules meanwhile. Raises: `InputError` for a folder that is no
    app, an app that cannot be imported, and a key that its configuration does not have.
    """
    folder = Path(folder)
    if not (folder / "pyproject.toml").is_file():
        got = "no such folder" if not folder.is_dir() else "a folder without pyproject.toml"
        raise InputError("the folder of a Flower app, with its pyproject.toml",
                         where=str(folder), got=got)  # fmt: skip
    where = str(folder / "pyproject.toml")
    try:
        components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
    except Exception as error:  # of tomli or Flower's own check
        text = " ".join(line.strip(" -") for line in str(error).splitlines())
        raise InputError("the project of a Flower app", where=where, got=text) from None
    known = get_fused_config_from_dir(folder, {})
    for key in overrides:
        if key not in known:
            raise InputError(
                f"a key of the app's configuration: {listed(known) or 'it has none'}",
                where="--run-config", got=key, hint=did_you_mean(key, known),
            )  # fmt: skip
    config = get_fused_config_from_dir(folder, dict(overrides))
    before = list(sys.path)
    try:
        server = _loaded(components["serverapp"], ServerApp, LoadServerAppError, folder)
        client = _loaded(components["clientapp"], ClientApp, LoadClientAppError, folder)
        yield server, client, config
    finally:
        sys.path[:] = before


def _loaded(reference: str, kind: type[Any], failure: type[Exception], folder: Path) -> Any:
    where = f"{folder}: {reference}"
    try:
        found = load_app(reference, failure, folder)
    except Exception as error:
        why: BaseException = error.__cause__ or error.__context__ or error
        raise InputError(
            f"a {kind.__name__} that can be imported", where=where, got=said(why)
        ) from None
    if not isinstance(found, kind):
        raise InputError(f"a {kind.__name__}", where=where, got=type(found).__name__)
    return found
