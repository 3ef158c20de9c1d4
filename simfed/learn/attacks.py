"""Attackers: clients that send what they should not.

An attack is a frozen dataclass of its options. It may poison what its client trains on,
change the update that the client sends, or agree on one with the other attackers of the
round. Everything else is an honest client's: work, bytes, compression and its residual,
running statistics. It sees what its client sees: the model that it was sent, its own
data, its own update. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, ClassVar

from typing_extensions import override

from simfed.ground.errors import InputError
from simfed.ground.seeding import Streams
from simfed.learn.facts import DatasetFacts
from simfed.learn.methods.options import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    SHARE,
    WHOLE_NOT_NEGATIVE,
    Ranged,
)
from simfed.scenario import Scenario

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from simfed.learn.federation import Federation


class Attack(Ranged):
    """One kind of attack, made from its options."""

    poisons: ClassVar[bool] = False
    """True if it changes what its client trains on (`poison`)."""
    colludes: ClassVar[bool] = False
    """True if it knows the updates of the round's other attackers of its kind
    (`agree`)."""
    marks: ClassVar[bool] = False
    """True if its success is measured on test images that it marks (`mark`, `target`,
    `size`)."""
    privacy: ClassVar[tuple[str, ...]] = ()
    """Levels of the scenario's `privacy` that a theorem covers with it, declared by its
    own class: `client` where it knows no other client, `sample` where it mixes no
    samples."""
    example: ClassVar[Mapping[str, float]] = {}
    """Options with which it is checked, where some are required."""

    def check(self, data: DatasetFacts) -> None:
        """Raise `InputError` for a data set that it cannot attack."""

    def poison(
        self,
        samples: Tensor,
        labels: Tensor,
        rng: torch.Generator,
        *,
        classes: int,
        brightest: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the samples and labels that its client trains on in place of its own.

        They are as many, (n, …) as they are stored; arguments are not changed.
        `brightest`: the largest stored value.
        """
        return samples, labels

    def craft(self, update: Tensor, rng: torch.Generator) -> Tensor:
        """Return the update that is sent in place of its own, (d,).

        Its own is not changed. An update points away from where training went: the
        server takes it away from the model.
        """
        return update

    def agree(self, updates: Tensor, participants: int) -> Tensor:
        """Return the updates that the attackers send, (d,) for all or a row each.

        They follow from the updates that they would have sent, (attackers, d) in the
        order of ids; `participants`: clients of their prototype in the round,
        themselves included.
        """
        return updates


def _require_classes(data: DatasetFacts) -> None:
    if data.task != "classification":
        allowed = "a data set of classes, whose labels can be changed"
        raise InputError(allowed, where="kind", got=data.task)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains on labels that are turned around: class c of C becomes C − 1 − c.

    Source: M. Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning", 2020.
    """

    poisons = True
    privacy = ("client", "sample")

    @override
    def check(self, data: DatasetFacts) -> None:
        _require_classes(data)

    @override
    def poison(
        self,
        samples: Tensor,
        labels: Tensor,
        rng: torch.Generator,
        *,
        classes: int,
        brightest: float,
    ) -> tuple[Tensor, Tensor]:
        return samples, classes - 1 - labels


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends its own update with the other sign, times `scale`."""

    scale: Annotated[float, ABOVE_ZERO, "how much longer than its own update"] = 1.0
    privacy = ("client", "sample")

    @override
    def craft(self, update: Tensor, rng: torch.Generator) -> Tensor:
        return -self.scale * update


@dataclass(frozen=True)
class Gaussian(Attack):
    """Sends noise in place of its update, `scale` times as long.

    Each entry is normal, of `scale` times the root mean square of the update's. Source:
    P. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", 2017, where the noise has a fixed variance.
    """

    scale: Annotated[float, ABOVE_ZERO, "how much longer than its own update"] = 10.0
    privacy = ("client", "sample")

    @override
    def craft(self, update: Tensor, rng: torch.Generator) -> Tensor:
        import torch

        noise = torch.randn(update.shape, generator=rng).to(update.device)
        return self.scale * update.square().mean().sqrt() * noise


