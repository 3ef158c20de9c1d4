"""Counts the work of foreign PyTorch code: its passes through models, forward and backward.

A *pass* is one outermost call of a module, together with the backward work that follows it: with
backward work it is a step of training, without it is inference. Counted are the FLOPs of matrix
products, convolutions and attention (PyTorch's own formulas), as operators run; the parameters are
the module's. What is ignored: other operators, optimizers' arithmetic, reading of data; what runs
in threads or processes that the code starts; operators without a module around them count as one
pass without parameters.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Counted", "Meter", "Pass"]


@dataclass(slots=True)
class Pass:
    """One pass through a model, or loose operators."""

    parameters: int
    samples: int
    flops: float = 0.0
    trained: bool = False
    """Backward work followed."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted in one stretch of code."""

    passes: tuple[Pass, ...] = ()

    @property
    def nothing(self) -> bool:
        """No operator was seen."""
        return not self.passes


class Meter:
    """Counts between `take` and `take`, in the thread that is `watched`."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []
        self._depth = 0
        self._last: Pass | None = None

    def take(self) -> Counted:
        """What was counted since the last time."""
        found = Counted(tuple(self._passes))
        self._passes, self._last = [], None
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what this thread does meanwhile; nothing where PyTorch is not imported."""
        torch = sys.modules.get("torch")
        if torch is None:
            yield
            return
        _hook(torch)
        before = _meters.get(threading.get_ident())
        _meters[threading.get_ident()] = self
        try:
            with _make_mode()(self):
                yield
        finally:
            self._depth = 0
            if before is None:
                del _meters[threading.get_ident()]
            else:
                _meters[threading.get_ident()] = before

    def enter(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """A module is called."""
        self._depth += 1
        if self._depth == 1:
            parameters = sum(p.numel() for p in module.parameters())
            self._last = Pass(parameters, _samples(inputs))
            self._passes.append(self._last)

    def leave(self) -> None:
        """A module has answered, or failed."""
        self._depth = max(self._depth - 1, 0)

    def count(self, flops: float, *, backward: bool) -> None:
        """An operator with so much work ran."""
        last = self._last
        if last is None:
            last = self._last = Pass(0, 1)
            self._passes.append(last)
        last.flops += flops
        last.trained |= backward


_meters: dict[int, Meter] = {}
"""Thread → its meter."""
_hooked: list[Any] = []


def _hook(torch: Any) -> None:
    """Let every module tell its thread's meter when it is called; once per process."""
    if _hooked:
        return

    def before(module: Any, inputs: tuple[Any, ...]) -> None:
        meter = _meters.get(threading.get_ident())
        if meter is not None:
            meter.enter(module, inputs)

    def after(module: Any, inputs: Any, outputs: Any) -> None:
        meter = _meters.get(threading.get_ident())
        if meter is not None:
            meter.leave()

    hooks = torch.nn.modules.module
    _hooked.append(hooks.register_module_forward_pre_hook(before))
    _hooked.append(hooks.register_module_forward_hook(after, always_call=True))


def _make_mode() -> Callable[[Meter], Any]:
    if not _modes:
        _modes.append(_mode())
    return _modes[0]


_modes: list[Callable[[Meter], Any]] = []


def _mode() -> Callable[[Meter], Any]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Mode(TorchDispatchMode):
        """Sees every operator of its thread, those of backward passes included."""

        def __init__(self, meter: Meter) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._meter = meter

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            formula = flop_registry.get(func.overloadpacket)
            if formula is not None:
                # while autograd runs a graph, and only then, it has one under way
                backward = torch._C._current_graph_task_id() != -1
                flops = float(formula(*args, **(kwargs or {}), out_val=out))
                self._meter.count(flops, backward=backward)
            return out

    return Mode


def _samples(inputs: tuple[Any, ...]) -> int:
    """How many samples a module was given: the length of its first tensor."""
    for given in inputs:
        shape = getattr(given, "shape", None)
        if shape is not None and len(shape):
            return max(1, int(shape[0]))
    return 1
