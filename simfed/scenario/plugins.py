"""The part of a scenario that names files of code, and the files that this code opens."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
)

from simfed.ground.errors import InputError
from simfed.ground.inputs import make_missing_file_error
from simfed.ground.opened import compute_file_sha256, list_opened
from simfed.ground.plain import Plain
from simfed.ground.registry import compute_file_digest
from simfed.scenario.fields import FoundFile
from simfed.scenario.section import Section, short_for

__all__ = [
    "OpenedFile",
    "PluginSpec",
    "Plugins",
    "add_opened_files",
    "check_opened",
    "files_below",
    "has_copies",
    "opened_files",
]

S = TypeVar("S", bound=BaseModel)


class OpenedFile(Section):
    """A file that a plug-in opens."""

    file: FoundFile = Field(description="its place")
    sha256: str | None = Field(
        default=None, description="of its content; a run says it, and no other content will do"
    )


def _wrap_in_list(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, (str, Mapping)) else value


class _Plugin(Section):
    """A Python file that registers parts.

    The files that it opens are found when it does, or named by `with` where it has a library open
    them. A run refers to them by place and content; `copy: true` keeps copies of those that lie in
    the plug-in's folder or below.
    """

    file: FoundFile = Field(description="of Python code")
    place: str | None = Field(
        default=None,
        description="in a run: the folder where the file lay, and from which it finds its own",
    )

    @model_serializer(mode="wrap")
    def _short(self, dump: SerializerFunctionWrapHandler) -> Any:
        """Its name alone where there is nothing else to say."""
        options = {
            key: value
            for key, value in dump(self).items()
            if value not in (None, False) and value != [] and value != ()
        }
        return options["file"] if options.keys() == {"file"} else options


_Files = Annotated[
    tuple[Annotated[OpenedFile, short_for("file", OpenedFile)], ...],
    BeforeValidator(_wrap_in_list, json_schema_input_type=list[str] | str),
]

if TYPE_CHECKING:
    PluginSpec = _Plugin
else:
    with warnings.catch_warnings():  # `copy` is a method of pydantic's, too, which nobody calls
        warnings.simplefilter("ignore", UserWarning)
        PluginSpec = create_model(  # `with` is no name that a class could write down
            "PluginSpec",
            __base__=_Plugin,
            __doc__=_Plugin.__doc__,
            **{
                "with": (_Files, Field(default=(), description="files that it opens")),
                "copy": (bool, Field(default=False, description="whether a run has copies")),
            },
        )


Plugins = Annotated[
    tuple[Annotated[PluginSpec, short_for("file", PluginSpec)], ...],
    BeforeValidator(_wrap_in_list, json_schema_input_type=list[str | PluginSpec] | str),
]
"""Python files that register parts; see `simfed.scenario.load.import_plugins`."""


def _spell_out(plugin: PluginSpec) -> PluginSpec:
    """The plug-in with all files that it is known to open, their digests, and its folder."""
    named = {opened.file: opened for opened in opened_files(plugin)}
    # of a copy of the plug-in, files have copies as well: this process opened them elsewhere
    copied = {(Path(path).name, compute_file_sha256(path)) for path in named}
    opened_besides = [
        path
        for path in list_opened(compute_file_digest(plugin.file))
        if (Path(path).name, compute_file_sha256(path)) not in copied
    ]
    files = tuple(
        OpenedFile(file=path, sha256=compute_file_sha256(path))
        for path in (*named, *opened_besides)
    )
    if not files:
        return plugin
    place = None if has_copies(plugin) else plugin.place or str(Path(plugin.file).parent)
    return plugin.model_copy(update={"with": files, "place": place})


def add_opened_files(scenario: S) -> S:
    """The scenario, with all files that its plug-ins are known to open by now."""
    plugins: tuple[PluginSpec, ...] = getattr(scenario, "plugins", ())
    if not plugins:
        return scenario
    return scenario.model_copy(update={"plugins": tuple(map(_spell_out, plugins))})


def files_below(plugin: PluginSpec) -> list[str]:
    """The files a plug-in opens that lie in its folder or below."""
    folder = Path(plugin.file).parent
    return [one.file for one in opened_files(plugin) if Path(one.file).is_relative_to(folder)]


def has_copies(plugin: PluginSpec) -> bool:
    """Whether a run keeps copies of the files in its folder."""
    return vars(plugin)["copy"] is True


def opened_files(plugin: PluginSpec) -> tuple[OpenedFile, ...]:
    """The files that the scenario names as opened by a plug-in."""
    files: tuple[OpenedFile, ...] = vars(plugin)["with"]
    return files


def check_opened(entry: Mapping[str, Plain], folder: Path, where: str) -> Iterator[Path]:
    """The files that somebody named in an entry of `plugins` beside its own.

    Raises: `InputError` for one that is missing, or has another content than the run began with.
    """
    for value in _wrap_in_list(entry.get("with")):
        name = value.get("file") if isinstance(value, Mapping) else value
        if not isinstance(name, str) or not name:
            continue  # left to validation
        path = folder / name
        if not isinstance(value, Mapping) or "sha256" not in value:
            yield path  # else it is a run's, which says where the file lay and what is in it
        if not path.is_file():
            hint = "put it back" if isinstance(value, Mapping) else None
            missing = make_missing_file_error(path)
            raise missing.changed(hint=missing.hint or hint).within(where)
        digest = value.get("sha256") if isinstance(value, Mapping) else None
        if digest is not None and compute_file_sha256(path) != digest:
            allowed = f"that of SHA-256 {str(digest)[:12]}…, which the run began with"
            where = f"{where}: {os.fspath(path)}"
            problem = f"another content, of SHA-256 {compute_file_sha256(path)[:12]}…"
            hint = "put the old content back, or begin a new run"
            raise InputError(allowed, where=where, problem=problem, hint=hint)
