"""Costs of PyTorch's operators: FLOPs by formula, free, composed, or unknown.

PyTorch's own formulas (`torch.utils.flop_counter`) are for matrix products,
convolutions and some kernels of attention; added here are what it leaves out: recurrent
layers, products with vectors, attention and encoder layers as CPUs run them, look-ups
of embeddings. A multiplication with its addition is two FLOPs; biases, activations and
normalisation are not counted, as in `simfed.learn.catalogue`. Imports PyTorch: only for
code that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

Formula = Callable[..., float]
"""Arguments of an operator → its FLOPs."""


_MEMORY_BOUND = (
    "relu",
    "threshold",
    "gelu",
    "silu",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "elu",
    "sigmoid",
    "tanh",
    "native_batch_norm",
    "native_layer_norm",
    "native_group_norm",
    "_native_batch_norm",
    "max_pool",
    "avg_pool",
    "adaptive",
    "_adaptive",
    "mean",
    "sum",
    "add",
    "sub",
    "mul",
    "div",
    "cat",
    "stack",
    "copy",
    "clone",
    "native_dropout",
    "bernoulli",
    "_softmax",
    "_log_softmax",
    "nll_loss",
    "upsample",
    "constant_pad",
    "masked_fill",
    "where",
    "sqrt",
    "pow",
    "exp",
)
"""Beginnings of the names of operators whose time is that of memory; their backward
operators begin with the same."""


_UNPRICED = ("_fft", "linalg", "_linalg", "cholesky", "triangular_solve", "_cdist")
"""Beginnings of the names of operators that compute much and have no formula."""


@cache
def find_formula(operator: object) -> Formula | None:
    """Return the formula of an operator's FLOPs, None where there is none."""
    packet = _find_packet(operator)
    return flop_registry.get(packet) or _FORMULAS.get(packet)


@cache
def moves_numbers(operator: object) -> bool:
    """Return whether the time of an operator without a formula is that of memory."""
    name = str(_find_packet(operator).__name__)
    return name.startswith(_MEMORY_BOUND) and not name.startswith("expand")


@cache
def list_unpriced(operator: object) -> list[str]:
    """Return the name of an operator that computes much and has no formula, if so."""
    name = str(_find_packet(operator).__name__)
    return [name.strip("_")] if name.startswith(_UNPRICED) else []


def list_learned(arguments: object) -> list[Tensor]:
    """Return the learned tensors among an operator's arguments.

    Of a view it is what that is a view of.
    """
    bases = [t if t._base is None else t._base for t in _list_tensors(arguments)]
    return [base for base in bases if base.is_leaf and base.requires_grad]


def _list_tensors(arguments: object) -> list[Tensor]:
    """Return the tensors among arguments or results, those in lists included."""
    if isinstance(arguments, Tensor):
        return [arguments]
    if not isinstance(arguments, (list, tuple)):
        return []
    return [tensor for argument in arguments for tensor in _list_tensors(argument)]


def _find_packet(operator: object) -> Any:
    """Return an operator without its overload (`aten.mm` of `aten.mm.default`)."""
    return getattr(operator, "overloadpacket", operator)


def count_numbers(arguments: object, result: object) -> float:
    """Return how many numbers an operator without a formula goes through at least.

    They are those of its largest argument or result.
    """
    if isinstance(arguments, tuple) and arguments and isinstance(arguments[0], list):
        return float(sum(tensor.numel() for tensor in _list_tensors(arguments[0])))
    tensors = _list_tensors((arguments, result))
    return float(max((tensor.numel() for tensor in tensors), default=0))


# ---- formulas that PyTorch does not have ---------------------------------------------
# Each gets an operator's arguments by place, and those that it does not ask for.


def _count_rows(tensor: Tensor) -> int:
    return math.prod(tensor.shape[:-1])


def _count_rnn_layer(
    inputs: Tensor, w_in: Tensor, w_hidden: Tensor, *_: object, **__: object
) -> float:
    """Return the FLOPs of one recurrent layer and direction.

    At each instant the gates are products with inputs and with hidden values.
    """
    return float(2 * _count_rows(inputs) * (w_in.numel() + w_hidden.numel()))


def _count_rnn(
    inputs: Tensor, weights: list[Tensor], *_: object, **__: object
) -> float:
    """Return the FLOPs of all layers: twice the entries of matrices, per row."""
    return float(
        2 * _count_rows(inputs) * sum(w.numel() for w in weights if w.ndim == 2)
    )


