"""FedAL (Han et al. 2024): distillation helped by a discriminator at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

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
from simfed.learn.methods.options import ABOVE_ZERO, AT_LEAST_ONE, NOT_NEGATIVE
from simfed.learn.methods.personal import Personal

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Batch, Kit


@dataclass(frozen=True)
class FedAL(Personal):
    """Federated distillation among black boxes with an adversarial discriminator.

    Clients keep models of their own and send logits on the public samples of the round.
    The server takes their mean, and trains a discriminator to tell from an output whose
    it is; what would have misled the discriminator goes back to each client.

    A client first learns from the others, on the public samples of the last merge: SGD
    at the client's rate on KL(softmax of the mean logits ‖ model) +
    `adversarial`·⟨feedback, model's logits⟩ + `forgetting`·KL(model as it came ‖
    model), means over samples. Then it trains on its own data: cross-entropy +
    `forgetting`·KL(model after the first part ‖ model). Then it sends its logits on
    this round's samples.

    The discriminator maps softmax outputs through one hidden layer (ReLU) to one logit
    per client of the run; Adam steps on cross-entropy, on outputs drawn from all
    arrivals. Feedback is minus the gradient of that cross-entropy in the logits that
    the client sent, per sample: clients are black boxes to the server and the
    discriminator is one to them, so the adversarial term is linear around what was
    sent. The paper leaves open what a client gets that took no part in the last merge:
    zeros. Batch norm keeps its running statistics while learning from the others.

    Down, from the second round on: mean logits, feedback, and the round that they are
    of (0: nothing has been merged yet). Up: logits. Kept: the whole model. With
    `dataset.public_batch` every round has samples of its own, so uploads that arrive
    rounds later would be of others; leave it out where arrivals may be late. Charged:
    inference and distillation steps on public samples, local training with an inference
    pass per step, and the discriminator (`fedal/discriminator-…`) at the server, its
    steps and one pass of each arrival's outputs. The gain of a reward is that of
    KL(mean ‖ the client's outputs), mean over its prototype's arrivals (shared), and of
    the cross-entropy of the client's own model on its data (local). Source: P. Han et
    al., "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial
    Learning", IEEE JSAC 2024.
    """

    adversarial: Annotated[
        float, NOT_NEGATIVE, "weight of the discriminator's feedback"
    ] = 0.1
    forgetting: Annotated[
        float, NOT_NEGATIVE, "weight of staying near what was known before"
    ] = 0.1
    public_epochs: Annotated[
        int, AT_LEAST_ONE, "passes over the public samples per participation"
    ] = 1
    hidden: Annotated[
        int, AT_LEAST_ONE, "width of the discriminator's hidden layer"
    ] = 64
    server_steps: Annotated[int, AT_LEAST_ONE, "of the discriminator per merge"] = 50
    server_batch: Annotated[int, AT_LEAST_ONE, "outputs of a server step"] = 64
    server_rate: Annotated[float, ABOVE_ZERO, "learning rate of those steps (Adam)"] = (
        1e-3
    )
    compress_logits: Annotated[
        bool, "let policies choose how logits are compressed"
    ] = False

    shares_add_up = True
    needs_classes = True
    needs_public = True
    losses = ("distance", "discriminator_loss")
    shared_loss = "distance"

    # ---- from facts alone ------------------------------------------------------------

    def discriminator(self, setting: Setting) -> Mlp:
        """Return the net that tells from a model's output which client's it is."""
        return Mlp((setting.classes, self.hidden, setting.clients))

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        entries, batch = setting.public * setting.classes, setting.batch_size
        logits = Field("logits", entries)
        down: dict[str, Field] = {}
        work = []
        if round > 1:
            down = {"mean": logits, "feedback": logits, "of_round": Field("round", 1)}
            times = self.public_epochs * -(-setting.public // batch)
            if self.forgetting:
                work.append(Work("inference", who.model, setting.public, name="before"))
            work.append(
                Work("distillation", who.model, min(batch, setting.public), times)
            )
        work.append(setting.training(who))
        if self.forgetting and round > 1:
            work.append(
                Work("inference", who.model, batch, setting.steps(who), name="before")
            )
        work.append(Work("inference", who.model, setting.public, name="logits"))
        return Plan(
            down,
            work,
            {
                "logits": logits._replace(
                    compressed=self.compress_logits, feedback=False
                )
            },
        )

    @override
    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        name = self._name(setting)
        size = min(self.server_batch, len(arrived) * setting.public)
        steps = Work("auxiliary", name, size, self.server_steps, "discriminator")
        feedback = [
            Work(
                "auxiliary", name, setting.public, 1, "feedback", who.prototype,
                who.client,
            )
            for who in arrived
        ]  # fmt: skip
        return [steps, *feedback]

    def _name(self, setting: Setting) -> str:
        """Return the name of the discriminator's work in profiles of devices."""
        return f"fedal/discriminator-{self.discriminator(setting).shape}"

    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        """Return the FLOPs per sample of the discriminator.

        They are forward, and backward to the weights and to the outputs.
        """
        return {self._name(setting): 3 * self.discriminator(setting).forward_flops}

    # ---- learning --------------------------------------------------------------------

    @override
    def begin(self, kit: Kit) -> State:
        import torch

        net = self.discriminator(kit.setting)
        zeros = torch.zeros(kit.setting.public, kit.setting.classes, device=kit.device)
        return {
            "mean": zeros,
            "of_round": torch.zeros(1, device=kit.device),
            "discriminator": net.initial(kit.generator("discriminator")).to(kit.device),
            "feedback": {},
        }

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        if round == 1:
            return {}
        mean, feedback = server["mean"], server["feedback"].get(str(who.client))
        return {
            "mean": mean,
            "feedback": mean.new_zeros(mean.shape) if feedback is None else feedback,
            "of_round": server["of_round"],
        }

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        import torch
        import torch.nn.functional as F

        model: dict[str, Any] = {"weights": own["weights"], "buffers": own["buffers"]}
        learned = bool(down) and int(down["of_round"]) > 0
        if learned:
            model = self._learn_from_others(kit, who, round, down, model)
        anchor = {name: value.clone() for name, value in model.items()}

        def loss(batch: Batch) -> Tensor:
            with torch.no_grad():
                anchored = kit.forward(who.prototype, anchor, batch.samples)
            value = F.cross_entropy(batch.logits, batch.labels)
            return value + self.forgetting * _compute_divergence(anchored, batch.logits)

        keeps = self.forgetting and learned
        after, _ = kit.descend(who, round, model, loss=loss if keeps else None)
        return {"logits": kit.logits(who.prototype, after, kit.public(round))}, after

    def _learn_from_others(
        self, kit: Kit, who: Who, round: int, down: Values, model: Values
    ) -> dict[str, Any]:
        """Return the model after it has learned from the others.

        Args:
            kit: arithmetic.
            who: the client.
            round: of the participation, whose learning rate it has.
            down: mean logits and feedback, (public samples, classes) each, and their
                round.
            model: the client's, where it begins.
        """
        import torch

        samples = kit.public(int(down["of_round"]))
        before = kit.logits(who.prototype, model, samples) if self.forgetting else None
        rng = kit.rng("public order", who.client, who.key(round))
        orders = (rng.permutation(len(samples)) for _ in range(self.public_epochs))

        def loss(leaf: Tensor, at: Tensor) -> Tensor:
            at_leaf = {"weights": leaf, "buffers": model["buffers"]}
            logits = kit.forward(who.prototype, at_leaf, samples[at])
            value = _compute_divergence(down["mean"][at], logits)
            misled: Tensor = (down["feedback"][at] * logits).sum()
            value = value + self.adversarial * misled / len(at)
            if before is not None:
                value = value + self.forgetting * _compute_divergence(
                    before[at], logits
                )
            return value

        batches = (
            at
            for order in orders
            for at in torch.from_numpy(order)
            .to(kit.device)
            .split(kit.setting.batch_size)
        )
        weights, _ = kit.minimise(model["weights"], loss, batches, kit.rate(round))
        return {"weights": weights, "buffers": model["buffers"]}

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        import torch

        total = sum(a.weight for a in arrivals)
        logits = [a.values["logits"] for a in arrivals]
        mean = sum(
            (a.weight / total) * z for a, z in zip(arrivals, logits, strict=True)
        )
        net, loss = self._train_discriminator(
            kit, server["discriminator"], arrivals, round
        )
        feedback = {}
        for a, z in zip(arrivals, logits, strict=True):
            leaf = z.clone().requires_grad_()
            whose = torch.full((len(z),), a.who.client, device=kit.device)
            [slope] = torch.autograd.grad(
                self._compute_discriminator_loss(kit.setting, net, leaf, whose)
                * len(z),
                leaf,
            )
            feedback[str(a.who.client)] = -slope
        state = {
            "mean": mean,
            "of_round": torch.full((1,), float(round), device=kit.device),
            "discriminator": net,
            "feedback": feedback,
        }
        distances = mean_losses(
            "distance", arrivals, [_compute_divergence(mean, z).item() for z in logits]
        )
        return state, {
            name: {**distance, "discriminator_loss": loss}
            for name, distance in distances.items()
        }

    def _train_discriminator(
        self, kit: Kit, net: Tensor, arrivals: Sequence[Arrival], round: int
    ) -> tuple[Tensor, float]:
        """Return the discriminator after its steps, and the mean of their losses.

        Args:
            kit: draws the outputs of each step.
            net: flat weights of the discriminator.
            arrivals: their logits are what it learns to tell apart.
            round: of the merge.
        """
        import torch

        outputs = torch.cat([a.values["logits"] for a in arrivals])
        public = len(outputs) // len(arrivals)
        whose = torch.tensor([a.who.client for a in arrivals], device=kit.device)
        whose = whose.repeat_interleave(public)
        rng, size = (
            kit.rng("discriminator steps", round),
            min(self.server_batch, len(outputs)),
        )
        batches = (
            torch.from_numpy(rng.choice(len(outputs), size, replace=False)).to(
                kit.device
            )
            for _ in range(self.server_steps)
        )

        def loss(leaf: Tensor, at: Tensor) -> Tensor:
            return self._compute_discriminator_loss(
                kit.setting, leaf, outputs[at], whose[at]
            )

        net, losses = kit.minimise(net, loss, batches, self.server_rate, "adam")
        return net, sum(losses) / self.server_steps

    def _compute_discriminator_loss(
        self, setting: Setting, net: Tensor, logits: Tensor, whose: Tensor
    ) -> Tensor:
        """Return the cross-entropy of the discriminator's guesses.

        It is differentiable in the discriminator and in the logits.

        Args:
            setting: says how wide the discriminator is.
            net: its flat weights.
            logits: (n, classes) of models.
            whose: (n,) ids of the clients whose they are.
        """
        import torch.nn.functional as F

        guesses = self.discriminator(setting).forward(net, logits.softmax(1))
        return F.cross_entropy(guesses, whose)


def _compute_divergence(targets: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(targets) ‖ softmax(logits)), the mean over samples.

    Both are (n, classes); it is differentiable in the logits.
    """
    import torch.nn.functional as F

    log_targets = targets.log_softmax(1)
    return F.kl_div(
        logits.log_softmax(1), log_targets, reduction="batchmean", log_target=True
    )
