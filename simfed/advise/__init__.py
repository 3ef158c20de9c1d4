"""Which way of compressing each group of devices should use, found by a race.

`advise(path)` plays candidates as the ever longer stages of a study and returns its
`Advice`; `advise_by_clock(path)` says what a rule of thumb says, without learning.

`candidates` has what can race, `race` the stages, `clock` the rule of thumb, `advice`
what comes out. Begin reading with `race.advise`.
"""

from simfed.advise.advice import Advice
from simfed.advise.clock import advise_by_clock
from simfed.advise.race import advise

__all__ = ["Advice", "advise", "advise_by_clock"]
