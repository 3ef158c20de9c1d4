"""From a kind and its options, as a scenario gives them, to a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simfed.errors import InputError
from simfed.policy.base import Policy
from simfed.policy.factored import Factored
from simfed.registry import registry

__all__ = ["build_policy"]


def build_policy(
    kind: str,
    arms: Sequence[str],
    *,
    reward_range: tuple[float, float] = (-1.0, 1.0),
    options: Mapping[str, Any] | None = None,
    factored: bool = False,
) -> Policy:
    """A new policy for one client.

    `kind` is a name in the registry of policies; `options` are keywords of its constructor.
    `factored`: two of the kind, one for codecs and one for levels, see `Factored`.

    Raises:
        InputError: a name that nobody registered, or options that the constructor refuses.

    >>> build_policy("uniform", ("top-k",), options={"strategy": "top-k"}).arms
    ('top-k',)
    >>> build_policy("d-ucb", ("top-k",), options={"discount": -1})
    Traceback (most recent call last):
    ...
    simfed.errors.InputError: discount: a number above 0, up to 1, got -1
    """
    cls = registry("policy").get(kind)

    def make(arms: Sequence[str]) -> Policy:
        try:
            made: Policy = cls(tuple(arms), reward_range=reward_range, **(options or {}))
        except (TypeError, ValueError) as error:
            raise InputError(f"options that policy {kind} takes ({error})") from error
        return made

    return Factored(arms, make) if factored else make(arms)
