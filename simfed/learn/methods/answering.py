"""The skeleton of methods that exchange logits in place of weights.

Clients with models of their own answer the server's public questions. `fedmd` and
`kt_pfl` are made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import override

from simfed.ground.method import (
    Arrival,
    Field,
    Plan,
    Setting,
    State,
    Values,
    Who,
    Work,
)
from simfed.learn.methods.options import ABOVE_ZERO, AT_LEAST_ONE
from simfed.learn.methods.personal import Personal

if TYPE_CHECKING:
    from torch import Tensor

    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class Answering(Personal):
    """A method whose clients exchange logits on public samples with the server.

    In its round a client is sent logits for the round's public samples (`given`, by the
    subclass), fits its own model to their softmax (digest), trains it on its own data
    (revisit), and answers with its logits on the public samples of the round that
    follows, so that what is sent then has been asked before. In round 1 nothing travels
    down and there is nothing to digest.

    A client begins with its prototype's first weights and keeps its model; only logits
    travel, so models may be of any kind. With `compress_logits` the client's policy
    chooses what of its answer travels; entries left out are 0 at the server and are not
    made up for later (answers are not sums: next round's is a whole one).
    `dataset.public_batch` makes the questions a fresh subset every round. Subclasses
    keep, per sample of the whole public set, what was answered last.
    """

    needs_classes = True
    needs_public = True

    digest_epochs: Annotated[
        int, AT_LEAST_ONE, "passes over the round's public samples"
    ] = 1
    digest_batch: Annotated[int, AT_LEAST_ONE, "public samples of a digest step"] = 32
    digest_rate: Annotated[
        float | None, ABOVE_ZERO, "of the digest; the training rate if omitted"
    ] = None
    temperature: Annotated[float, ABOVE_ZERO, "T of the softened logits"] = 1.0
    compress_logits: Annotated[
        bool, "whether answers are compressed, without residuals"
    ] = False

    # ---- from facts ------------------------------------------------------------------

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        entries = setting.public * setting.classes
        work = [
            setting.training(who),
            Work("inference", who.model, setting.public, kind="answers"),
        ]
        down = {}
        if round > 1:
            down = {"logits": Field("logits", entries)}
            size = min(self.digest_batch, setting.public)
            steps = self.digest_epochs * -(-setting.public // size)
            work.insert(0, Work("distillation", who.model, size, steps, kind="digest"))
        up = Field("logits", entries, compressed=self.compress_logits, feedback=False)
        return Plan(down, work, {"logits": up})

    # ---- learning --------------------------------------------------------------------

    def begin(self, kit: Kit) -> State:
        """Return the first answers (`first`, by the subclass), each round's samples.

        `places`: (rounds, samples of a round), where rounds have samples of their own.
        """
        import torch

        state = dict(self.first(kit))
        if kit.setting.public < kit.public_size:
            rounds = range(1, kit.setting.rounds + 1)
            state["places"] = torch.stack(
                [kit.public_places(round) for round in rounds]
            )
        return state

    def first(self, kit: Kit) -> State:
        """Return the server's state beside that.

        Per-sample tensors are as long as the whole public set.
        """
        raise NotImplementedError

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        if round == 1:
            return {}
        logits = self.given(server, who)
        return {
            "logits": logits[server["places"][round - 1]]
            if "places" in server
            else logits
        }

    def given(self, server: State, who: Who) -> Tensor:
        """Return the logits that a client is to learn from, (public set, classes).

        Args:
            server: its state.
            who: the client; what it is given may be its own.
        """
        raise NotImplementedError

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        from simfed.learn.losses import soft_targets

        model: Values = own
        if "logits" in down:
            model = kit.distil(
                who.prototype,
                model,
                kit.public(round),
                soft_targets(down["logits"], self.temperature),
                rate=kit.rate(round) if self.digest_rate is None else self.digest_rate,
                epochs=self.digest_epochs,
                batch_size=self.digest_batch,
                temperature=self.temperature,
                order=kit.rng("digest", who.client, who.key(round)),
            )[0]
        model = kit.descend(who, round, model)[0]
        return {
            "logits": kit.logits(who.prototype, model, kit.public(round + 1))
        }, model

    def answers(
        self, kit: Kit, arrivals: Sequence[Arrival], round: int
    ) -> Iterator[tuple[Arrival, Tensor, Tensor]]:
        """Yield each arrival, its samples' places in the public set, its logits.

        Args:
            kit: knows the public samples of each round.
            arrivals: a late one answers about the samples that it was asked for.
            round: of the merge.
        """
        for arrival in arrivals:
            asked = round - arrival.staleness + 1
            yield arrival, kit.public_places(asked), arrival.values["logits"]
