"""Builds a policy from the kind and the options that a scenario gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from simfed.compress.choice import Choice
from simfed.ground.errors import InputError
from simfed.ground.plain import Plain
from simfed.ground.registry import registry
from simfed.policy.base import Policy
from simfed.policy.factored import Factored


def build_policy(
    kind: str,
    arms: Sequence[Choice | str],
    *,
    reward_range: tuple[float, float] = (-1.0, 1.0),
    options: Mapping[str, Plain] | None = None,
    factored: bool = False,
) -> Policy:
    """Return a new policy for one client.

    Args:
        kind: a name in the registry of policies.
        arms: choices or their labels.
        reward_range: the least and the largest reward, to which rewards are clipped.
        options: keywords of the policy's constructor.
        factored: use two policies of the kind, one for codecs and one for levels; see
            `Factored`.

    Where many clients are alike, `prepare_policies` looks all that up once.

    Raises:
        InputError: a name that nobody registered, or options that the constructor
            refuses.

    >>> build_policy("uniform", ("top-k",), options={"strategy": "top-k"}).arms
    (Choice('top-k'),)
    >>> build_policy("ucb", ("top-k",), options={"discount": -1})
    Traceback (most recent call last):
    ...
    simfed.ground.errors.InputError: discount: got -1, expected a number above 0,
    up to 1
    """
    return prepare_policies(
        kind, arms, reward_range=reward_range, options=options, factored=factored
    )()


def prepare_policies(
    kind: str,
    arms: Sequence[Choice | str],
    *,
    reward_range: tuple[float, float] = (-1.0, 1.0),
    options: Mapping[str, Plain] | None = None,
    factored: bool = False,
) -> Callable[[], Policy]:
    """Return a function that makes one policy after another.

    Args:
        kind: a registered policy.
        arms: what it chooses from.
        reward_range: bounds between which rewards are clipped.
        options: keywords of its constructor.
        factored: strategy and level are chosen by one policy each.

    Raises:
        InputError: an unknown kind.
    """
    cls, keywords = registry("policy").get(kind), dict(options or {})

    def make(arms: Sequence[Choice]) -> Policy:
        try:
            policy: Policy = cls(arms, reward_range=reward_range, **keywords)
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            problem = f"policy {kind} does not take these options: {error}"
            raise InputError(problem=problem) from error
        return policy

    choices = tuple(map(Choice.of, arms))
    return partial(Factored, choices, make) if factored else partial(make, choices)
