"""What the server's processor does between the last upload and the next round.

One after another on one processor: rebuild each contribution's dense vector, compute each client
model's logits on the public set (N passes, one per client model), distil each prototype. Clients
wait meanwhile. What is ignored: overlap with uploads that are still under way, averaging (a pass
over the weights), and the evaluation on the test set, which is the experimenter's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simfed.device import Device
from simfed.scenario import Scenario
from simfed.sim.flight import Flight

__all__ = ["Duty", "ServerLoad", "Work", "played_out"]


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of server work: `kind` is that of its span."""

    kind: str
    name: str
    client: int | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """How much there is to do beside the contributions."""

    public_samples: int
    """Images per pass over the public set of one round; 0: no knowledge is distilled (FedAvg)."""
    distillation_steps: int
    models: Mapping[str, str]
    """Prototype → model: each is distilled, whether or not one of its clients took part."""

    @classmethod
    def of(cls, scenario: Scenario) -> ServerLoad:
        """The load that a scenario implies."""
        data = scenario.dataset
        samples = data.public_batch or data.public
        models = {name: prototype.model for name, prototype in scenario.prototypes.items()}
        samples = samples if scenario.method == "fedkd" else 0
        return cls(samples, scenario.distillation.steps, models)


@dataclass(frozen=True, slots=True)
class Duty:
    """One piece of work in nominal seconds."""

    kind: str
    name: str
    client: int | None
    nominal_s: float


def duties(device: Device, flights: Sequence[Flight], load: ServerLoad) -> list[Duty]:
    """The pieces of one merge, in order."""
    found = [
        Duty(
            "decompression", f.contribution.arm, f.client,
            device.nominal_s("decompression", model=f.task.model,
                             strategy=f.contribution.arm, k=f.contribution.k),
        )
        for f in flights
    ]  # fmt: skip
    if load.public_samples == 0:
        return found
    found += [
        Duty(
            "logits", f.task.prototype, f.client,
            device.nominal_s("inference", model=f.task.model, samples=load.public_samples),
        )
        for f in flights
    ]  # fmt: skip
    for prototype, model in load.models.items():
        step_s = device.nominal_s("distillation", model=model, samples=load.public_samples)
        found.append(Duty("distillation", prototype, None, load.distillation_steps * step_s))
    return found


def played_out(
    device: Device, flights: Sequence[Flight], load: ServerLoad, start_at_s: float, round: int
) -> list[Work]:
    """The pieces of one merge with the time each takes when they start at `start_at_s`.

    The processor's noise and load are applied to each kind of work as a whole and spread over its
    pieces in proportion.
    """
    pieces = duties(device, flights, load)
    done: list[Work] = []
    for kind in dict.fromkeys(piece.kind for piece in pieces):
        of_kind = [piece for piece in pieces if piece.kind == kind]
        nominal_s = sum(piece.nominal_s for piece in of_kind)
        phase = "inference" if kind == "logits" else kind  # a profile's word for the same work
        total_s = device.duration_s(nominal_s, start_at_s, round=round, phase=phase)
        factor = total_s / nominal_s if nominal_s > 0 else 0.0
        done += [Work(p.kind, p.name, p.client, p.nominal_s * factor) for p in of_kind]
        start_at_s += total_s
    return done
