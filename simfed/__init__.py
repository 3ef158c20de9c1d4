"""simfed: a discrete-event simulator of federated learning."""

from simfed.version import VERSION as __version__

__all__ = ["__version__"]
