"""FedKD of Wu et al. (2022): a teacher stays, and a small student travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

from simfed.ground.errors import InputError, check_known
from simfed.ground.method import (
    Arrival,
    Field,
    Losses,
    Method,
    Plan,
    Setting,
    Size,
    State,
    Values,
    Who,
    Work,
)
from simfed.learn.lowrank import count_most_entries, count_svd_flops, decode, encode
from simfed.learn.methods.options import SHARE, Ranged

if TYPE_CHECKING:
    from simfed.learn.kit import Kit


@dataclass(frozen=True)
class FedKDMutual(Ranged, Method):
    """Mutual distillation between each client's teacher and one common student.

    The teacher is the model of a client's prototype; the student, shared by all, the
    model of the prototype that `student` names. In each local step both see the same
    batch: the teacher descends CE_t + KL(student ‖ teacher) / (CE_t + CE_s), the
    student CE_s + KL(teacher ‖ student) / (CE_t + CE_s), of softmax outputs, the mean
    over samples. What is divided by is taken as it is, and so are the other's outputs:
    the paper leaves open where gradients stop, and these are its two objectives, each
    for its own model. Its loss between hidden states is for stacks of equal layers and
    is left out.

    The student's change travels up as singular vectors, layer by layer
    (`simfed.learn.lowrank`), the fewest that hold the round's share of the energy: it
    rises linearly from `energy_start` in the first round to `energy_end` in the last.
    The server decodes, takes the mean weighted by samples, encodes that with the same
    share, and moves the common student by what is decoded of it, as clients do: so both
    agree. Nothing is added to later uploads of what was left out.

    Down: the merges that a client has missed, each with its round, since the last
    upload of it that was merged, or the whole student where that is no longer (as for a
    client that takes part for the first time; the paper has everybody in every round);
    running statistics of the student. A participation whose upload was lost counts as
    missed. Up: the change, running statistics. Both sizes depend on what is learned;
    plans say the most. Kept: teacher, and the common student as last received. Each
    client is evaluated with its teacher, the model of its prototype. Charged: local
    training of both, and the decompositions (`fedkd-mutual/svd-…`, once per upload and
    once per merge). Policies have nothing to choose, so no reward is paid. Source: C.
    Wu et al., "Communication-efficient federated learning via knowledge distillation",
    Nature Communications 2022.
    """

    student: Annotated[
        str | None, "prototype of the student; the smallest if omitted"
    ] = None
    energy_start: Annotated[
        float, SHARE, "share of the energy kept in the first round"
    ] = 0.95
    energy_end: Annotated[float, SHARE, "the same in the last round"] = 0.98

    shares_add_up = True
    needs_classes = True
    weighs_samples = True
    personal = True
    sizes_vary = True

    def __post_init__(self) -> None:
        """Refuse options out of their range, and shares that fall."""
        super().__post_init__()
        if self.energy_end < self.energy_start:
            raise InputError(
                f"at least energy_start, {self.energy_start:g}",
                where="energy_end",
                got=self.energy_end,
            )

    # ---- from facts alone ------------------------------------------------------------

    @override
    def check(self, setting: Setting) -> None:
        if self.student is not None:
            what = "a prototype of this scenario:"
            check_known(self.student, setting.prototypes, what, where="student")
        student = self.size(setting)
        if not student.shapes:
            raise InputError(
                "a model whose facts state the shapes of its parameters",
                where="student",
                got=student.model,
            )

    def name(self, setting: Setting) -> str:
        """Return the name of the student's prototype: as asked for, or the smallest."""
        prototypes = setting.prototypes
        return self.student or min(
            prototypes, key=lambda name: prototypes[name].parameters
        )

    def size(self, setting: Setting) -> Size:
        """Sizes of the student's prototype."""
        return setting.prototypes[self.name(setting)]

    def energy(self, setting: Setting, round: int) -> float:
        """Return the share of the energy that a round keeps.

        It is `energy_start` in round 1 and `energy_end` in the last, linear between.
        """
        progress = (round - 1) / max(1, setting.rounds - 1)
        return self.energy_start + (self.energy_end - self.energy_start) * min(
            1.0, progress
        )

    @override
    def plan(self, setting: Setting, who: Who, round: int) -> Plan:
        size = self.size(setting)
        buffers = Field("buffers", size.buffers)
        teacher = setting.training(who)._replace(name="teacher")
        return Plan(
            {
                "student": Field("low-rank", 1 + size.parameters, bounded=True),
                "buffers": buffers,
            },
            (
                teacher,
                teacher._replace(model=size.model, name="student"),
                self._svd(size),
            ),
            {
                "update": Field(
                    "low-rank",
                    count_most_entries(size.shapes),
                    bounded=True,
                    layout=size.shapes,
                ),
                "buffers": buffers,
            },
        )

    @override
    def server_work(
        self, setting: Setting, arrived: Sequence[Who], round: int
    ) -> Sequence[Work]:
        return [self._svd(self.size(setting))]

    def _svd(self, size: Size) -> Work:
        """Return the decomposition of one update, or of a merge, as a unit of work."""
        # one whole update, not so many samples
        return Work("auxiliary", f"fedkd-mutual/svd-{size.model}", 1, name="svd")

    @override
    def auxiliary(self, setting: Setting) -> Mapping[str, float]:
        student = self.size(setting)
        return {self._svd(student).model: count_svd_flops(student.shapes)}

    # ---- learning --------------------------------------------------------------------

    @override
    def begin(self, kit: Kit) -> State:
        first = kit.initial(self.name(kit.setting))
        return {**first, "merges": [], "forgotten": 0, "held": {}}

    @override
    def begin_client(self, kit: Kit, who: Who) -> State:
        return {"teacher": kit.initial(who.prototype), "student": None, "holds": 0}

    @override
    def send(self, server: State, who: Who, round: int) -> Values:
        import torch

        weights, held = server["weights"], server["held"].get(str(who.client), 0)
        missed = [vector for number, vector in server["merges"] if number >= held]
        if held <= server["forgotten"] or sum(map(len, missed)) >= len(weights):
            sent = torch.cat([weights.new_tensor([_WHOLE]), weights])
        else:
            sent = torch.cat([weights.new_tensor([float(len(missed))]), *missed])
        return {"student": sent, "buffers": server["buffers"]}

    @override
    def train(
        self, kit: Kit, who: Who, round: int, down: Values, own: State
    ) -> tuple[Values, State]:
        import torch
        import torch.nn.functional as F

        from simfed.learn.uploads import make_divergence_error

        setting = kit.setting
        name, shapes = self.name(setting), self.size(setting).shapes
        common = _rebuild_student(down["student"], own["student"], own["holds"], shapes)
        models = {
            "teacher": {key: value.clone() for key, value in own["teacher"].items()},
            "student": {"weights": common.clone(), "buffers": down["buffers"].clone()},
        }
        prototypes = {"teacher": who.prototype, "student": name}
        descents = {key: kit.descent(round) for key in models}
        with kit.noise(who, round):
            for positions in kit.batches(who, round):
                samples, labels = kit.take_samples(positions)
                leaves, logits, own_losses = {}, {}, {}
                for key, model in models.items():
                    leaves[key] = model["weights"].clone().requires_grad_()
                    at_leaf = {**model, "weights": leaves[key]}
                    logits[key] = kit.forward(
                        prototypes[key], at_leaf, samples, training=True
                    )
                    own_losses[key] = F.cross_entropy(logits[key], labels)
                log_targets = {
                    key: z.detach().log_softmax(1) for key, z in logits.items()
                }
                total = sum(loss.detach() for loss in own_losses.values())
                for key, other in (("teacher", "student"), ("student", "teacher")):
                    mutual = F.kl_div(
                        logits[key].log_softmax(1),
                        log_targets[other],
                        reduction="batchmean",
                        log_target=True,
                    )
                    loss = own_losses[key] + mutual / total
                    [slope] = torch.autograd.grad(loss, leaves[key])
                    descents[key].step(models[key]["weights"], slope.clone())
        change = common - models["student"]["weights"]
        if not bool(change.isfinite().all()):  # which has no singular values
            where = f"client {who.client}, round {round}"
            raise make_divergence_error(
                f"{where}: update has values that are not finite numbers"
            )
        update = encode(change, shapes, self.energy(setting, round))
        after = {"teacher": models["teacher"], "student": common, "holds": round}
        return {"update": update, "buffers": models["student"]["buffers"]}, after

    @override
    def merge(
        self, kit: Kit, server: State, arrivals: Sequence[Arrival], round: int
    ) -> tuple[State, Losses]:
        import torch

        from simfed.learn.kit import mean_of

        shapes = self.size(kit.setting).shapes
        mean = mean_of(
            [
                {
                    "update": decode(a.values["update"], shapes)[0],
                    "buffers": a.values["buffers"],
                }
                for a in arrivals
            ],
            [a.who.samples * a.weight for a in arrivals],
        )
        vector = encode(mean["update"], shapes, self.energy(kit.setting, round))
        moved = torch.cat([vector.new_tensor([float(round)]), vector])
        merges, forgotten = [*server["merges"], [round, moved]], server["forgotten"]
        while merges and sum(len(change) for _, change in merges) >= len(
            server["weights"]
        ):
            # the student as a whole is shorter than what follows
            forgotten = merges.pop(0)[0]
        held = dict(server["held"])
        for a in arrivals:
            name = str(a.who.client)
            held[name] = max(held.get(name, 0), round - a.staleness)
        return {
            "weights": server["weights"] - decode(vector, shapes)[0],
            "buffers": mean["buffers"],
            "merges": merges,
            "forgotten": forgotten,
            "held": held,
        }, {}

    @override
    def model(self, server: State, own: State, who: Who) -> Values:
        teacher: Values = own["teacher"]
        return teacher


_WHOLE = -1.0


def _rebuild_student(
    sent: Any, held: Any, holds: int, shapes: Sequence[tuple[int, ...]]
) -> Any:
    """Return the common student at a client, flat weights.

    The server knows only of uploads that it has merged, so some merges may be sent
    again; those before `holds` are passed over.

    Args:
        sent: -1 and the weights as a whole, or how many merges follow and each with its
            round.
        held: the client's copy, with all merges before round `holds`.
        holds: 0 where it has none.
        shapes: of the student's layers.
    """
    if float(sent[0]) == _WHOLE:
        return sent[1:]
    weights, at = held, 1
    for _ in range(int(sent[0])):
        number = int(sent[at])
        update, at = decode(sent, shapes, at + 1)
        if number >= holds:
            weights = weights - update
    return weights
