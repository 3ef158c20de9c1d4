"""What a client sends: compression strategies, error feedback, and bytes on the wire.

    feedback = with_error_feedback(TopK())
    payload, residual = feedback.encode(update, residual, k, rng)      # pure
    payload = feedback.encode_in_place(update, residual, k, rng)       # on flat buffers
    payload.wire_bytes("fixed"); payload.dense(); undo(residual, payload)

A strategy of your own is one class with the methods of `Compressor`, checked by
`simfed.testing.check_compressor`. Importing this package imports NumPy and no torch.
"""

from simfed.compress import wire
from simfed.compress.compressors import Compressor, Dense, PeriodicK, RandomK, Selection, TopK
from simfed.compress.feedback import ErrorFeedback, Payload, undo, with_error_feedback
from simfed.compress.selection import random_k_indices, top_k_indices

__all__ = [
    "Compressor",
    "Dense",
    "ErrorFeedback",
    "Payload",
    "PeriodicK",
    "RandomK",
    "Selection",
    "TopK",
    "random_k_indices",
    "top_k_indices",
    "undo",
    "wire",
    "with_error_feedback",
]
