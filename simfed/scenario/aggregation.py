"""The keys of a server mode: when a server merges, and what becomes of who is late.

`Aggregation` is the cloud server's section, `EdgeServers` that of servers between it
and the clients; both share the modes of `_Mode`. `simfed.sim.modes` plays what they
say.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simfed.device.spec import FixedDevice
from simfed.fleet.faults import StrikeSpec
from simfed.ground.errors import InputError
from simfed.ground.registry import Only
from simfed.schema.fields import (
    Int,
    Named,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveInt,
)
from simfed.schema.options import OfKind
from simfed.schema.section import OnlyWith, Section


class RuleChoice(OfKind):
    """The server's rule against hostile uploads: a kind, with its options beside it.

    `{krum: 2}` is `{kind: krum, f: 2}`. The rule stands in for the mean of a method
    that averages; `mean` is that mean itself.
    """

    registry_kind: ClassVar[str] = "rule"
    short = "kind"
    names_first_option = True

    kind: Annotated[str, Named("rule")] = Field(
        default="mean", description="see `simfed list rules`"
    )


_MEAN = RuleChoice.model_validate({})


class Staleness(Section):
    """The weight of an upload that began `a` merges ago.

    `constant`: 1; `polynomial`: (1 + a)^(−exponent); `hinge`: 1 up to `after`, then
    1/(slope·(a − after) + 1). Beyond `bound` it is dropped.
    """

    kind: Literal["constant", "polynomial", "hinge"] = Field(
        default="polynomial", description="how the weight falls with staleness"
    )
    exponent: Annotated[NonNegative, Only("kind", "polynomial")] = Field(
        default=0.5, description="how fast it falls"
    )
    after: Annotated[Int, Only("kind", "hinge")] = Field(
        default=4, description="merges up to which nothing is lost"
    )
    slope: Annotated[Positive, Only("kind", "hinge")] = Field(
        default=0.5, description="how fast it falls then"
    )
    bound: Int | None = Field(
        default=None, description="merges beyond which an upload is dropped"
    )


_DEFAULTS: dict[str, dict[str, Any]] = {
    "deadline": {"late": "drop"},
    "first": {"late": "drop", "over_selection": 0.3},
    "buffered": {"staleness": {}},
    "asynchronous": {"staleness": {}},
}


class _Mode(Section):
    """The instant of a node's merges, and the fate of late uploads.

    The base of the cloud's section and of the edge servers'. Which keys belong to which
    mode is said by their `Only` marks; what a mode needs beside its name is filled in.
    """

    mode: Literal["synchronous", "deadline", "first", "buffered", "asynchronous"] = (
        Field(default="synchronous", description="when the server merges")
    )
    deadline: Annotated[
        PositiveDuration | None, Only("mode", "deadline", needed=True)
    ] = Field(default=None, description="after the start of a round")
    over_selection: Annotated[NonNegative | None, Only("mode", "first")] = Field(
        default=None, description="share of clients asked beyond those waited for; 0.3"
    )
    late: Annotated[
        Literal["drop", "merge"] | None, Only("mode", "deadline", "first")
    ] = Field(
        default=None, description="cut off (the default), or go on and be merged later"
    )
    buffer: Annotated[PositiveInt | None, Only("mode", "buffered", needed=True)] = (
        Field(default=None, description="arrivals that make a merge")
    )
    concurrency: Annotated[
        PositiveInt | None, Only("mode", "buffered", "asynchronous", needed=True)
    ] = Field(default=None, description="clients kept in flight")
    staleness: Annotated[
        Staleness | None, Only("mode", "deadline", "first", "buffered", "asynchronous")
    ] = Field(
        default=None,
        description="what late uploads count; polynomial where clients are kept in "
        "flight, constant beside methods that weigh late uploads "
        "themselves (fedbuff, fedasync; these with bound 16), and where "
        "each is merged alone and counts in full",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, value: Any) -> Any:
        """Return the section as written, with the defaults of its mode (`_DEFAULTS`).

        A key that is null counts as not written.
        """
        if not isinstance(value, dict):
            return value
        mode = value.get("mode", "synchronous")
        defaults = _DEFAULTS.get(mode, {}) if isinstance(mode, str) else {}
        missing = {key: defaults[key] for key in defaults if value.get(key) is None}
        return {**value, **missing}

    @model_validator(mode="after")
    def _check_staleness(self) -> _Mode:
        """Refuse weights for late uploads where late uploads are dropped.

        Raises:
            InputError: `staleness` stands beside `late: drop`.
        """
        if self.staleness is not None and self.late == "drop":
            raise InputError(
                where="staleness",
                problem=f"mode {self.mode} drops who is late, so nothing weighs late "
                f"uploads",
                hint="late: merge",
            )
        return self

    @property
    def latest(self) -> int | None:
        """The most merges that an upload may come late and still be merged.

        0 where whoever is late is cut off, None where any number may pass.
        """
        if self.concurrency is None and self.late != "merge":
            return 0
        return None if self.staleness is None else self.staleness.bound

    @property
    def merges_alone(self) -> bool:
        """True if each merge has one upload.

        That is mode asynchronous, and buffered with a buffer of 1.
        """
        return self.concurrency is not None and (self.buffer or 1) == 1


class EdgeServers(_Mode):
    """Servers between the clients and the cloud, at every node of a tier.

    Each merges what its own clients send, `merges` times, and sends the cloud what that
    changed.

    The modes are the cloud's own, each counted at one edge server;
    `participation.clients_per_round` and `concurrency` are of each of them.
    """

    at: str = Field(description="the tier of `network.tiers` whose nodes they are")
    merges: PositiveInt = Field(
        default=1,
        description="of its own that each makes before it sends the cloud anything",
    )
    device: FixedDevice | None = Field(
        default=None, description="of each; null: their work takes no time"
    )
    restarts: StrikeSpec | None = Field(
        default=None, description="each loses what it got since its last merge"
    )


class Aggregation(_Mode):
    """The instant of the server's merges, and the fate of late uploads.

    `synchronous`: when everybody who takes part has ended. `deadline`: at the latest so
    long after the start. `first`: when `clients_per_round` of (1 + over_selection)
    times as many have arrived. `buffered`: `concurrency` clients are kept in flight,
    and `buffer` arrivals are merged. `asynchronous`: the same with every arrival. With
    `edge_servers`, these take the clients' place.
    """

    rule: Annotated[RuleChoice, OnlyWith("method", "averages", nothing=_MEAN)] = Field(
        default=_MEAN, description="what stands for the mean of uploads, see robustness"
    )
    edge_servers: Annotated[EdgeServers | None, OnlyWith("method", "two_levels")] = (
        Field(
            default=None,
            description="servers of a tier of the network, between clients "
            "and this one",
        )
    )
