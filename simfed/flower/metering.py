"""Counts the work of foreign PyTorch code: FLOPs, training steps, passes.

Passes are of inference.

Operators are seen where PyTorch dispatches them, so it does not matter which modules or
functions called them. Their FLOPs are those of `torch.utils.flop_counter`, and of
formulas for what it leaves out (`simfed.flower.flops`): recurrent layers, look-ups of
embeddings, products with vectors. A *step* of training is one backward run, with all
that autograd noted for it; a *pass* of inference is one call of a module with
parameters from outside of any other, while autograd is off, or of any where nothing is
trained. So passes of all lengths are one sum, of which a message has a mean.

Activations, normalisation, pooling and sums move numbers and do next to nothing with
them: counted are the bytes that they read and write. Of the other operators, the
numbers that they go through are added up by name, so that a run can say what it did not
count. What is ignored: optimizers' arithmetic, which the price of a step has in its
bytes; reading of data; what runs in threads or processes that the code starts.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

MEMORY_BOUND = (
    *(
        "relu",
        "threshold",
        "gelu",
        "silu",
        "hardswish",
        "hardtanh",
        "leaky_relu",
        "elu",
        "sigmoid",
    ),
    *(
        "tanh",
        "native_batch_norm",
        "native_layer_norm",
        "native_group_norm",
        "_native_batch_norm",
    ),
    *(
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
    ),
    *(
        "cat",
        "stack",
        "copy",
        "clone",
        "native_dropout",
        "bernoulli",
        "_softmax",
        "_log_softmax",
    ),
    *(
        "nll_loss",
        "upsample",
        "constant_pad",
        "masked_fill",
        "where",
        "sqrt",
        "pow",
        "exp",
    ),
)
"""Beginnings of the names of operators whose time is that of memory; their backward
operators begin with the same."""
_BYTES_PER_NUMBER = 8.0
"""A 32-bit number is read, and one is written."""
_OVERHEAD = 50_000
"""Numbers that operators without a formula may go through in each pass: they take less
than the overhead that a pass is charged."""


class PassSum(NamedTuple):
    """Steps, or passes, of one stretch of code, all together."""

    times: int = 0
    flops: float = 0.0
    moved_bytes: float = 0.0
    """Read and written by operators that do next to nothing else with them."""


NO_WORK = PassSum()


def add_work(one: PassSum, other: PassSum) -> PassSum:
    """Return steps, FLOPs and bytes of two stretches."""
    return PassSum(
        one.times + other.times,
        one.flops + other.flops,
        one.moved_bytes + other.moved_bytes,
    )


@dataclass(frozen=True, slots=True)
class WorkCount:
    """The counts of one stretch of code."""

    training: PassSum = NO_WORK
    inference: PassSum = NO_WORK
    parameters: int = 0
    """Parameters of the models that it used."""
    uncounted: Mapping[str, float] = field(default_factory=dict)
    """Operator without a formula → numbers that it went through."""

    @property
    def total(self) -> PassSum:
        """Steps and passes together."""
        return add_work(self.training, self.inference)

    def __add__(self, other: WorkCount) -> WorkCount:
        uncounted = Counter(self.uncounted)
        uncounted.update(other.uncounted)
        return WorkCount(
            add_work(self.training, other.training),
            add_work(self.inference, other.inference),
            max(self.parameters, other.parameters),
            uncounted,
        )

    @property
    def missing(self) -> float:
        """The share that has no formula, from 0 to 1.

        It is of numbers that such operators go through, beside FLOPs.
        """
        work = self.total
        beyond = sum(self.uncounted.values()) - _OVERHEAD * work.times
        return beyond / (beyond + work.flops) if beyond > 0 else 0.0

    def name_uncounted(self) -> str:
        """Return the operators that most of what has no formula goes to."""
        ranked = sorted(self.uncounted.items(), key=lambda item: (-item[1], item[0]))
        names = [name for name, _ in ranked]
        return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


class FlopMeter:
    """Counts the work of a thread, from one `collect` to the next."""

    def __init__(self) -> None:
        self._depth = 0
        """The depth of the module that is being called, below the outermost one with
        parameters."""
        self._optimizing = False
        self._reset()

    def _reset(self) -> None:
        self._flops, self._bytes, self._calls = [0.0, 0.0], [0.0, 0.0], [0, 0]
        """While autograd is off, and on; of modules with parameters called from
        outside."""
        self._steps, self._run = 0, -1
        self._models: dict[int, int] = {}
        """Outermost module → how many parameters it has."""
        self._leaves: dict[int, int] = {}
        """Tensors that are learned outside of modules in the step under way → their
        sizes."""
        self._most_leaves = 0
        self._uncounted: dict[str, float] = defaultdict(float)

    def collect(self) -> WorkCount:
        """Return what was counted since the last call; counting begins anew."""
        off, on = (
            PassSum(*one)
            for one in zip(self._calls, self._flops, self._bytes, strict=True)
        )
        # nothing was trained: with autograd on it is inference as well
        if not self._steps:
            off, on = add_work(off, on), NO_WORK
        self._begin_step()
        counted = WorkCount(
            on._replace(times=self._steps),
            off._replace(times=max(off.times, int(off.flops > 0))),
            max(sum(self._models.values()), self._most_leaves),
            self._uncounted,
        )
        self._reset()
        return counted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what this thread does meanwhile.

        Nothing where PyTorch is not imported.
        """
        if "torch" not in sys.modules:
            yield
            return
        _register_hooks()
        thread = threading.get_ident()
        before = _meters.get(thread)
        _meters[thread] = self
        try:
            with _make_mode_class()(self):
                yield
        finally:
            self._depth, self._optimizing = 0, False
            del _meters[thread]
            if before is not None:
                _meters[thread] = before

    # ---- what happens ----------------------------------------------------------------

    def enter(self, module: nn.Module, *, grad: bool) -> None:
        """Note that a module is called; `grad`: autograd is on."""
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

        `run`: autograd's that is under way, -1 for none; `learned`: what it was given
        of what is learned.
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

    def skip(self, name: str, numbers: float, run: int, *, grad: bool) -> None:
        """Note an operator without a formula."""
        if self._optimizing and run == -1 and not self._depth:
            return
        if name.startswith(MEMORY_BOUND):
            self._bytes[grad or run != -1] += _BYTES_PER_NUMBER * numbers
        self._uncounted[name] += numbers


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
        is_view,
        list_learned,
        name_operator,
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
            if formula is None and is_view(func):
                return result
            # while autograd runs a graph, and only then, it has one under way
            run, grad = torch._C._current_graph_task_id(), torch.is_grad_enabled()
            if formula is None:
                numbers = count_numbers(args, result)
                self._meter.skip(name_operator(func), numbers, run, grad=grad)
            else:
                flops = float(formula(*args, **kwargs, out_val=result))
                self._meter.count(flops, run, grad=grad, learned=list_learned(args))
            return result

    return MeterMode