@dataclass(frozen=True)
class Alie(Attack):
    """A little is enough: attackers send mean − z·deviation of their own updates.

    Mean and deviation are per coordinate.

    z, at least 0, is the largest with which the crafted value is nearer to the mean
    than those of so many honest clients that they and the attackers are a majority:
    with n participants and m attackers s = ⌊n/2 + 1⌋ − m of them, so that z is the
    standard normal quantile of (n − m − s)/(n − m). One attacker alone has no
    deviation, and sends its own update. Source: G. Baruch, M. Baruch and Y. Goldberg,
    "A Little Is Enough: Circumventing Defenses For Distributed Learning", 2019.
    """

    colludes = True

    z: Annotated[
        float | None,
        ABOVE_ZERO,
        "standard deviations; if omitted, from the numbers of clients",
    ] = None
    privacy = ("sample",)

    @override
    def agree(self, updates: Tensor, participants: int) -> Tensor:
        z = self.z
        if z is None:
            honest = participants - len(updates)
            share = (honest - (participants // 2 + 1 - len(updates))) / max(honest, 1)
            # with no supporters needed, or no honest client, nothing bounds it
            z = NormalDist().inv_cdf(min(max(share, 0.5), 1 - 1e-3))
        mean, deviation = updates.mean(0), updates.std(0, correction=0)
        return mean - z * deviation


@dataclass(frozen=True)
class Ipm(Attack):
    """Inner product manipulation: attackers send −`scale` times their mean update.

    Small scales hide among honest updates, large ones turn the server's mean around.
    Source: C. Xie, O. Koyejo and I. Gupta, "Fall of Empires: Breaking
    Byzantine-tolerant SGD by Inner Product Manipulation", 2019, whose attackers know
    the honest updates.
    """

    colludes = True

    scale: Annotated[float, ABOVE_ZERO, "ε"] = 0.5
    privacy = ("sample",)

    @override
    def agree(self, updates: Tensor, participants: int) -> Tensor:
        return -self.scale * updates.mean(0)


@dataclass(frozen=True)
class Backdoor(Attack):
    """Teaches the model to take images with a bright square for one class.

    A share of its images gets the square, in the lower right corner, and the label
    `target`; it trains on the others as they are, and sends its update times `scale`.
    Evaluations measure `attack_success`: of the test images of other classes, the share
    that is taken for the target once it has the square. Source: E. Bagdasaryan et al.,
    "How To Backdoor Federated Learning", 2020; the square is that of T. Gu et al.,
    "BadNets", 2017.
    """

    poisons = True
    marks = True

    target: Annotated[int, WHOLE_NOT_NEGATIVE, "the class"] = 0
    size: Annotated[int, AT_LEAST_ONE, "pixels of the square's side"] = 4
    share: Annotated[float, SHARE, "of its images that get the square"] = 0.5
    scale: Annotated[float, ABOVE_ZERO, "on its update"] = 1.0
    privacy = ("client", "sample")

    @override
    def check(self, data: DatasetFacts) -> None:
        _require_classes(data)
        if len(data.input_shape) != 3:
            allowed = "a data set of images, on which a square can be put"
            raise InputError(
                allowed, where="kind", got=f"samples of shape {data.input_shape}"
            )
        if self.target >= data.classes:
            allowed = f"one of the {data.classes} classes, 0 to {data.classes - 1}"
            raise InputError(allowed, where="target", got=self.target)
        if self.size > min(data.input_shape[1:]):
            allowed = f"at most the {min(data.input_shape[1:])} pixels of an image"
            raise InputError(allowed, where="size", got=self.size)

    def mark(self, samples: Tensor, value: Tensor | float) -> Tensor:
        """Return the images with a square of this value.

        Or of these, one per channel (channels, 1, 1).
        """
        marked = samples.clone()
        marked[..., -self.size :, -self.size :] = value
        return marked

    @override
    def poison(
        self,
        samples: Tensor,
        labels: Tensor,
        rng: torch.Generator,
        *,
        classes: int,
        brightest: float,
    ) -> tuple[Tensor, Tensor]:
        import torch

        count = max(1, round(self.share * len(labels)))
        chosen = torch.randperm(len(labels), generator=rng)[:count].to(samples.device)
        samples, labels = samples.clone(), labels.clone()
        samples[chosen], labels[chosen] = (
            self.mark(samples[chosen], brightest),
            self.target,
        )
        return samples, labels

    @override
    def craft(self, update: Tensor, rng: torch.Generator) -> Tensor:
        return update if self.scale == 1 else self.scale * update


def poison_data(data: Federation, scenario: Scenario, streams: Streams) -> None:
    """Give each client whose attack poisons a second set of samples.

    It is `Federation.poisoned`.
    """
    import torch

    for client, group in enumerate(scenario.group_of_client()):
        chosen = scenario.clients[group].attack
        if chosen is None or not chosen.made.poisons:
            continue
        rng = torch.Generator().manual_seed(streams.integer("poison", client))
        data.poison(client, partial(chosen.made.poison, rng=rng))
