"""A node's device in one participation, whose work takes what the app that does it is charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import partial

import numpy as np
import simpy

from simfed.device import Device
from simfed.flower.charging import Charges
from simfed.flower.computing import HostSpent
from simfed.flower.crew import AppCrew, Ticket
from simfed.flower.messages import Mail
from simfed.flower.work import PACED, Answer, Tell
from simfed.flower.workfile import WorkPrice
from simfed.ground.errors import RunFailed
from simfed.ground.method import Work
from simfed.sim.flight import Flight

__all__ = ["NodeAtWork"]

_PACES, _PACE_ERROR = 6, 0.02
"""How often an app is played for a clock that agrees with what its reply is charged, and how nearly
it has to."""


class NodeAtWork:
    """A node's device in one participation, in the words of `simfed.sim.clock`: what its work
    takes is known when the app has done it."""

    def __init__(
        self,
        flight: Flight,
        mail: Mail,
        device: Device,
        crew: AppCrew,
        ticket: Ticket,
        charges: Charges,
        scatter_rng: Callable[[], np.random.Generator],
        over: simpy.Event,
    ) -> None:
        """`ticket`: under which the `crew` works on the message; `scatter_rng`: of how this message
        scatters around its law; `over`: comes when the participation is."""
        self._flight = flight
        self.mail = mail
        self._device = device
        self._crew = crew
        self._ticket = ticket
        self._charges = charges
        self._scatter_rng = scatter_rng
        self.over = over
        self.answer: Answer | None = None
        self._price = WorkPrice(0.0)

    def forget_call(self) -> None:
        """Nobody waits for the app's answer any more."""
        if self.answer is None:
            self._crew.drop(self._ticket)

    def charges(self, quantity: str, model: str) -> bool:
        """What a message takes to be handled is part of the app's work."""
        return False

    def stretch_s(self, work: Work) -> float:
        """Seconds of all of a unit's times in a row: an app's work is one."""
        return work.times * self.work_s(work)

    def work_s(self, work: Work) -> float:
        """Seconds of the app's work, which is done now."""
        begun_s = self.over.env.now
        tell = partial(self._tell, work, begun_s)
        answer = self._compute(tell)
        self._price = self._charges.price_answer(self.mail, answer, self._device)
        before = (math.nan, math.nan)
        for _ in range(_PACES):
            if not self._charges.paces or answer.readings < 2 or answer.error is not None:
                return self._price.work_s
            worked_s = self._worked_s(work, self._price.work_s, begun_s)
            if abs(answer.paced_s - worked_s) <= _PACE_ERROR * worked_s:
                return self._price.work_s
            now = answer.paced_s, worked_s
            pairs = zip(now, before, strict=True)
            if all(abs(new - old) <= _PACE_ERROR * old for new, old in pairs):
                break  # a budget that is spent, and a price, whatever the clock shows
            before = now
            pace_s = worked_s / (answer.readings - 1)
            answer = self._compute(tell, pace_s)
            self._price = self._charges.price_answer(self.mail, answer, self._device, again=True)
        raise RunFailed(
            f"the client app of node {self.mail.client} was told {answer.paced_s:g} s by its clock "
            f"for what is charged {worked_s:g} s; {PACED}"
        )

    def _compute(self, tell: Tell, pace_s: float | None = None) -> Answer:
        """Have the app work on the message now; `tell` says what time it is there, `pace_s` that it
        has done so already, and how its clock is to go this time."""
        if pace_s is None:
            answer = self._crew.fetch(self._ticket, tell)
        else:
            answer = self._crew.again(self._ticket, tell, pace_s)
        if answer.exited:
            self._charges.note_raised(f"ended its process, and so its node ({answer.error})")
        elif answer.error is not None:
            self._charges.note_raised(f"raised {answer.error}")
        self.answer = answer
        return answer

    def _worked_s(self, work: Work, nominal_s: float, begun_s: float) -> float:
        """What the device takes for so much work, which it has not done yet."""
        device, self._device = self._device, copy(self._device)
        key = self._flight.task.key
        worked_s = self._scattered_s(nominal_s, begun_s, round=key, phase=work.quantity)
        self._device = device
        return worked_s

    def _tell(self, work: Work, begun_s: float, spent: HostSpent) -> float:
        """The instant at which the device, which began with this work at `begun_s`, has done what
        the app has spent."""
        nominal_s = self._charges.price_so_far(self.mail, spent, self._device)
        if nominal_s <= 0:
            return begun_s
        return begun_s + self._worked_s(work, nominal_s, begun_s)

    def duration_s(
        self,
        nominal_s: float,
        start_at_s: float,
        *,
        round: int | str,
        phase: str,
        nth: int = 0,
        steps: float = 1.0,
    ) -> float:
        """With the device's speed, load and noise, or the scatter that was measured of the app
        where it has no noise; what the app slept and waited is no work, and how many steps it made
        is not known."""
        assert self.answer is not None
        work_s = self._scattered_s(nominal_s, start_at_s, round=round, phase=phase, nth=nth)
        return work_s + self.answer.spent.slept_s + self._price.waits_s

    def _scattered_s(
        self, nominal_s: float, start_at_s: float, *, round: int | str, phase: str, nth: int = 0
    ) -> float:
        if self._price.noise is not None and self._device.processor.noise is None:
            nominal_s *= self._price.noise.factor(self._scatter_rng())
        return self._device.duration_s(nominal_s, start_at_s, round=round, phase=phase, nth=nth)
