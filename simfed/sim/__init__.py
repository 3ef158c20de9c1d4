"""The clock side: server, clients in flight, barrier, selection, blame.

No tensors, no torch.
"""

from simfed.sim.clock import Clock
from simfed.sim.server import Simulation
from simfed.sim.workload import RecordedRun, TimeOnlyWorkload

__all__ = ["Clock", "RecordedRun", "Simulation", "TimeOnlyWorkload"]
