"""The contract of policies: pulls and values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, cast

from simfed.compress.choice import Choice
from simfed.ground.levels import Level
from simfed.ground.seeding import Streams
from simfed.policy import CHOICES, Context, Policy, Pull, Spent, reads_context, watches
from simfed.testing.common import no_global_randomness, require

# a prime, so that no counter shared between objects comes round to where it was
_PULLS = 61
_CHOICES = tuple(map(Choice, ("top-k", "random-k", "periodic-k")))


def check_policy(cls: Callable[..., Policy], **options: object) -> None:
    """Check a policy class, made as `cls(arms, reward_range=…, **options)`.

    - pulls are `Pull`s of its arms with a probability in (0, 1], and a level where they
      set K, from the generator given to `pull` and nothing else: no global randomness,
      nothing shared between two clients' objects;
    - `values` has a number per arm; reading it changes nothing;
    - rewards may come late or not at all (`void`); forced pulls are worth nothing;
    - with `learns = False`, rewards make no difference;
    - with `watches_time`, what participations took is told to `watch`;
    - with `reads_context`, `pull` gets a `Context`, in which a rate may be unknown.

    It plays a few stories of 61 pulls each; how well it chooses is not judged.

    Args:
        cls: the class, or a function that makes an object of it.
        options: keywords with which it is made.

    Raises:
        AssertionError: at the first clause that it breaks, in one sentence.
    """

    def make() -> Policy:
        return cls(_CHOICES, reward_range=(-1.0, 1.0), **options)

    with no_global_randomness():
        policy = make()
        require(isinstance(policy.learns, bool), "a bool `learns`")
        require(set(_CHOICES) <= set(policy.arms), "the arms it was given in `arms`")
        story = _play_story(make())
        require(
            _play_story(make()) == story,
            "the same pulls from the same generators and rewards",
        )
        one, other = make(), make()
        _play_story(other, client=1)
        require(
            _play_story(one) == story, "nothing shared between two clients' objects"
        )
        require(_play_story(make(), watched=True) == story, "values to change nothing")
        if not policy.learns:
            require(
                _play_story(make(), paid=False) == story,
                "rewards to make no difference",
            )
        _check_forced_pulls(make())


def _play_story(
    policy: Policy, *, client: int = 0, watched: bool = False, paid: bool = True
) -> list[Pull]:
    """Return the pulls of one client's story, some paid late and some never.

    Args:
        policy: a new one.
        client: whose generators it gets.
        watched: True: its values are read before each pull.
        paid: False: every reward is 0.
    """
    streams = Streams(0)
    pulls: list[Pull] = []
    for round in range(_PULLS):
        if watched:
            policy.values()
        _check_values(policy)
        pull = _pull(policy, streams, client, round)
        _check_pull(policy, pull)
        if watches(policy) and round % 7 != 3:
            policy.watch(
                pull,
                Spent(*streams("spent", client, round).exponential(1.0, 5).tolist()),
            )
        if round % 7 == 3:
            policy.void(pull)
        elif round % 7 != 4:
            late = round % 7 == 5
            for earned in ([pulls[-1]] if late else []) + [pull]:
                reward = streams("reward", earned.arm.label, round).uniform(-1, 1)
                policy.update(earned, reward if paid else 0.0)
        pulls.append(pull)
    return pulls


def _pull(policy: Policy, streams: Streams, client: int, round: int) -> Pull:
    """Return a policy's next pull, with a context where it reads one."""
    rng = streams("policy", client, round)
    if not reads_context(policy):
        return policy.pull(rng)
    battery, rate = streams("context", client, round).random(2).tolist()
    context = Context(round + 1, _PULLS, battery, 1e6 * rate if round else None)
    pull: Pull = cast(Any, policy).pull(rng, context)
    return pull


def _check_values(policy: Policy) -> None:
    """Check that there is a value for each arm, none of them infinite."""
    values = policy.values()
    sized = len(values) == len(policy.arms)
    require(
        sized and not any(map(math.isinf, values)),
        "a number, or NaN, per arm in `values`",
    )


def _check_pull(policy: Policy, pull: Pull) -> None:
    """Check that a pull is one that the policy may make."""
    require(isinstance(pull, Pull), f"a Pull, got {pull!r}")
    require(pull.arm in policy.arms, f"one of its arms, got {pull.arm!r}")
    free = set(CHOICES) - {"forced"}
    require(pull.choice in free, f"a choice of {sorted(free)}, got {pull.choice!r}")
    require(
        0 < pull.probability <= 1,
        f"a probability above 0, up to 1, got {pull.probability!r}",
    )
    if pull.k is not None:
        Level.read(pull.k)


def _check_forced_pulls(policy: Policy) -> None:
    """Check that pulls that the server forced teach a policy nothing."""
    _play_story(policy)
    twin, values = copy.deepcopy(policy), repr(policy.values())
    policy.update(Pull(_CHOICES[0], "forced"), 1.0)
    require(repr(policy.values()) == values, "forced pulls to update nothing")
    pulls = (_pull(one, Streams(1), 0, 0) for one in (policy, twin))
    require(next(pulls) == next(pulls), "forced pulls to update nothing")
    policy.void(Pull(_CHOICES[0], "forced"))
    same = repr(policy.values()) == repr(twin.values())
    require(same, "forced pulls to leave the values alone")
