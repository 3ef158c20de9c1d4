"""The clock side: server, clients in flight, barrier, selection, blame.

No tensors, no torch. A `Simulation` (server) makes one merge after another through its
`Aggregator`, which starts clients of a `Population`; a `Clock` carries each as a
process (clock), whose record is a `Flight` of `Leg`s (flight). When a merge is done,
`blame` says who held it up, and `rows` makes tables of it. With edge servers (edges)
the same happens at two levels; `workload` is learning's stand-in in a time-only run.
"""

from simfed.sim.clock import Clock
from simfed.sim.server import Simulation
from simfed.sim.workload import RecordedRun, TimeOnlyWorkload

__all__ = ["Clock", "RecordedRun", "Simulation", "TimeOnlyWorkload"]
