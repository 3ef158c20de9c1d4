"""Counts the work of foreign PyTorch code: FLOPs, steps of training, passes.

Operators are seen where PyTorch dispatches them, so it does not matter which modules or
functions called them. Their FLOPs are those of `torch.utils.flop_counter`, and of
formulas for what it leaves out (`simfed.flower.flops`): recurrent layers, look-ups of
embeddings, products with vectors. A *step* of training is one backward run, with all
that autograd noted for it; a *pass* of inference is one call of a module with
parameters from outside of any other, while autograd is off, or of any where nothing is
trained. So passes of all lengths are one sum, of which a message has a mean.

Activations, normalisation, pooling and sums move numbers and do next to nothing with
them: counted are the bytes that they read and write. What is ignored: other operators
without a formula; optimizers' arithmetic, which the price of a step has in its bytes;
reading of data; what runs in threads or processes that the code starts.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

_BYTES_PER_NUMBER = 8.0
"""A 32-bit number is read, and one is written."""


class PassSum(NamedTuple):
    """Steps, or passes, of one stretch of code, all together."""

    times: float = 0
    flops: float = 0.0
    moved_bytes: float = 0.0
    """Read and written by operators that do next to nothing else with them."""


NO_WORK = PassSum()


@dataclass(frozen=True, slots=True)
class WorkCount:
    """The counts of one stretch of code."""

    training: PassSum = NO_WORK
    inference: PassSum = NO_WORK
    parameters: int = 0
    """Parameters of the models that it used."""
    unpriced: frozenset[str] = frozenset()
    """Names of operators that compute much and have no formula."""

    @property
    def flops(self) -> float:
        """Floating-point operations of all together."""
        return self.training.flops + self.inference.flops


class FlopMeter:
    """Counts the work of a thread, from one `collect` to the next.

    `watched` makes it the thread's meter; PyTorch's hooks and dispatch mode tell it.
    """

    def __init__(self) -> None:
        self._depth = 0
        """The depth of the module that is being called, below the outermost one with
        parameters."""
        self._optimizing = False
        self._reset()

    def _reset(self) -> None:
        """Begin to count anew."""
        self._flops, self._bytes, self._calls = [0.0, 0.0], [0.0, 0.0], [0, 0]
        """While autograd is off, and on; of modules with parameters called from
        outside."""
        self._steps, self._run = 0, -1
        self.unpriced: set[str] = set()
        self._models: dict[int, int] = {}
        """Outermost module → how many parameters it has."""
        self._leaves: dict[int, int] = {}
        """Tensors that are learned outside of modules in the step under way → their
        sizes."""
        self._most_leaves = 0

    def collect(self) -> WorkCount:
        """Return what was counted since the last call; counting begins anew."""
        off, on = (
            PassSum(*one)
            for one in zip(self._calls, self._flops, self._bytes, strict=True)
        )
        # nothing was trained: with autograd on it is inference as well
        if not self._steps:
            sums = (a + b for a, b in zip(off, on, strict=True))
            off, on = PassSum._make(sums), NO_WORK
        self._begin_step()
        counted = WorkCount(
            on._replace(times=self._steps),
            off._replace(times=max(off.times, int(off.flops > 0))),
            max(sum(self._models.values()), self._most_leaves),
            frozenset(self.unpriced),
        )
        self._reset()
        return counted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what this thread does in the block.

        Nothing is counted where PyTorch is not imported by then.
        """
        if "torch" not in sys.modules:
            yield
            return
        _register_hooks()
        thread = threading.get_ident()
        _meters[thread] = self
        try:
            with _make_mode_class()(self):
                yield
        finally:
            self._depth, self._optimizing = 0, False
            del _meters[thread]

    # ---- what happens ----------------------------------------------------------------

    def enter(self, module: nn.Module, *, grad: bool) -> None:
        """Note that a module is called.

        Args:
            module: what is called; the outermost one with parameters counts.
            grad: autograd is on.
        """
        if self._depth:
            self._depth += 1
            return
        parameters = sum(parameter.numel() for parameter in module.parameters())
        if parameters:
            self._depth = 1
            self._models[id(module)] = parameters
            self._calls[grad] += 1

    def leave(self) -> None:
        """Note that the module entered last has returned or raised."""
        self._depth = max(self._depth - 1, 0)

    def optimize(self, *, begins: bool) -> None:
        """Note that an optimizer's step begins or ends.

        What runs inside is no model's work.
        """
        self._optimizing = begins

    def count(
        self, flops: float, run: int, *, grad: bool, learned: list[Tensor]
    ) -> None:
        """Note an operator with a formula.

        Args:
            flops: by the formula.
            run: number of autograd's backward run under way, -1 for none.
            grad: autograd is on.
            learned: what the operator was given of what is learned.
        """
        if run not in (-1, self._run):
            self._steps += 1
            self._run = run
            self._begin_step()
        if run == -1 and not self._depth:
            self._leaves |= {id(tensor): tensor.numel() for tensor in learned}
        self._flops[grad or run != -1] += flops

    def _begin_step(self) -> None:
        self._most_leaves = max(self._most_leaves, sum(self._leaves.values()))
        self._leaves = {}

    def move(self, numbers: float, run: int, *, grad: bool) -> None:
        """Note an operator whose time is that of memory.

        Args:
            numbers: so many it goes through.
            run: as for `count`.
            grad: as for `count`.
        """
        if not self._optimizing or run != -1 or self._depth:
            self._bytes[grad or run != -1] += _BYTES_PER_NUMBER * numbers


