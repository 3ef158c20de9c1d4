"""The clock side: server, clients in flight, barrier, selection, blame. No tensors, no torch."""

from simfed.sim.server import Simulation
from simfed.sim.workload import PrototypeSize, Recorded, TimeOnlyWorkload

__all__ = ["PrototypeSize", "Recorded", "Simulation", "TimeOnlyWorkload"]
