"""FedGen (Zhu et al. 2021): a generator of embeddings carries knowledge of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from typing_extensions import override

from simfed.ground.errors import InputError
from simfed.ground.method import (
    Arrival,
    Field,
    Losses,
    Method,
    Plan,
    Setting,
    State,
    Values,
    Who,
    Work,
)
from simfed.learn.auxiliary import Mlp
from simfed.learn.methods.averaging import by_prototype, moved
from simfed.learn.methods.fedproto import check_embeddings
from simfed.learn.methods.fields import model_down, update_up
from simfed.learn.methods.options import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    AT_LEAST_TWO,
    NOT_NEGATIVE,
    SHARE,
    Ranged,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from simfed.learn.kit import Batch, Kit, Loss, Model


@dataclass(frozen=True)
class FedGen(Ranged, Method):
    """Averaging with embeddings from a generator in local training.

    The generator G(y, ε) → embedding (ε standard normal, y one-hot, one hidden layer
    with batch norm and ReLU, as in the authors' code) is a part of what the server
    sends; clients use it with its running statistics. Each local step descends the
    cross-entropy of the client's batch plus `weight`·`weight_decay`^(round − 1) times
    that of the model's last layer on as many generated embeddings as the batch
    configured has samples, whose labels are drawn from the shares of labels among what
    arrived at the last merge (a few bytes sent along; the paper leaves open how clients
    know them). Until a first merge there is none, and training is plain.

    At a merge the server takes the mean of the models (`share: model`, per prototype,
    weighted by samples, with running statistics) or of the last layers alone (`share:
    head`, over all clients), then makes Adam steps on G: labels from the shares, and
    the loss is the cross-entropy of the ensemble's logits, Σ_n α_n(y)·head_n(G(y, ε)),
    against y, where α_n(y) is client n's share of the samples of class y among the
    arrivals. To it comes, as in the authors' code, `diversity` times exp(−the mean,
    over pairs of generated samples, of the mean square difference of their ε times the
    mean absolute difference of their embeddings), which keeps G from answering every ε
    alike. Their distillation term at clients, which the paper's objective does not
    have, is not here either.

    Down: model or head, generator, label shares. Up: update of model or head
    (compressible, with residuals), label counts. Kept: with `head`, all that is not
    shared, and each client is evaluated with the model that it has after its last
    participation. Prototypes may differ, but not in the width of their embeddings.
    Charged: local training, a step's generated samples (`fedgen/generate-…`, forward
    through G and the last layer, and back through the last layer), the server's steps
    on G (`fedgen/generator-…`) and in each the answers of the arrived heads to all
    generated samples (`fedgen/heads-…`). The gain of a reward is that of the
    generator's loss (shared) and of the cross-entropy of the evaluated model on the
    client's own data (local). Source: Z. Zhu, J. Hong, J. Zhou, "Data-Free Knowledge
    Distillation for Heterogeneous Federated Learning", ICML 2021.
    """

    share: Annotated[
        Literal["model", "head"], "what is averaged; the rest stays with clients"
    ] = "model"
    weight: Annotated[
        float, NOT_NEGATIVE, "of the loss on generated embeddings, in the first round"
    ] = 1.0
    weight_decay: Annotated[float, SHARE, "of that weight, per round"] = 0.98
    noise: Annotated[int, AT_LEAST_ONE, "entries of ε"] = 32
    hidden: Annotated[int, AT_LEAST_ONE, "width of the generator's hidden layer"] = 128
    server_steps: Annotated[int, AT_LEAST_ONE, "on the generator per merge"] = 100
    server_batch: Annotated[int, AT_LEAST_TWO, "generated samples of a server step"] = (
        32
    )
    diversity: Annotated[
        float, NOT_NEGATIVE, "weight of the term that tells generated samples apart"
    ] = 1.0
    server_rate: Annotated[float, ABOVE_ZERO, "learning rate of those steps (Adam)"] = (
        1e-3
    )

    shares_add_up = True
    needs_classes = True
    weighs_samples = True
    losses = ("generator_loss",)
    shared_loss = "generator_loss"

    @property
    @override
    def personal(self) -> bool:  # type: ignore[override]
        return self.share == "head"

    # ---- from facts alone ------------------------------------------------------------

    @override
    def check(self, setting: Setting) -> None:
        check_embeddings(setting)
        widths = {name: size.features for name, size in setting.prototypes.items()}
        if len(set(widths.values())) > 1:
            raise InputError("prototypes with embeddings of one width", got=widths)

    def generator(self, setting: Setting) -> NormedNet:
        """Return the server's net: from noise ε and one-hot label y to an embedding."""
        features = next(iter(setting.prototypes.values())).features
        return NormedNet((self.noise + setting.classes, self.hidden, features))

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        head = (who.features + 1) * setting.classes
        down = (
            model_down(who.size)
            if self.share == "model"
            else {"head": Field("weights", head)}
        )
        down["generator"] = Field("generator", self.generator(setting).parameters)
        down["shares"] = Field("shares", setting.classes)
        whole = update_up(who.size)
        up = (
            whole
            if self.share == "model"
            else {"update": whole["update"]._replace(entries=head)}
        )
        up["counts"] = Field("counts", setting.classes)
        work = [setting.training(who)]
        if round > 1 and self.weight:
            size = setting.batch_size, setting.steps(who)
            work.append(
                Work("auxiliary", self._works(setting)[0], *size, name="generate")
            )
        return Plan(down, work, up)

    @override
    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        if not arrived:
            return []
        batch, steps = self.server_batch, self.server_steps
        _, train, heads = self._works(setting)
        return [
            Work("auxiliary", train, batch, steps, "generator"),
            Work("auxiliary", heads, batch * len(arrived), steps, "heads"),
        ]

    def _works(self, setting: Setting) -> tuple[str, ...]:
        """Return the profile's keys of the work that is no local training."""
        return tuple(self.auxiliary(setting))

    @override
    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        net = Mlp(self.generator(setting).widths)
        last = Mlp((net.widths[-1], setting.classes))
        back = 2 * last.forward_flops
        return {
            f"fedgen/generate-{net.shape}": net.forward_flops + back,
            f"fedgen/generator-{net.shape}": net.train_flops,
            f"fedgen/heads-{last.shape}": back,
        }

    # ---- learning --------------------------------------------------------------------

    @override
    def begin(self, kit: Kit) -> State:
        import torch

        net = self.generator(kit.setting)
        server: dict[str, Any] = {
            "models": {name: kit.initial(name) for name in kit.prototypes},
            "generator": net.initial(kit.generator("generator")).to(kit.device),
            "shares": torch.zeros(kit.setting.classes, device=kit.device),
        }
        if self.share == "head":
            # the first prototype's, so that all begin with one
            name = kit.prototypes[0]
            server["head"] = _flatten_head(kit, name, server["models"][name])
            del server["models"]
        return server

    @override
    def begin_client(self, kit: Kit, who: Who) -> State:
        if self.share == "model":
            return {}
        first: State = kit.initial(who.prototype)
        return first

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        shared = {"generator": server["generator"], "shares": server["shares"]}
        if self.share == "head":
            return {"head": server["head"], **shared}
        return {**server["models"][who.prototype], **shared}

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        before = (
            down
            if self.share == "model"
            else _replace_head(kit, who, own, down["head"])
        )
        after, _ = kit.descend(
            who, round, before, loss=self._make_loss(kit, who, round, down)
        )
        counts = kit.label_counts(who)
        if self.share == "model":
            update = before["weights"] - after["weights"]
            return {
                "update": update,
                "buffers": after["buffers"],
                "counts": counts,
            }, own
        update = down["head"] - _flatten_head(kit, who.prototype, after)
        return {"update": update, "counts": counts}, after

    def _make_loss(self, kit: Kit, who: Who, round: int, down: Values) -> Loss | None:
        """Return the loss of local steps with generated embeddings.

        None where there is none to generate, and training is plain.
        """
        import torch
        import torch.nn.functional as F

        weight = self.weight * self.weight_decay ** (round - 1)
        if not weight or not bool(down["shares"].any()):
            return None  # plain local training, in its fastest passes
        drawn = kit.generator("generated", who.client, who.key(round))
        size, net = kit.setting.batch_size, self.generator(kit.setting)

        def loss(batch: Batch) -> Tensor:
            with torch.no_grad():
                labels, _, inputs = self._draw(down["shares"], size, drawn)
                embeddings = net.forward(down["generator"], inputs)
            plain_loss = F.cross_entropy(batch.logits, batch.labels)
            return plain_loss + weight * F.cross_entropy(batch.head(embeddings), labels)

        return loss

    def _draw(
        self, shares: Tensor, size: int, drawn: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels drawn from their shares, noise, and both as G's inputs.

        Args:
            shares: (classes,), up to a factor.
            size: how many samples.
            drawn: the generator of the draws.

        Returns:
            (size,) labels, (size, noise) and (size, noise + classes).
        """
        import torch
        import torch.nn.functional as F

        labels = torch.multinomial(
            shares.cpu(), size, replacement=True, generator=drawn
        )
        noise = torch.randn(size, self.noise, generator=drawn)
        inputs = torch.cat([noise, F.one_hot(labels, len(shares)).float()], 1)
        device = shares.device
        return labels.to(device), noise.to(device), inputs.to(device)

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        import torch

        after = dict(server)
        heads = []
        if self.share == "model":
            models = dict(server["models"])
            for name, mine in by_prototype(arrivals).items():
                models[name] = moved(server["models"][name], mine)
            after["models"] = models
            for a in arrivals:
                model = server["models"][a.who.prototype]
                got = {**model, "weights": model["weights"] - a.values["update"]}
                heads.append(_flatten_head(kit, a.who.prototype, got))
        else:
            weights = [a.who.samples * a.weight for a in arrivals]
            after["head"] = server["head"] - sum(
                (w / sum(weights)) * a.values["update"]
                for w, a in zip(weights, arrivals, strict=True)
            )
            heads = [server["head"] - a.values["update"] for a in arrivals]
        counts = torch.stack([a.weight * a.values["counts"] for a in arrivals])
        after["shares"] = counts.sum(0) / counts.sum()
        after["generator"], loss = self._train_generator(
            kit, after, torch.stack(heads), counts, round
        )
        return after, {a.who.prototype: {"generator_loss": loss} for a in arrivals}

    def _train_generator(
        self, kit: Kit, server: State, heads: Tensor, counts: Tensor, round: int
    ) -> tuple[Tensor, float]:
        """Return the generator after the server's steps, and their mean loss.

        The loss is the cross-entropy alone, without the term of diversity.

        Args:
            kit: takes the steps.
            server: the generator before, and the shares of labels after the merge.
            heads: (arrivals, entries) last layers as `_flatten_head` has them.
            counts: (arrivals, classes) samples of each class, weighted.
            round: of the merge.
        """
        import torch
        import torch.nn.functional as F

        drawn = kit.generator("generator steps", round)
        share = counts / counts.sum(0).clamp(min=1e-12)
        classes, net = kit.setting.classes, self.generator(kit.setting)
        width = heads.shape[1] // classes - 1
        weight, bias = (
            heads[:, : classes * width].view(-1, classes, width),
            heads[:, classes * width :],
        )

        running, losses = net.statistics(server["generator"]).clone(), []

        def loss(leaf: Tensor, step: int) -> Tensor:
            labels, noise, inputs = self._draw(
                server["shares"], self.server_batch, drawn
            )
            embeddings = net.forward(leaf, inputs, running)
            each = torch.einsum("ncw,sw->nsc", weight, embeddings) + bias[:, None]
            value = F.cross_entropy((share[:, labels, None] * each).sum(0), labels)
            losses.append(value.item())
            return value + self.diversity * measure_likeness(noise, embeddings)

        steps = range(self.server_steps)
        generator, _ = kit.minimise(
            server["generator"], loss, steps, self.server_rate, "adam"
        )
        net.statistics(generator).copy_(running)
        return generator, sum(losses) / self.server_steps

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        model: Values = own if self.share == "head" else server["models"][who.prototype]
        return model


class NormedNet(NamedTuple):
    """A network of one hidden layer with batch norm before its ReLU, as a flat vector.

    Behind the linear layers stand the norm's scale and shift, then its running means
    and variances. The first layer has no bias, which the norm would take away.
    """

    widths: tuple[int, int, int]

    @property
    def layers(self) -> tuple[Mlp, Mlp]:
        """The linear layers before and behind the norm."""
        inputs, hidden, outputs = self.widths
        return Mlp((inputs, hidden), bias=False), Mlp((hidden, outputs))

    @property
    def parameters(self) -> int:
        """The length of its flat vector."""
        first, second = self.layers
        return first.parameters + second.parameters + 4 * self.widths[1]

    def initial(self, generator: Generator) -> Tensor:
        """Return its first weights: the layers drawn, the norm as PyTorch's is."""
        import torch

        first, second = (layer.initial(generator) for layer in self.layers)
        zeros = first.new_zeros(self.widths[1])
        return torch.cat([first, second, zeros + 1, zeros, zeros, zeros + 1])

    def statistics(self, weights: Tensor) -> Tensor:
        """Return the view of running means and variances, (2, hidden)."""
        return weights[-2 * self.widths[1] :].view(2, -1)

    def forward(
        self, weights: Tensor, x: Tensor, running: Tensor | None = None
    ) -> Tensor:
        """Return (n, inputs) → (n, outputs), differentiable in both arguments.

        With `running`, (2, hidden), the norm is that of the batch, and these are moved
        towards it in place; without, it is that of the statistics in `weights`.
        """
        import torch.nn.functional as F

        first, second = self.layers
        layers = weights[: -4 * self.widths[1]]
        scale, shift = weights[len(layers) : -2 * self.widths[1]].view(2, -1)
        mean, variance = self.statistics(weights) if running is None else running
        x = first.forward(layers[: first.parameters], x)
        x = F.batch_norm(x, mean, variance, scale, shift, training=running is not None)
        return second.forward(layers[first.parameters :], x.relu())


def measure_likeness(noise: Tensor, embeddings: Tensor) -> Tensor:
    """Return how little generated samples differ where their noise does, up to 1.

    Args:
        noise: (n, entries of ε).
        embeddings: (n, features) that the generator made of it.

    >>> import torch
    >>> measure_likeness(torch.eye(2), torch.zeros(2, 3)).item()
    1.0
    """
    far = (noise[:, None] - noise).square().mean(2)
    apart = (embeddings[:, None] - embeddings).abs().mean(2)
    return (-far * apart).mean().exp()


def _flatten_head(kit: Kit, prototype: str, model: Values) -> Tensor:
    """Return the last layer's weight, then its bias, (classes · (features + 1),)."""
    import torch

    return torch.cat([part.reshape(-1) for part in kit.head(prototype, model)])


def _replace_head(kit: Kit, who: Who, own: State, head: Tensor) -> Model:
    """Return a client's model with the last layer that the server sent."""
    model = {"weights": own["weights"].clone(), "buffers": own["buffers"]}
    weight, bias = kit.head(who.prototype, model)
    weight.copy_(head[: weight.numel()].view_as(weight))
    bias.copy_(head[weight.numel() :])
    return model