_meters: dict[int, FlopMeter] = {}
"""Thread → its meter."""


@lru_cache(maxsize=1)
def _register_hooks() -> None:
    """Let every module and optimizer tell its thread's meter when it is called.

    Once per process.
    """
    import torch
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    def tell(
        happen: Callable[[FlopMeter, tuple[Any, ...]], None],
    ) -> Callable[..., None]:
        def hook(*arguments: Any) -> None:
            meter = _meters.get(threading.get_ident())
            if meter is not None:
                happen(meter, arguments)

        return hook

    enter = tell(lambda meter, call: meter.enter(call[0], grad=torch.is_grad_enabled()))
    leave = tell(lambda meter, _: meter.leave())
    begin = tell(lambda meter, _: meter.optimize(begins=True))
    end = tell(lambda meter, _: meter.optimize(begins=False))
    modules.register_module_forward_pre_hook(enter)
    modules.register_module_forward_hook(leave, always_call=True)
    optimizers.register_optimizer_step_pre_hook(begin)
    optimizers.register_optimizer_step_post_hook(end)


@lru_cache(maxsize=1)
def _make_mode_class() -> Callable[[FlopMeter], AbstractContextManager[object]]:
    import torch
    from torch._ops import OpOverload
    from torch.utils._python_dispatch import TorchDispatchMode

    from simfed.flower.flops import (
        count_numbers,
        find_formula,
        list_learned,
        list_unpriced,
        moves_numbers,
    )

    class MeterMode(TorchDispatchMode):
        """Sees every operator of its thread, those of backward passes included."""

        def __init__(self, meter: FlopMeter) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._meter = meter

        def __torch_dispatch__(
            self, func: Any, types: object, args: Any = (), kwargs: Any = None
        ) -> object:
            kwargs = kwargs or {}
            formula = find_formula(func)
            if formula is None and isinstance(func, OpOverload):
                with self:  # as inference mode leaves it: its parts are counted
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            result = func(*args, **kwargs)
            if formula is None and not moves_numbers(func):
                self._meter.unpriced.update(list_unpriced(func))
                return result
            # while autograd runs a graph, and only then, it has one under way
            run, grad = torch._C._current_graph_task_id(), torch.is_grad_enabled()
            if formula is None:
                self._meter.move(count_numbers(args, result), run, grad=grad)
            else:
                flops = float(formula(*args, **kwargs, out_val=result))
                self._meter.count(flops, run, grad=grad, learned=list_learned(args))
            return result

    return MeterMode
