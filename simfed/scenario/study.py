"""Study files: a base scenario, axes over its keys, seeds, and comparisons.

`Study` is the section of the whole file. It names the base and does not open it:
`simfed.study` makes the runs, each the base with the values of one point and a seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.vocabulary import RELEVANT_RATIO
from simfed.scenario.load import Overrides, apply_overrides, import_plugins, read_yaml
from simfed.scenario.plugins import Plugins
from simfed.schema.fields import File, Seed
from simfed.schema.quantity import Quantity
from simfed.schema.section import Section
from simfed.schema.sentences import validate_as


def _read_axis(value: Any) -> Any:
    """Return an axis's values as a tuple, or as a mapping of label → value.

    Raises:
        InputError: neither a list nor a mapping, or an empty one.
    """
    if not isinstance(value, (list, tuple, dict)):
        raise InputError("a list of values, or a mapping of label to value", got=value)
    if not value:
        raise InputError("at least one value", got=value)
    if isinstance(value, dict):
        return {str(label): inner for label, inner in value.items()}
    return tuple(value)


def _check_axes(value: Any) -> Any:
    """Return the axes of a study as its file has them, one at least.

    Raises:
        InputError: an empty mapping.
    """
    if isinstance(value, dict) and not value:
        raise InputError("at least one key path with its values", got=value)
    return value


def _read_points(value: Any) -> Any:
    """Return the points of a `list` as an axis's values.

    Raises:
        InputError: a point that is no mapping of key path to value.
    """
    value = _read_axis(value)
    for point in value.values() if isinstance(value, dict) else value:
        if not isinstance(point, dict) or not point:
            raise InputError("a mapping of key path to value in each entry", got=point)
    return value


def _read_label(value: Any) -> Any:
    """Return an axis's value as its label: a number is named by what it reads."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if isinstance(value, float) else str(value) if number else value


Values = tuple[Any, ...] | dict[str, Any]
Axis = Annotated[
    Values,
    BeforeValidator(_read_axis, json_schema_input_type=list[Any] | dict[str, Any]),
]
Axes = Annotated[dict[str, Axis], BeforeValidator(_check_axes)]
Points = Annotated[
    Values, BeforeValidator(_read_points, json_schema_input_type=list[Any])
]
Threshold = Annotated[
    float,
    Quantity(gt=0, said="an accuracy above 0 and below 1, or another measure above 0"),
]
Ratio = Annotated[float, Quantity(ge=1, said="a ratio of at least 1, such as 1.05")]
Confidence = Annotated[
    float, Quantity(gt=0, lt=1, said="a confidence above 0 and below 1")
]


class Compare(Section):
    """The axis of the rivals, and the values of the measure that tell them apart."""

    arms: str | None = Field(
        default=None,
        description="the axis whose values are compared: its key path, zip or list",
    )
    baseline: Annotated[str, BeforeValidator(_read_label)] | None = Field(
        default=None,
        description="label of the arm that all others are compared with; all pairs if "
        "omitted",
    )
    thresholds: tuple[Threshold, ...] = Field(
        default=(),
        description="mean test accuracies, RMSE or perplexities whose first time is "
        "compared",
    )
    confidence: Confidence = Field(default=0.95, description="of every interval")
    relevant_ratio: Ratio = Field(
        default=RELEVANT_RATIO,
        description="how many times sooner an arm must be for a verdict",
    )


class Study(Section):
    """Many runs of one base scenario: every combination of the axes, under every seed.

    `grid`: every combination of the values of its keys. `zip`: its keys step together.
    `list`: points written out, each a mapping of key path to value. Where several are
    given, every combination of them. A list of values may be a mapping instead, whose
    keys are the labels.
    """

    name: str
    base: File = Field(description="the scenario that every run starts from")
    set: dict[str, Plain] = Field(
        default={}, description="key path → value, the same in every run"
    )
    seeds: tuple[Seed, ...] | None = Field(
        default=None, description="the base scenario's own seed if omitted"
    )
    grid: Axes | None = None
    zip: Axes | None = None
    list: Points | None = None
    compare: Compare = Compare()
    plugins: Plugins = Field(
        default=(),
        description="Python files that register parts, beside those of the base",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Study:
        """Refuse seeds and zipped axes that do not fit together.

        Raises:
            InputError: no seed or one twice; zipped axes of several lengths, or with
                labels on any but the first.
        """
        if self.seeds is not None and (
            not self.seeds or len({*self.seeds}) != len(self.seeds)
        ):
            raise InputError(
                "at least one seed, each once", where="seeds", got=[*self.seeds]
            )
        lengths = {key: len(values) for key, values in (self.zip or {}).items()}
        if len({*lengths.values()}) > 1:
            raise InputError("as many values for every key", where="zip", got=lengths)
        if any(isinstance(values, dict) for values in [*(self.zip or {}).values()][1:]):
            problem = "another key has labels as well"
            raise InputError(
                "labels on the first key alone", where="zip", problem=problem
            )
        return self


def load_study_file(
    path: str | Path, overrides: Overrides = (), *, allow_plugins: bool = False
) -> Study:
    """Read and validate a study file; the base scenario is not opened.

    Args:
        path: the YAML file.
        overrides: key path → value, of keys of the study.
        allow_plugins: as of `simfed.load_scenario`.

    Raises:
        InputError: the file cannot be read or is not a mapping.
        InputErrors: one sentence for each thing that is wrong in it.
    """
    path = Path(path)
    data = read_yaml(path)
    if "clients" in data and "base" not in data:
        raise InputError(
            "a study", where=str(path), problem="this is a scenario", hint="simfed run"
        )
    data = apply_overrides(data, overrides, Study)
    source, folder = str(path), path.parent
    import_plugins(data, source=source, folder=folder, allow=allow_plugins)
    return validate_as(Study, data, source=source, folder=folder)
