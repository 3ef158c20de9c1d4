"""FedTGP (Zhang et al. 2024): class prototypes the server trains to stand apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import Arrival, Losses, Setting, State, Who, Work
from simfed.learn.auxiliary import Mlp
from simfed.learn.methods.fedproto import (
    FedProto,
    compute_class_means,
    measure_distances,
)
from simfed.learn.methods.options import ABOVE_ZERO, AT_LEAST_ONE, NOT_NEGATIVE

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedTGP(FedProto):
    """FedProto whose global class means are trained at the server instead of averaged.

    A vector per class goes through a network of one hidden layer (ReLU) as wide as
    itself; what comes out are the prototypes P̂. Epochs of SGD over the arrived class
    means, in batches: a mean P of class c costs −log of the share of exp(−(‖P − P̂_c‖ +
    δ)) in itself plus Σ_{j≠c} exp(−‖P − P̂_j‖). The margin δ is the largest, over
    classes, of the least distance from a class's centre (the plain mean over arrivals,
    of this merge) to another's, as in the authors' code, at most
    `margin`·√(width/512): the paper's 100 is for embeddings of 512, and prototypes that
    stand too far apart for a smaller width make local training diverge. The mean is
    over the means of a batch, each counting as what the server mode makes of its
    staleness.

    Clients do as in FedProto, towards P̂: what they send and keep, its options, the
    gain of a reward (distance from P̂) and evaluation are said there. The paper leaves
    open what holds of classes that no arrival owns: they are trained as the others'
    negatives, and sent once somebody has owned them. Kept at the server: class vectors
    and network. Charged: the server's steps (`fedtgp/prototypes-…`), as if every
    arrival owned every class, since plans do not know who owns what. Source: J. Zhang
    et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
    Contrastive Learning for Data and Model Heterogeneity in Federated Learning", AAAI
    2024.
    """

    margin: Annotated[
        float, NOT_NEGATIVE, "τ, most that the margin may become at a width of 512"
    ] = 100.0
    server_rate: Annotated[float, ABOVE_ZERO, "learning rate of the server's steps"] = (
        0.01
    )
    server_epochs: Annotated[
        int, AT_LEAST_ONE, "passes over the arrived class means per merge"
    ] = 100
    server_batch: Annotated[int, AT_LEAST_ONE, "class means of a server step"] = 32

    losses = ("distance", "contrastive_loss")
    name = "fedtgp"
    weighs_samples = False

    # ---- from facts alone ------------------------------------------------------------

    def net(self, setting: Setting) -> Mlp:
        """Return the server's net, from a vector per class to the class's prototype."""
        width = self.find_width(setting)
        return Mlp((width, width, width))

    @override
    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        means = len(arrived) * setting.classes
        size = min(self.server_batch, means)
        times = self.server_epochs * -(-means // self.server_batch)
        return [
            Work("auxiliary", self.name_server_step(setting), size, times, "prototypes")
        ]

    def name_server_step(self, setting: Setting) -> str:
        """Return the device profile's key of the server's steps."""
        return f"{self.name}/prototypes-{self.net(setting).shape}x{setting.classes}"

    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        """Return FLOPs of a class mean's distances from all prototypes, and back.

        The network's, once per step, are spread over a batch.
        """
        distances_flops = 2 * 2 * setting.classes * self.find_width(setting)
        net_flops = 3 * setting.classes * self.net(setting).forward_flops
        per_mean = 2 * distances_flops + net_flops / self.server_batch
        return {**super().auxiliary(setting), self.name_server_step(setting): per_mean}

    # ---- learning --------------------------------------------------------------------

    @override
    def begin(self, kit: Kit) -> State:
        import torch

        classes, width = kit.setting.classes, self.find_width(kit.setting)
        drawn = kit.generator("prototypes")
        vectors = torch.randn(classes, width, generator=drawn)
        weights = self.net(kit.setting).initial(drawn)
        return {
            **super().begin(kit),
            "net": torch.cat([vectors.reshape(-1), weights]).to(kit.device),
        }

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        import torch

        here = [arrival.values["counts"] > 0 for arrival in arrivals]
        means = torch.cat(
            [a.values["means"][rows] for a, rows in zip(arrivals, here, strict=True)]
        )
        labels = torch.cat([rows.nonzero()[:, 0] for rows in here])
        weights = torch.cat(
            [
                means.new_full((int(rows.sum()),), a.weight)
                for a, rows in zip(arrivals, here, strict=True)
            ]
        )
        counts, centres = compute_class_means(means, labels, kit.setting.classes)
        centres = centres[counts > 0]
        most = self.margin * math.sqrt(self.find_width(kit.setting) / 512)
        margin = min(measure_gap(centres), most)
        net, loss = self._train_prototypes(
            kit, server["net"], means, labels, weights, margin, round
        )
        with torch.no_grad():
            prototypes = self._make_prototypes(kit.setting, net)
        has_mean = server["known"].clone()
        has_mean[counts > 0] = 1.0
        state = {"means": prototypes, "known": has_mean, "net": net}
        losses = measure_distances(prototypes, arrivals)
        return state, {
            name: {**loss_by, "contrastive_loss": loss}
            for name, loss_by in losses.items()
        }

    def _train_prototypes(
        self,
        kit: Kit,
        net: Tensor,
        means: Tensor,
        labels: Tensor,
        weights: Tensor,
        margin: float,
        round: int,
    ) -> tuple[Tensor, float]:
        """Return class vectors and network after the server's steps, and the mean loss.

        The loss is that of the last epoch.

        Args:
            kit: takes the steps.
            net: class vectors, then the network, as one flat vector.
            means: (n, width) class means that arrived.
            labels: (n,) their classes.
            weights: (n,) by the server mode.
            margin: δ of this merge.
            round: of the merge.
        """
        import torch

        rng = kit.rng("prototypes", round)
        batches = [
            at
            for _ in range(self.server_epochs)
            for at in torch.from_numpy(rng.permutation(len(means)))
            .to(means.device)
            .split(self.server_batch)
        ]

        def loss(leaf: Tensor, at: Tensor) -> Tensor:
            rows = means[at], labels[at], weights[at]
            value: Tensor = self.contrast(kit.setting, leaf, *rows, margin)
            return value

        net, losses = kit.minimise(net, loss, batches, self.server_rate)
        last = len(batches) // self.server_epochs
        total = sum(
            x * len(at) for x, at in zip(losses[-last:], batches[-last:], strict=True)
        )
        return net, total / len(means)

    def contrast(
        self,
        setting: Setting,
        net: Tensor,
        means: Tensor,
        labels: Tensor,
        weights: Tensor,
        margin: float,
    ) -> Tensor:
        """Return the loss of a server step.

        It is differentiable in the flat vector of class vectors and network.
        """
        import torch
        import torch.nn.functional as F

        far = torch.cdist(
            means, self._make_prototypes(setting, net), compute_mode=_EXACT
        )
        far = far + margin * F.one_hot(labels, setting.classes)
        each = F.cross_entropy(-far, labels, reduction="none")
        return (weights * each).sum() / weights.sum()

    def _make_prototypes(self, setting: Setting, net: Tensor) -> Tensor:
        """Return the network's vector for each class, (classes, width)."""
        width = self.find_width(setting)
        split = setting.classes * width
        return self.net(setting).forward(net[split:], net[:split].view(-1, width))


def measure_gap(centres: Tensor) -> float:
    """Return the largest, over classes, of the least distance to another's centre.

    `centres`: (classes, width); 0 where there is one class alone.
    """
    import torch

    if len(centres) < 2:
        return 0.0
    apart = torch.cdist(centres, centres, compute_mode=_EXACT)
    return float(apart.fill_diagonal_(math.inf).min(1).values.max())


# products of large numbers would lose small distances
_EXACT = "donot_use_mm_for_euclid_dist"
