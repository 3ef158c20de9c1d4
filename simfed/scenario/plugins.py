"""The part of a scenario that names code."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from simfed.ground.plain import Plain
from simfed.schema.fields import FoundFile
from simfed.schema.section import Section


class PluginSpec(Section):
    """A Python file, or a folder that is a package, that registers parts.

    A run keeps a copy of it.
    """

    short = "file"

    file: FoundFile = Field(
        description="of Python code, or a folder with `__init__.py`"
    )
    origin: str | None = Field(
        default=None,
        description="in a run: where it lay, and is run as long as its content is the "
        "same",
    )

    @model_serializer(mode="wrap")
    def _shorten_dump(self, dump: SerializerFunctionWrapHandler) -> Any:
        """Return its file alone where nothing else is said, else the section."""
        return self.file if self.origin is None else dump(self)


def _wrap_in_list(value: Plain) -> Plain:
    """Return one plug-in as a list of it, null as none, and a list as it is."""
    return () if value is None else [value] if isinstance(value, (str, dict)) else value


Plugins = Annotated[
    tuple[PluginSpec, ...],
    BeforeValidator(_wrap_in_list, json_schema_input_type=list[str | PluginSpec] | str),
]
"""Code that registers parts; see `simfed.scenario.load.import_plugins`."""
