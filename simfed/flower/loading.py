"""A Flower app from its folder, loaded as Flower loads it.

`describe` reads its `pyproject.toml` and imports nothing; `load` imports both apps with
the folder on the path of modules. What Flower would raise for a folder that is no app,
or an app that cannot be imported, becomes one sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.config import get_fused_config_from_dir, get_project_config
from flwr.serverapp import ServerApp
from flwr.serverapp.server_app import LoadServerAppError
from flwr.supercore.object_ref import load_app

from simfed.flower.turns import describe_error
from simfed.ground.errors import InputError, check_known
from simfed.ground.inputs import list_files_below
from simfed.ground.plain import Plain

App = TypeVar("App", ServerApp, ClientApp)


@contextmanager
def load(
    folder: str | Path, overrides: Mapping[str, Plain]
) -> Iterator[tuple[ServerApp, ClientApp, dict[str, Plain]]]:
    """Load the app in a folder, which is on the path of modules meanwhile.

    Args:
        folder: has the app's `pyproject.toml`, which names both apps.
        overrides: settings of the run's configuration in place of the app's own.

    Yields:
        The server app, the client app, and the run's configuration.

    Raises:
        InputError: the folder is no app, the app cannot be imported, or its
        configuration has no such key.
    """
    folder = Path(folder)
    components, config = describe(folder, overrides)
    before = list(sys.path)
    try:
        server = _load_app(
            components["serverapp"], ServerApp, LoadServerAppError, folder
        )
        client = _load_app(
            components["clientapp"], ClientApp, LoadClientAppError, folder
        )
        if "torch" not in sys.modules and _is_torch_named(folder):
            # else a first message that does is not seeded and counted
            import torch  # noqa: F401
        yield server, client, config
    finally:
        sys.path[:] = before


def describe(
    folder: Path, overrides: Mapping[str, Plain]
) -> tuple[dict[str, str], dict[str, Plain]]:
    """Return the references of an app's two apps, and the run's configuration.

    None of them is imported.

    Args:
        folder: has the app's `pyproject.toml`.
        overrides: settings in place of the app's own.

    Returns:
        References (`package.module:name`) by `serverapp` and `clientapp`; the
        configuration with dots between the names of tables.

    Raises:
        InputError: as for `load`, but for the import.
    """
    if not (folder / "pyproject.toml").is_file():
        got = (
            "no such folder"
            if not folder.is_dir()
            else ("a folder without pyproject.toml")
        )
        allowed = "the folder of a Flower app, with its pyproject.toml"
        raise InputError(allowed, where=str(folder), got=got)
    where = str(folder / "pyproject.toml")
    try:
        components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
    except Exception as error:  # of tomli or Flower's own check
        text = " ".join(line.strip(" -") for line in str(error).splitlines())
        raise InputError("the project of a Flower app", where=where, got=text) from None
    choices = get_fused_config_from_dir(folder, {})
    for key in overrides:
        check_known(
            key, choices, ("a key of the app's configuration:"), where="--run-config"
        )
    return components, get_fused_config_from_dir(folder, dict(overrides))


def _is_torch_named(folder: Path) -> bool:
    """Return whether a Python file in an app's folder speaks of PyTorch."""
    return any(
        "torch" in file.read_text("utf-8", "ignore")
        for file in list_files_below(folder, "*.py")
    )


def read_stated_nodes(folder: Path) -> list[int]:
    """Return the numbers of nodes for which the app's `pyproject.toml` is written.

    They are `num-supernodes` of its federations; empty where it names none, as newer
    apps do.
    """
    federations = get_project_config(folder)["tool"]["flwr"].get("federations", {})
    options = [
        f.get("options", {}) for f in federations.values() if isinstance(f, dict)
    ]
    counts = [option.get("num-supernodes") for option in options]
    return [count for count in counts if isinstance(count, int)]


def _load_app(
    reference: str, kind: type[App], failure: type[Exception], folder: Path
) -> App:
    """Import one of an app's two apps.

    Args:
        reference: `package.module:name`.
        kind: `ServerApp` or `ClientApp`.
        failure: what Flower raises where the import fails.
        folder: the app's.

    Raises:
        InputError: it cannot be imported (the cause is told), or is of another kind.
    """
    where = f"{folder}: {reference}"
    try:
        app = load_app(reference, failure, folder)
    except Exception as error:
        why: BaseException = error.__cause__ or error.__context__ or error
        missing = (
            getattr(why, "name", None) if isinstance(why, ModuleNotFoundError) else None
        )
        raise InputError(
            f"a {kind.__name__} that can be imported",
            where=where,
            got=describe_error(why),
            hint=missing
            and f"what the app needs is in {folder}/pyproject.toml: pip install "
            f"{folder}",
        ) from None
    if not isinstance(app, kind):
        raise InputError(f"a {kind.__name__}", where=where, got=type(app).__name__)
    return app
