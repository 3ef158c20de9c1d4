"""What policies choose from: strategies, each with the levels that it can be played at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simfed.compress.codec import codec_from_spec
from simfed.levels import Level, arm_of, split_arm

__all__ = ["arms_of", "recorded_arms", "shown_arms"]


def arms_of(strategies: Sequence[str], levels: Sequence[Level] = ()) -> tuple[str, ...]:
    """The arms: each strategy that goes by K and names no level, with each of `levels`.

    >>> arms_of(["top-k", "qsgd(16)", "random-k@2%"], [500, 1000])
    ('top-k@500', 'top-k@1000', 'qsgd(16)', 'random-k@2%')
    """
    found: list[str] = []
    for strategy in strategies:
        codec, level = split_arm(strategy)
        if levels and level is None and codec_from_spec(codec).takes_k:
            found += [arm_of(codec, one) for one in levels]
        else:
            found.append(strategy)
    return tuple(dict.fromkeys(found))


def recorded_arms(scenario: Mapping[str, Any]) -> tuple[str, ...]:
    """What a scenario, as a run keeps it, lets policies choose from."""
    compression = scenario.get("compression") or {}
    strategies = list(map(str, compression.get("strategies") or ()))
    return arms_of(strategies, compression.get("k_choices") or ())


def shown_arms(arms: Sequence[str], *, factored: bool) -> tuple[str, ...]:
    """Of what a bandit has values: of the arms, or of codecs and levels apart (`@500`).

    >>> shown_arms(["top-k@500", "dense"], factored=True)
    ('top-k', 'dense', '@500')
    """
    if not factored:
        return tuple(arms)
    pairs = list(map(split_arm, arms))
    levels = [arm_of("", level) for _, level in pairs if level is not None]
    return tuple(dict.fromkeys([*(codec for codec, _ in pairs), *levels]))
