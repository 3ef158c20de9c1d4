"""The closed list of what goes with `privacy`.

A part goes with it where its class declares so itself, and a key of the scenario where
`KEYS` has it. Whatever neither names is refused, so that what is new, or a user's own,
is no hole: no theorem is known to cover it. Declarations are not inherited, as a
subclass may do something else.

`list_uses` walks a scenario once; `find_uncovered` makes errors of what it finds, and
`simfed.tasks.privacy` asks the same list whether time decides who is merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from simfed.ground.errors import InputError, listed
from simfed.ground.registry import registry
from simfed.scenario import Scenario
from simfed.schema.options import OfKind
from simfed.schema.section import Section

Coverage = Literal["client", "sample", "untimed", "coins"]
"""A part's word in `privacy`. `client`, `sample`: the levels at which a theorem covers
it; `untimed`: it leaves to no clock who is merged; `coins`: every client is asked by a
coin of its own, all of one rate."""

ASKED = ("method", "policy", "codec", "selection", "availability", "rule", "attack")
"""The kinds of parts that are asked. Of the others, data sets and devices do not hang
on what is learned, and models are judged by what they send
(`simfed.experiment.checks.Checks.errors`)."""

_BOTH: tuple[Coverage, ...] = ("client", "sample")

_UNTIMED_KEYS = (
    "name seed rounds dataset.name dataset.file dataset.table dataset.folder "
    "dataset.leaf dataset.torchvision dataset.huggingface dataset.root dataset.target "
    "dataset.owner dataset.features dataset.test dataset.pixels dataset.task "
    "dataset.partition prototypes client_order clients.count clients.prototype "
    "clients.device clients.link clients.k clients.devices clients.failure "
    "clients.attack.from clients.overlap.chunks training.batch_size "
    "training.learning_rate training.local_steps training.local_epochs "
    "training.optimizer training.momentum training.weight_decay training.clip_norm "
    "training.schedule compression network participation.clients_per_round server "
    "charge downlink evaluation faults.stalls faults.freezes faults.messages privacy "
    "checkpoint plugins"
)
_TIMED_KEYS = (
    "aggregation.mode=deadline aggregation.mode=first aggregation.mode=buffered "
    "aggregation.mode=asynchronous aggregation.deadline aggregation.over_selection "
    "aggregation.late aggregation.buffer aggregation.concurrency aggregation.staleness "
    "clients.availability.trace clients.availability.period "
    "clients.availability.devices "
    "clients.availability.markov clients.availability.daily faults.restarts"
)
KEYS: dict[str, tuple[Coverage, ...]] = {
    **dict.fromkeys(_UNTIMED_KEYS.split(), (*_BOTH, "untimed")),
    **dict.fromkeys(_TIMED_KEYS.split(), _BOTH),
    # at level sample the account counts the steps of `training`
    **dict.fromkeys(
        ("clients.local_epochs", "clients.local_time"), ("client", "untimed")
    ),
}
"""Key of a scenario (with `=`: that value of it) → what it goes with where it is not
the default; what is below it goes with the same."""


class Use(NamedTuple):
    """A part or a key that a scenario uses, and the levels at which it is covered.

    Made by `list_uses`. A key that is at its default is no use of it.
    """

    where: str
    kind: str
    """The registry of a part; empty: a key."""
    got: object
    coverage: tuple[Coverage, ...]


def find_coverage(kind: str, name: str) -> tuple[Coverage, ...]:
    """Return what the class of a registered part declares; nothing without one.

    Args:
        kind: the part's registry: `method`, `codec`, ….
        name: its name there, built in or of a user's own.

    Returns:
        The words of `privacy` in the class's own body; those of a base class do not
        count.
    """
    part = registry(kind).get(name)
    return tuple(getattr(part, "__dict__", {}).get("privacy", ()))


def list_uses(scenario: Scenario) -> Iterator[Use]:
    """Yield every part that `privacy` asks, and every key that is not its default.

    Codecs come last, once for each arm of each group, as they stand in strategies'
    names and not in sections.
    """
    yield from _list_uses_in(scenario, "", "")
    for i, group in enumerate(scenario.clients):
        for choice in scenario.arms_of_group(group):
            for name in choice.names:
                if name in registry("codec"):
                    coverage = find_coverage("codec", name)
                    yield Use(scenario.policy_key(i), "codec", name, coverage)


def find_uncovered(scenario: Scenario, level: Coverage) -> Iterator[InputError]:
    """Yield an error for whatever is not covered at this level of privacy.

    Args:
        scenario: the whole of it is looked at.
        level: `client` or `sample`, as in the scenario's `privacy.level`.

    Yields:
        One error for each use, with the key, what stands there, and for parts the names
        of those that would do. `policy` at the top is passed over where every group has
        a policy of its own.
    """
    every_group = all(group.policy is not None for group in scenario.clients)
    for where, kind, got, coverage in dict.fromkeys(list_uses(scenario)):
        if level in coverage or (where == "policy" and every_group):
            continue
        if not kind:
            yield InputError(
                "the default under privacy",
                where=where,
                got=got,
                problem=f"no theorem is known to cover {where} at level {level}",
            )
            continue
        names = [
            name
            for name in registry(kind).names()
            if level in find_coverage(kind, name)
        ]
        yield InputError(
            f"a {kind} whose class declares `privacy`: {listed(names)}",
            where=where,
            got=got,
            problem=f"no theorem is known to cover {kind} {got!r} at level {level}",
            hint=f'of your own: privacy = ("{level}",), as its page says'
            if got in registry(kind).list_foreign_parts()
            else None,
        )


def _list_uses_in(section: Section, key: str, where: str) -> Iterator[Use]:
    """Yield the uses in a section and those below it.

    Args:
        section: a part of the validated scenario.
        key: its place in the words of `KEYS`, without places in lists: `clients.`.
        where: its place as a file has it: `clients[0].`.
    """
    if isinstance(section, OfKind) and getattr(section, "arms_from", None) is None:
        kind = section.registry_kind
        yield Use(
            where.rstrip("."), kind, section.kind, find_coverage(kind, section.kind)
        )
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        default = field.get_default(call_default_factory=True)
        inner, place = f"{key}{name}", f"{where}{name}"
        coverage = KEYS.get(inner, KEYS.get(f"{inner}={value}"))
        parts_below = any(one.startswith(f"{inner}.") for one in KEYS)
        if isinstance(value, OfKind) or (isinstance(value, Section) and parts_below):
            yield from _list_uses_in(value, f"{inner}.", f"{place}.")
        elif value is None or value == default or name == "kind":
            continue
        elif coverage is not None:
            yield Use(place, "", str(value), coverage)
        elif isinstance(value, tuple) and isinstance(value[0], Section):
            for i, one in enumerate(value):
                yield from _list_uses_in(one, f"{inner}.", f"{place}[{i}].")
        else:
            yield Use(place, "", str(value), ())
