"""A node's device in one participation, whose work an app does.

The clock asks it for seconds as it asks any device (`simfed.device.Device`); it has the
app work when the clock asks first, and says what that is charged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simpy

from simfed.device import Device
from simfed.flower.charging import RunPrices
from simfed.flower.crew import AppCrew, Ticket
from simfed.flower.messages import Mail
from simfed.flower.price import MessagePrice
from simfed.flower.work import Answer
from simfed.ground.method import Work
from simfed.record.schema import START


@dataclass(eq=False, slots=True)
class NodeAtWork:
    """A node's device in one participation, as `simfed.sim.clock` asks for it.

    What its work takes is known when the app has done it.
    """

    mail: Mail
    device: Device
    crew: AppCrew
    ticket: Ticket
    """Under which the crew works on the message."""
    prices: RunPrices
    scatter_rng: Callable[[], np.random.Generator]
    """Of how this message scatters around its law."""
    over: simpy.Event
    """Comes when the participation is over."""
    answer: Answer | None = None
    price: MessagePrice = field(default_factory=MessagePrice)

    def charges(self, quantity: str, model: str) -> bool:
        """Return True for the app's work; a message's handling is part of it."""
        return False

    def stretch_s(self, work: Work) -> float:
        """Return the seconds of all of a unit's times: an app's work is one."""
        return work.times * self.work_s(work)

    def work_s(self, work: Work) -> float:
        """Return the seconds of a unit on a device of speed 1.

        It is the start of the node's process, or the app's work, which is done now.
        """
        if self.answer is None:
            self._work()
        return self.price.start_s if work.kind == START else self.price.work_s

    def _work(self) -> None:
        """Have the app work on the message."""
        answer = self.answer = self.crew.fetch(self.ticket)
        if answer.error is not None:
            exited = f"ended its process, and so is gone ({answer.error})"
            what = exited if answer.exited else f"raised {answer.error}"
            self.prices.note_raised(self.mail.client, what)
        if answer.readings > 1 and not answer.spent.slept_s:
            self.prices.warn(
                "the app on a node read its clock more than once on a message: sleep "
                "alone moves it, as work is charged when the reply is there, so what "
                "the app times of its own work means nothing"
            )
        self.price = self.prices.price_answer(self.mail, answer, self.device)

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
        """Return seconds on the device, with its speed, load and noise.

        What the app slept and waited comes on top. Where the device has no noise, work
        scatters as was measured of the app.

        Args:
            nominal_s: on a device of speed 1.
            start_at_s: the instant at which it begins.
            round: names the draw of noise, as `phase` and `nth` do.
            phase: `auxiliary` for the start of the process.
            nth: of several in a phase.
            steps: not used: how many the app made is not known.
        """
        assert self.answer is not None
        if phase == "auxiliary":  # the start of its process
            return self.device.duration_s(
                nominal_s, start_at_s, round=round, phase=phase, nth=nth
            )
        if self.price.noise is not None and self.device.processor.noise is None:
            nominal_s *= self.price.noise.factor(self.scatter_rng())
        work_s = self.device.duration_s(
            nominal_s, start_at_s, round=round, phase=phase, nth=nth
        )
        return work_s + self.answer.spent.slept_s + self.price.waits_s
