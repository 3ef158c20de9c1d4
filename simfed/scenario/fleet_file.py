"""Fleet files: the world around an app that brings its own learning.

It is a scenario without its learning part: clients with devices, links and
availability, the network between them, what goes wrong, and how the time of foreign
code is charged. A whole scenario may stand in its place; then its learning part is
passed over.

`load_fleet` reads one, `simfed.flower` plays an app in it; `Computing` says what the
app's own code costs there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from simfed.fleet.world import Group, ServerSpec, WorldSpec
from simfed.ground.arithmetic import read_arithmetic
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.registry import Only
from simfed.scenario.load import Overrides, apply_overrides, read_yaml
from simfed.scenario.model import Scenario
from simfed.schema.fields import FoundFile, Positive
from simfed.schema.section import Section
from simfed.schema.sentences import validate_as

APP: Literal["app"] = "app"
"""The one prototype of a run whose learning is not simfed's."""


def _read_expression(value: Any) -> Any:
    """Return arithmetic, text with a unit of time or a number of seconds, as text.

    Raises:
        InputError: none of these, or less than 0 seconds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError("seconds, or arithmetic over metrics", got=value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError("a finite number", got=value)
    arithmetic = read_arithmetic(str(value))
    if not arithmetic.names and arithmetic({}) < 0:
        raise InputError("at least 0 seconds", got=value)
    return str(value)


Expression = Annotated[
    str,
    BeforeValidator(_read_expression, json_schema_input_type=str | float),
    Field(examples=["0.02 * num_examples"]),
]


Expressions = Annotated[
    # the brackets keep a tag out of the key paths in error messages
    Annotated[Expression, Tag("one[]")]
    | Annotated[dict[str, Expression], Tag("each[]")],
    Discriminator(lambda value: "each[]" if isinstance(value, Mapping) else "one[]"),
]


class Computing(Section):
    """The price of foreign code's time.

    `metered`: its forward and backward passes are counted as they happen and priced by
    the device profile's laws. `work`: by the laws of a file that `simfed flower
    measure` wrote. `declared`: by arithmetic over what a reply says. `measured`: as
    long as it took on this machine, so that no two runs are equal.

    `simfed.flower` reads it, for nodes and for the server apart. What it leaves out:
    waiting for disks and for other programs costs nothing but in `measured` seconds.
    """

    short = "kind"

    kind: Literal["metered", "work", "declared", "measured"] = Field(
        default="metered",
        description="counted work, measured laws, arithmetic over metrics, or host "
        "seconds",
    )
    file: Annotated[FoundFile | None, Only("kind", "work", "metered")] = Field(
        default=None,
        description="that `simfed flower measure` wrote; of metered computing the "
        "level is that of its messages",
    )
    start: Annotated[Literal["never", "once", "per message"], Only("kind", "work")] = (
        Field(
            default="per message",
            description="when a node's start is charged (imports, the extra of a first "
            "message): a SuperNode starts a process for each message",
        )
    )
    seconds: Annotated[Expressions | None, Only("kind", "declared", needed=True)] = (
        Field(
            default=None,
            description="on a device of speed 1: a number or arithmetic over the "
            "reply's metrics, for all messages or per type, action or "
            "stage; `default` for the others",
        )
    )
    speed: Annotated[Positive, Only("kind", "measured")] = Field(
        default=1.0,
        description="of this machine: measured seconds are multiplied by it",
    )

    @model_validator(mode="after")
    def _check_file(self) -> Computing:
        """Refuse computing by laws without the file that has them.

        Raises:
            InputError: kind `work` and no `file`.
        """
        if self.kind == "work" and self.file is None:
            raise InputError(problem="the key 'file' is missing beside kind work")
        return self


def _check_setting(value: Any) -> Any:
    """Return a setting of an app's configuration.

    Raises:
        InputError: a list, a mapping or null, of which apps know nothing.
    """
    if not isinstance(value, (str, bool, int, float)):
        raise InputError("a text, a number, true or false", got=value)
    return value


Setting = Annotated[
    Plain, BeforeValidator(_check_setting, json_schema_input_type=str | bool | float)
]


_OF_LEARNING = ("k", "policy", "overlap", "attack")
"""Keys of groups that say what learning sends."""


class FleetGroup(Group):
    """`count` nodes that are alike, each of which runs the app.

    It has a client group's devices, links and availability, and none of its keys about
    learning.
    """

    prototype: Literal["app"] = Field(default=APP, description="nodes run the app")
    node_config: dict[str, Setting] = Field(
        default={},
        description="what the app finds in `context.node_config`; in texts `{node}` is "
        "the node's "
        "number in the fleet and `{nth}` that in its group, both from 0",
        examples=[{"data-path": "shards/{node}.csv"}],
    )

    def config_of(self, node: int, nth: int) -> dict[str, Plain]:
        """Return the settings of one node, with its numbers written into texts.

        Args:
            node: its number in the fleet, from 0; stands for `{node}`.
            nth: its number in this group, from 0; stands for `{nth}`.
        """
        return {
            key: value.replace("{node}", str(node)).replace("{nth}", str(nth))
            if isinstance(value, str)
            else value
            for key, value in self.node_config.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _refuse_learning(cls, value: Any) -> Any:
        """Return the group as written, without keys about learning that say nothing.

        Raises:
            InputError: one of them says something.
        """
        if not isinstance(value, Mapping):
            return value
        for key in _OF_LEARNING:
            if value.get(key) is not None:
                problem = f"no {key} in a fleet for an app, which decides what it sends"
                raise InputError(where=key, problem=problem)
        return {key: value[key] for key in value if key not in _OF_LEARNING}


class FleetServer(ServerSpec):
    """The server's processor, and how the app's work on it is charged.

    With neither, the server's work takes no simulated time.
    """

    computing: Computing | None = Field(
        default=None,
        description="of the server's own work, such as aggregation; null: metered "
        "with a device, else it takes no time",
    )

    @model_validator(mode="after")
    def _check_device(self) -> FleetServer:
        """Refuse a price of the server's work that cannot be known.

        Raises:
            InputError: laws of messages, of which the server has none; metered work
                without a device.
        """
        computing = self.computing
        if computing is not None and computing.file is not None:
            raise InputError(
                "no file: only nodes' messages have laws",
                where="computing.file",
                got=computing.file,
            )
        if computing is not None and computing.kind == "metered" and not self.device:
            allowed = "a device beside metered computing, by whose laws it is priced"
            raise InputError(allowed, where="device")
        return self

    @property
    def charged(self) -> Computing | None:
        """The price of the server's work; None: it takes no time."""
        if self.computing is None and self.device is not None:
            return Computing()
        return self.computing


class AppMetrics(Section):
    """The names under which the app's metrics say what runs show.

    Where one is omitted, the first metric whose name has the word in it is taken.
    """

    accuracy: str | None = Field(
        default=None, description="the first with `acc` in it if omitted"
    )
    loss: str | None = Field(
        default=None, description="the first with `loss` in it if omitted"
    )
    weight: str = Field(
        default="num-examples", description="what means over nodes are weighted by"
    )


class App(Section):
    """The app itself, for files that say all of a run: the base of a study.

    `simfed flower run` names the folder in the command instead.
    """

    short = "folder"

    folder: FoundFile = Field(
        description="of the Flower app, with its `pyproject.toml`"
    )
    run_config: dict[str, Setting] = Field(
        default={}, description="in place of the app's own configuration, key by key"
    )


class FleetFile(WorldSpec):
    """A validated, frozen world for an app; `load_fleet` makes it.

    It is to an app what a `Scenario` is to simfed's own learning: with its seed and a
    deterministic app it determines a run. Not in it: what the app learns, sends and
    evaluates.
    """

    written_in = (
        "name",
        "seed",
        "client_order",
        "clients",
        "computing",
        "network",
        "server",
        "faults",
        "metrics",
        "app",
    )

    clients: tuple[FleetGroup, ...] = Field(description="groups of equal nodes")
    computing: Computing | None = Field(
        default=None,
        description="how the time of the app's work on nodes is charged; null: by the "
        "work file in the app's folder, else metered",
    )
    server: FleetServer = Field(
        default=FleetServer(), description="the server's own time"
    )
    metrics: AppMetrics = Field(
        default=AppMetrics(), description="which of the app's are shown"
    )
    app: App | None = Field(
        default=None, description="what runs in a study; null: the command says it"
    )

    @property
    def charged(self) -> Computing:
        """The price of nodes' work; metered where nothing is said."""
        return Computing() if self.computing is None else self.computing

    def charged_by(self, work_file: Path) -> FleetFile:
        """Return this fleet with nodes' work charged by a work file.

        Args:
            work_file: that `simfed flower measure` wrote. When a node's start is
                charged stays as it is.
        """
        computing = Computing(kind="work", file=str(work_file.resolve()))
        if self.computing is not None:
            computing = computing.model_copy(update={"start": self.computing.start})
        return self.model_copy(update={"computing": computing})

    @model_validator(mode="after")
    def _check_together(self) -> FleetFile:
        """Refuse restarts of the server, whose app cannot be taken back.

        Raises:
            InputError: `faults.restarts` is given.
        """
        if self.faults is not None and self.faults.restarts is not None:
            allowed = "no restarts: an app cannot be taken back to where it was"
            raise InputError(allowed, where="faults.restarts")
        return self


def load_fleet(path: str | Path, overrides: Overrides = ()) -> FleetFile:
    """Read, extend, override and validate a fleet file, or a scenario as one.

    Args:
        path: the YAML file; relative paths in it start at its folder.
        overrides: key path → value, of keys of whichever of the two it is.

    Raises:
        InputError: the file cannot be read, or its learning part cannot be passed over.
        InputErrors: one sentence for each thing that is wrong.
    """
    path = Path(path)
    data = read_yaml(path)
    data = apply_overrides(
        data, overrides, Scenario if _has_learning(data) else FleetFile
    )
    return validate_fleet(data, source=str(path), folder=path.parent)


def validate_fleet(
    data: Mapping[str, Plain], *, source: str, folder: Path
) -> FleetFile:
    """Return a fleet from a mapping, which may be a whole scenario's.

    A scenario is validated as one first, so that no error of it goes by unseen.

    Args:
        data: plain values, as a file has them.
        source: how errors name it.
        folder: where its relative paths start.

    Raises:
        InputError: a scenario with privacy or edge servers, which decide what is sent.
        InputErrors: one sentence for each thing that is wrong.
    """
    if _has_learning(data):
        scenario = validate_as(Scenario, data, source=source, folder=folder)
        asked = {
            "privacy": scenario.privacy,
            "aggregation.edge_servers": scenario.aggregation.edge_servers,
        }
        for key in (key for key, value in asked.items() if value is not None):
            problem = (
                f"no {key} in a fleet for an app, which decides what it sends, "
                f"and to whom"
            )
            raise InputError(where=f"{source}: {key}", problem=problem)
        data = _drop_learning(data)
    return validate_as(FleetFile, data, source=source, folder=folder)


def _has_learning(data: Mapping[str, Plain]) -> bool:
    """Return whether a file's keys are those of a whole scenario."""
    return "dataset" in data or "prototypes" in data


_OF_THE_WORLD = ("name", "seed", "client_order", "network", "faults")


def _drop_learning(data: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a scenario's world as written: groups, network, faults, the server."""
    world = {key: data[key] for key in _OF_THE_WORLD if key in data}
    dropped = {"prototype", "k", "policy"}
    groups = [
        {key: group[key] for key in group if key not in dropped}
        for group in data["clients"]
    ]
    device = (data.get("server") or {}).get("device")
    return {**world, "clients": groups, "server": {"device": device}}
