"""Codecs, error feedback, and the bytes of a payload on the wire.

    feedback = with_error_feedback(TopK())
    payload, residual = feedback.encode(update, residual, k, rng)      # pure
    payload = feedback.encode_in_place(update, residual, k, rng)       # on flat buffers
    payload.wire_bytes("fixed"); payload.dense(); undo(residual, payload)

    # as scenarios write it; without a residual
    codec = codec_from_spec({"chain": ["top-k", {"qsgd": {"levels": 4}}]})
    payload, state = codec.encode(update, state, rng, k)
    codec.decode(payload); codec.size_bytes(d, k, "fixed")
    codec.to_bytes(payload, "fixed"); codec.from_bytes(data, d, k, "fixed")

A strategy of your own is one class with the methods of `Sparsifier`, `ValueCodec` or
`Codec`, checked by `simfed.testing.check_codec`. Importing this package imports NumPy
and no torch.
"""

from __future__ import annotations

from simfed.compress.codec import (
    Chain,
    Codec,
    Memory,
    Payload,
    ValueCodec,
    codec_from_spec,
)
from simfed.compress.feedback import (
    ErrorFeedback,
    WithoutFeedback,
    feedback_for,
    undo,
    with_error_feedback,
)
from simfed.compress.layers import PerLayer
from simfed.compress.lowrank import SVD, PowerSGD
from simfed.compress.own import DGC, EF21, AdaComp, DetachedEF
from simfed.compress.quantise import BF16, FP16, QSGD, EFSign, TernGrad
from simfed.compress.selection import random_k_indices, top_k_indices
from simfed.compress.slices import sliced
from simfed.compress.sparsifiers import (
    Dense,
    PeriodicK,
    RandomK,
    Selection,
    SharedRandomK,
    Sparsifier,
    TopK,
)
from simfed.ground.lazy import load_names

__all__ = [
    "BF16",
    "DGC",
    "EF21",
    "FP16",
    "QSGD",
    "SVD",
    "AdaComp",
    "Chain",
    "Codec",
    "Dense",
    "DetachedEF",
    "EFSign",
    "ErrorFeedback",
    "Memory",
    "Payload",
    "PerLayer",
    "PeriodicK",
    "PowerSGD",
    "RandomK",
    "Selection",
    "SharedRandomK",
    "Sparsifier",
    "TernGrad",
    "TopK",
    "ValueCodec",
    "WithoutFeedback",
    "codec_from_spec",
    "feedback_for",
    "random_k_indices",
    "sliced",
    "top_k_indices",
    "undo",
    "with_error_feedback",
]

_HOMES = {"Choice": "choice", "list_choices": "choice"}

__getattr__ = load_names(__name__, _HOMES)