def _double_formula(formula: Formula) -> Formula:
    """Return the formula of a backward operator: gradients by inputs and by weights."""
    return lambda *arguments, **options: 2.0 * formula(*arguments, **options)


def _skip_addend(formula: Formula) -> Formula:
    """Return the FLOPs of a product; its first argument is added at no cost."""
    return lambda _, *factors, **options: formula(*factors, **options)


def _count_inner(left: Tensor, right: Tensor, *_: object, **__: object) -> float:
    return float(2 * left.numel())


def _count_product(left: Tensor, right: Tensor, *_: object, **__: object) -> float:
    return float(2 * left.numel() * right.shape[-1])


def _count_attention(
    query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> float:
    return float(sdpa_flop_count(query.shape, key.shape, value.shape))


def _count_attention_backward(*arguments: Tensor, **_: object) -> float:
    """Return the FLOPs of the gradients, queries, keys and values."""
    return float(sdpa_backward_flop_count(*(tensor.shape for tensor in arguments[:4])))


def _count_self_attention(
    inputs: Tensor, width: int, qkv: Tensor, projection: Tensor
) -> float:
    """Return the FLOPs of in and out projections, and of two products.

    The products are of every instant with every other.
    """
    instants = inputs.shape[-2] if inputs.ndim == 3 else inputs.shape[0]
    projections = qkv.numel() + projection.numel()
    return float(2 * _count_rows(inputs) * (projections + 2 * instants * width))


def _count_encoder_layer(*arguments: Any, **_: object) -> float:
    """Return the FLOPs of an encoder layer.

    Arguments: inputs, width, heads, qkv, its bias, projection, its bias, three options,
    epsilon, both norms with their biases, first, its bias, second, and more that costs
    nothing.
    """
    inputs, width, _heads, qkv, _bias, projection = arguments[:6]
    first, second = arguments[14], arguments[16]
    inner = float(2 * _count_rows(inputs) * (first.numel() + second.numel()))
    return _count_self_attention(inputs, width, qkv, projection) + inner


def _count_multi_head(*arguments: Any, **_: object) -> float:
    """Return the FLOPs of multi-head attention of a sequence with itself.

    Arguments: query, key, value, width, heads, qkv, bias, projection, and more.
    """
    query, width, qkv, projection = (arguments[place] for place in (0, 3, 5, 7))
    return _count_self_attention(query, width, qkv, projection)


def _count_results(*_: object, out_val: object, **__: object) -> float:
    return float(_list_tensors(out_val)[0].numel())


def _count_gradients(gradients: Tensor, *_: object, **__: object) -> float:
    return float(gradients.numel())


def _count_bag(values: Tensor, indices: Tensor, *_: object, **__: object) -> float:
    """Return one operation per number that is looked up.

    Args:
        values: the weights, or backward their gradients.
        indices: of the rows that are looked up.
    """
    return float(indices.numel() * values.shape[-1])


_BY_NAME: dict[str, Formula] = {
    "mkldnn_rnn_layer": _count_rnn_layer,
    "mkldnn_rnn_layer_backward": _double_formula(_count_rnn_layer),
    "_cudnn_rnn": _count_rnn,
    "_cudnn_rnn_backward": _double_formula(_count_rnn),
    "mv": _count_inner,
    "dot": _count_inner,
    "vdot": _count_inner,
    "addmv": _skip_addend(_count_inner),
    "addmv_": _skip_addend(_count_inner),
    "_addmm_activation": _skip_addend(_count_product),
    "addbmm": _skip_addend(_count_product),
    "_scaled_dot_product_flash_attention_for_cpu": _count_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _count_attention_backward,
    "_transformer_encoder_layer_fwd": _count_encoder_layer,
    "_native_multi_head_attention": _count_multi_head,
    "embedding": _count_results,
    "embedding_dense_backward": _count_gradients,
    "_embedding_bag": _count_bag,
    "_embedding_bag_forward_only": _count_bag,
    "_embedding_bag_backward": _count_bag,
}
_FORMULAS: dict[object, Formula] = {
    packet: formula
    for name, formula in _BY_NAME.items()
    if (packet := getattr(torch.ops.aten, name, None)) is not None
}
