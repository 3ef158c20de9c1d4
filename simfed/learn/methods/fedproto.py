"""FedProto (Tan et al. 2022): clients agree on the mean embedding of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from typing_extensions import override

from simfed.ground.errors import InputError
from simfed.ground.method import (
    Arrival,
    Field,
    Losses,
    Plan,
    Setting,
    State,
    Values,
    Who,
    Work,
)
from simfed.learn.auxiliary import Mlp
from simfed.learn.methods.averaging import mean_losses
from simfed.learn.methods.options import AT_LEAST_ONE, NOT_NEGATIVE
from simfed.learn.methods.personal import Personal

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Batch, Kit, Model


@dataclass(frozen=True)
class FedProto(Personal):
    """Models of the clients' own that meet in the mean embedding of each class.

    Clients keep models of their own and send the mean embedding of each class that they
    own; the server averages these class means, weighted by how many samples stand
    behind them.

    Local training descends the cross-entropy plus λ times the mean, over the samples of
    the batch, of ‖embedding − global mean of its class‖² / width; a sample of a class
    without a global mean counts 0. An embedding is the input of the last linear layer.
    The paper writes a distance of class means; this is its authors' code.

    Down: the global class means, and a bit per class whether it is known. Up: class
    means and counts; of classes that a client does not own, zeros, which are charged as
    well. What a class without an arrival has stays. Kept: the whole model, and the
    adapter if there is one. Where the prototypes' widths differ, means are compared in
    one width (`width`, or the smallest): through `projection: fixed`, a Gaussian matrix
    per prototype, drawn from the run's seed, with entries of variance 1/width (a
    prototype of that very width needs none), or `trained`, a matrix of each client's
    own, which starts as the fixed one (of that width, as the identity) and descends the
    distance term in every local step at the client's rate. The paper has one width for
    all.

    Charged: local training, one inference pass over the client's data, and steps of a
    trained adapter (`fedproto/adapter-…`); the distance term and a fixed projection are
    not, they are below a hundredth of a step of the smallest model. The gain of a
    reward is that of the distance of the client's means from the new global ones, mean
    over its prototype's clients (shared), and of the cross-entropy of the evaluated
    model on the client's data (local).

    Evaluated, and measured for the local gain, is the client's own model by the nearest
    of the global class means that the client was sent last, as the authors do
    (`predict: nearest-mean`; by its own last layer as long as it was sent none), or
    always by its own last layer (`predict: head`). As ‖P·e − C_y‖² is linear in the
    embedding e but for a part that is the same for every class, the first is a last
    layer with weights 2·C_y·P and biases −‖C_y‖²; a class without a mean is never the
    answer. Accuracies by the two differ a lot on labels that a client does not own,
    which its own last layer never learned. Source: Y. Tan et al., "FedProto: Federated
    Prototype Learning across Heterogeneous Clients", AAAI 2022.
    """

    pull: Annotated[
        float, NOT_NEGATIVE, "λ, weight of the distance from the global class means"
    ] = 1.0
    projection: Annotated[
        Literal["fixed", "trained"],
        "of embeddings, where the prototypes' widths differ",
    ] = "fixed"
    width: Annotated[
        int | None,
        AT_LEAST_ONE,
        "of the class means; the smallest among prototypes if omitted",
    ] = None
    compress_means: Annotated[
        bool, "let policies choose how class means are compressed"
    ] = False
    predict: Annotated[
        Literal["head", "nearest-mean"],
        "evaluate by the nearest class mean that a client was sent, or by its own last "
        "layer",
    ] = "nearest-mean"

    shares_add_up = True
    needs_classes = True
    weighs_samples = True
    losses: ClassVar[tuple[str, ...]] = ("distance",)
    shared_loss = "distance"
    name: ClassVar[str] = "fedproto"

    # ---- from facts alone ------------------------------------------------------------

    @override
    def check(self, setting: Setting) -> None:
        check_embeddings(setting)

    def find_width(self, setting: Setting) -> int:
        """Entries of the embeddings in which class means are compared."""
        return self.width or min(size.features for size in setting.prototypes.values())

    def adapter(self, setting: Setting, features: int) -> Mlp | None:
        """Return the map from embeddings of this width to the common one.

        None: they are compared as they are.
        """
        width = self.find_width(setting)
        widths = {size.features for size in setting.prototypes.values()} | {width}
        if features == width and (self.projection == "fixed" or len(widths) == 1):
            return None
        return Mlp((features, width), bias=False)

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        classes, entries = setting.classes, setting.classes * self.find_width(setting)
        work = [
            setting.training(who),
            Work("inference", who.model, who.samples, name="class means"),
        ]
        adapter = self.adapter(setting, who.features)
        if adapter is not None and self.projection == "trained":
            steps = setting.steps(who)
            work.append(
                Work(
                    "auxiliary",
                    self.name_adapter_work(adapter),
                    setting.batch_size,
                    steps,
                )
            )
        return Plan(
            {
                "means": Field("means", entries),
                "known": Field("mask", classes, value_bytes=1 / 8),
            },
            work,
            {
                "means": Field(
                    "means", entries, compressed=self.compress_means, feedback=False
                ),
                "counts": Field("counts", classes),
            },
        )

    def name_adapter_work(self, adapter: Mlp) -> str:
        """Return the device profile's key of a trained adapter's steps."""
        return f"{self.name}/adapter-{adapter.shape}"

    @override
    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        if self.projection == "fixed":
            return {}
        adapters = [
            self.adapter(setting, size.features) for size in setting.prototypes.values()
        ]
        return {
            self.name_adapter_work(a): a.train_flops for a in adapters if a is not None
        }

    # ---- learning --------------------------------------------------------------------

    @override
    def begin(self, kit: Kit) -> State:
        import torch

        classes, width = kit.setting.classes, self.find_width(kit.setting)
        return {
            "means": torch.zeros(classes, width, device=kit.device),
            "known": torch.zeros(classes, device=kit.device),
        }

    @override
    def begin_client(self, kit: Kit, who: Who) -> State:
        first: dict[str, Any] = kit.initial(who.prototype)
        if self.projection == "trained":
            adapter = self.adapter(kit.setting, who.features)
            if adapter is not None:
                first["adapter"] = self.draw_first_adapter(kit, who, adapter)
        return first

    def draw_first_adapter(self, kit: Kit, who: Who, adapter: Mlp) -> Tensor:
        """Return the flat weights of the fixed projection of the client's prototype.

        They are drawn from the run's seed by prototype, so that all its clients have
        the same; of equal widths, the identity.
        """
        import torch

        features, width = adapter.widths
        if features == width:
            return torch.eye(width, device=kit.device).reshape(-1)
        drawn = torch.randn(
            width, features, generator=kit.generator("projection", who.prototype)
        )
        return drawn.mul_(width**-0.5).reshape(-1).to(kit.device)

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        return {"means": server["means"], "known": server["known"]}

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        import torch
        import torch.nn.functional as F

        net = self.adapter(kit.setting, who.features)
        weights: Any = own.get("adapter")
        learns = weights is not None
        if net is not None and weights is None:
            weights = self.draw_first_adapter(kit, who, net)
        descent = kit.descent(round)
        pulls = self.pull and bool(down["known"].any())

        def loss(batch: Batch) -> Tensor:
            nonlocal weights
            value = F.cross_entropy(batch.logits, batch.labels)
            if not pulls:
                return value
            leaf = weights.clone().requires_grad_() if learns else weights
            embeddings = (
                batch.embeddings if net is None else net.forward(leaf, batch.embeddings)
            )
            apart = embeddings - down["means"][batch.labels]
            known = down["known"][batch.labels, None]
            distance: Tensor = self.pull * (known * apart.square()).mean()
            if learns:
                [slope] = torch.autograd.grad(distance, leaf, retain_graph=True)
                # the distance's own gradient still needs the old ones
                weights = weights.clone()
                descent.step(weights, slope)
            return value + distance

        model, _ = kit.descend(who, round, own, loss=loss)
        samples, labels = kit.own(who)
        embeddings = kit.embeddings(who.prototype, model, samples)
        if net is not None:
            embeddings = net.forward(weights, embeddings)
        counts, means = compute_class_means(embeddings, labels, kit.setting.classes)
        after = {**model, "adapter": weights} if learns else model
        if self.predict == "nearest-mean" and bool(down["known"].any()):
            projection = (
                None if net is None else weights.view(net.widths[1], net.widths[0])
            )
            after = {
                **after,
                "nearest": self.nearest(kit, who, model, down, projection),
            }
        return {"means": means, "counts": counts}, after

    def nearest(
        self, kit: Kit, who: Who, model: Values, down: Values, projection: Tensor | None
    ) -> Model:
        """Return the last layer that answers with the nearest mean, and its place.

        Args:
            kit: knows where the last layer stands.
            who: the client.
            model: its weights and buffers.
            down: the global means that it was sent, and which are known.
            projection: (width, features) of embeddings; None: they are compared as they
                are.

        Returns:
            `layer`, weight and bias end to end, and `at`, where they stand in the flat
            weights.
        """
        import torch

        head, _ = kit.head(who.prototype, model)
        means = down["means"]
        onto = means if projection is None else means @ projection
        biases = -means.square().sum(1).masked_fill(down["known"] == 0, _NEVER)
        layer = torch.cat([2 * onto.reshape(-1), biases])
        return {
            "at": head.storage_offset() - model["weights"].storage_offset(),
            "layer": layer,
        }

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        total = sum(
            a.weight * a.values["counts"][:, None] * a.values["means"] for a in arrivals
        )
        weight = sum(a.weight * a.values["counts"] for a in arrivals)
        came = weight > 0
        means = server["means"].clone()
        means[came] = total[came] / weight[came][:, None]
        has_mean = server["known"].clone()
        has_mean[came] = 1.0
        return {"means": means, "known": has_mean}, measure_distances(means, arrivals)

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        model = super().model(server, own, who)
        if "nearest" not in own:
            return model
        at, layer = own["nearest"]["at"], own["nearest"]["layer"]
        weights = model["weights"].clone()
        weights[at : at + len(layer)] = layer
        return {**model, "weights": weights}


_NEVER = 1e6
"""Below every other class, and finite, as a loss must be."""


def check_embeddings(setting: Setting) -> None:
    """Refuse models whose samples have no embedding.

    Raises: `InputError`.
    """
    for name, size in setting.prototypes.items():
        if not size.features:
            raise InputError(
                "models with a linear layer at their end, whose input is a sample's "
                "embedding",
                got=f"{size.model} of {name}",
            )


def compute_class_means(
    embeddings: Tensor, labels: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return (classes,) how many samples, (classes, width) their mean embeddings.

    Zeros where there are none.
    """
    counts = embeddings.new_zeros(classes).index_add(
        0, labels, embeddings.new_ones(len(labels))
    )
    sums = embeddings.new_zeros(classes, embeddings.shape[1]).index_add(
        0, labels, embeddings
    )
    return counts, sums / counts.clamp(min=1)[:, None]


def measure_distances(
    means: Tensor, arrivals: Sequence[Arrival]
) -> dict[str, dict[str, float]]:
    """Return, per prototype, the mean square difference of its arrivals' class means.

    Args:
        means: (classes, width), the global ones.
        arrivals: their `means`, of the classes of which they have samples.
    """
    apart = []
    for arrival in arrivals:
        here = arrival.values["counts"] > 0
        apart.append(
            float((arrival.values["means"][here] - means[here]).square().mean())
        )
    return mean_losses("distance", arrivals, apart)
