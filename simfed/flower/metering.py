"""Counts the work of foreign PyTorch code: its passes through models, forward and backward.

Operators are seen where PyTorch dispatches them, so it does not matter which modules or functions
called them. A *pass* is a step of training or inference. All that one backward run goes through is
one step of training, however many calls led to it. The rest is inference: one pass up to the next
use of the same parameters, which may be used again within one call of a module, as a recurrent net
does. What has no parameters (a loss, a transform of the data) belongs to the pass that is under
way.

Activations, normalisation, pooling and sums move numbers and do next to nothing with them: counted
are the bytes that they read and write in the pass under way, whatever module they are in.

Counted are the FLOPs of matrix products, convolutions, attention and recurrent layers
(`simfed.flower.flops`), and one operation per number that an embedding looks up. Of the other
operators, the numbers that they go through are added up by name, so that a run can say what it did
not count. What is ignored: optimizers' arithmetic, which the price of a step has in its bytes;
reading of data; what runs in threads or processes that the code starts.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from simfed.flower.operands import Operands, count_samples

if TYPE_CHECKING:
    from torch import nn

MEMORY_BOUND = (
    *("relu", "threshold", "gelu", "silu", "hardswish", "hardtanh", "leaky_relu", "elu", "sigmoid"),
    *("tanh", "native_batch_norm", "native_layer_norm", "native_group_norm", "_native_batch_norm"),
    *("max_pool", "avg_pool", "adaptive", "_adaptive", "mean", "sum", "add", "sub", "mul", "div"),
    *("cat", "stack", "copy", "clone", "native_dropout", "bernoulli", "_softmax", "_log_softmax"),
    *("nll_loss", "upsample", "constant_pad", "masked_fill", "where", "sqrt", "pow", "exp"),
)
"""Beginnings of the names of operators whose time is that of memory; their backward operators begin
with the same."""
_BYTES_PER_NUMBER = 8.0
"""A 32-bit number is read, and one is written."""


@dataclass(slots=True)
class Pass:
    """One pass through a model, or loose operators."""

    parameters: int
    samples: int
    flops: float = 0.0
    trained: bool = False
    """Backward work followed."""
    moved_bytes: float = field(default=0.0, compare=False)
    """Read and written by operators that do next to nothing else with them."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted in one stretch of code."""

    passes: tuple[Pass, ...] = ()
    uncounted: Mapping[str, float] = field(default_factory=dict)
    """Operator without a formula → numbers that it went through."""

    @property
    def nothing(self) -> bool:
        """No operator with a formula was seen."""
        return not self.passes

    @property
    def flops(self) -> float:
        """Floating-point operations of all passes together."""
        return sum(step.flops for step in self.passes)


class _ModelCall:
    """A call of a model, which may become a part of a pass together with others."""

    def __init__(self, operands: Operands) -> None:
        self.samples = operands.samples
        self.parameters = dict(operands.parameters)
        self.flops = 0.0
        self.moved_bytes = 0.0
        self.trained = False
        self._absorber: _ModelCall | None = None

    def shares(self, other: _ModelCall) -> bool:
        """Whether both use a parameter."""
        return not self.parameters.keys().isdisjoint(other.parameters)

    def absorb(self, other: _ModelCall) -> None:
        """They are one: the same net for more samples, or another part of a net."""
        again = self.shares(other)
        self.samples = self.samples + other.samples if again else max(self.samples, other.samples)
        self.parameters |= other.parameters
        self.flops += other.flops
        self.moved_bytes += other.moved_bytes
        other._absorber = self

    @property
    def whole(self) -> _ModelCall:
        """The step that this one has become a part of, or itself."""
        return self if self._absorber is None else self._absorber.whole

    def as_pass(self) -> Pass:
        size = sum(self.parameters.values())
        return Pass(size, self.samples, self.flops, self.trained, self.moved_bytes)


class FlopMeter:
    """Counts the work of a thread, from one `collect` to the next."""

    def __init__(self) -> None:
        self._depth = 0
        self._model_depth = 0
        """Of the outermost module with parameters that is being called; 0: there is none."""
        self._called: Operands | None = None
        """Of a module that was called and has not done anything yet."""
        self._optimizing = False
        self._reset()

    def _reset(self) -> None:
        self._steps: list[_ModelCall] = []
        self._inside: _ModelCall | None = None
        """The step of the module that is being called."""
        self._recorded: list[tuple[int, _ModelCall]] = []
        """Autograd's count of nodes at their beginnings, of the steps that record."""
        self._backward: tuple[int, _ModelCall] | None = None
        """Autograd's run under way, and its step."""
        self._uncounted: dict[str, float] = {}

    def collect(self) -> Counted:
        """The FLOPs counted since the last call; counting begins anew."""
        passes: list[_ModelCall] = []
        for step in self._steps:
            if step.whole is not step:
                continue
            last = passes[-1] if passes else step
            if last is step or step.trained or last.trained or last.shares(step):
                passes.append(step)
            else:  # the next layers of a net that is called part by part
                last.absorb(step)
        counted = Counted(tuple(step.as_pass() for step in passes), self._uncounted)
        self._reset()
        return counted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what this thread does meanwhile; nothing where PyTorch is not imported."""
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
            self._depth = self._model_depth = 0
            self._called, self._optimizing = None, False
            del _meters[thread]
            if before is not None:
                _meters[thread] = before

    # ---- what happens ----------------------------------------------------------------------------

    def enter(self, module: nn.Module, inputs: tuple[object, ...], *, grad: bool) -> None:
        """A module is called; `grad`: autograd is on."""
        self._depth += 1
        if self._model_depth:
            return
        parameters = list(module.parameters())
        if parameters:
            self._model_depth, self._inside = self._depth, None
            records = grad and any(
                getattr(tensor, "requires_grad", False) for tensor in (*parameters, *inputs)
            )
            sizes = {id(parameter): parameter.numel() for parameter in parameters}
            self._called = Operands(sizes, count_samples(inputs), records)

    def leave(self) -> None:
        """Note that the module entered last has returned or raised."""
        if self._depth == self._model_depth:
            self._model_depth, self._called, self._inside = 0, None, None
        self._depth = max(self._depth - 1, 0)

    def optimize(self, *, begins: bool) -> None:
        """Note that an optimizer's step begins or ends: what runs inside is no model's work."""
        self._optimizing = begins

    def count_forward(self, flops: float, look: Callable[[], Operands]) -> None:
        """Add an operator's FLOPs to the pass under way; `look` gives its operands where a new pass
        may begin."""
        step = self._inside
        if step is None:
            operands = look()
            if self._called is not None:
                operands, self._called = self._called._replace(nodes=operands.nodes), None
            step = self._step_of(operands)
            if self._model_depth:
                self._inside = step
        step.flops += flops

    def _step_of(self, operands: Operands) -> _ModelCall:
        """The pass that work on these operands belongs to; a new one where they have parameters."""
        if not operands.parameters and self._steps:
            return self._steps[-1].whole
        step = _ModelCall(operands)
        self._steps.append(step)
        if operands.records:
            self._recorded.append((operands.nodes, step))
        return step

    def count_backward(self, flops: float, run: int, node: int | None) -> None:
        """An operator with so much work ran in autograd's `run`, for its `node`."""
        step = self._step_at(node)
        if self._backward is not None and self._backward[0] == run:
            first = self._backward[1].whole
            if first is not step:
                first.absorb(step)
                step = first
        self._backward = run, step
        step.flops += flops
        step.trained = True

    def _step_at(self, node: int | None) -> _ModelCall:
        """The step that noted a node of autograd's; for None the last one that noted any."""
        if not self._recorded:
            return self._step_of(Operands({}, 1, True))
        place = len(self._recorded)
        if node is not None:
            place = bisect_right(self._recorded, node, key=lambda begun: begun[0])
        return self._recorded[max(place - 1, 0)][1].whole

    def skip(
        self, name: str, numbers: float, look: Callable[[], Operands], *, backward: bool
    ) -> None:
        """An operator without a formula ran, which may use a bias or a scale."""
        if self._optimizing and not backward and not self._model_depth:
            return
        if name.startswith(MEMORY_BOUND) and self._steps:
            step = self._steps[-1] if self._backward is None or not backward else self._backward[1]
            step.whole.moved_bytes += _BYTES_PER_NUMBER * numbers
        self._uncounted[name] = self._uncounted.get(name, 0.0) + numbers
        if self._steps and not self._model_depth and not backward:
            operands, step = look(), self._steps[-1].whole
            if operands.records and not step.trained:
                step.parameters |= operands.parameters


_meters: dict[int, FlopMeter] = {}
"""Thread → its meter."""


@lru_cache(maxsize=1)
def _register_hooks() -> None:
    """Let every module and optimizer tell its thread's meter when it is called; once per
    process."""
    import torch
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    def tell(happen: Callable[[FlopMeter, tuple[Any, ...]], None]) -> Callable[..., None]:
        def hook(*arguments: Any) -> None:
            meter = _meters.get(threading.get_ident())
            if meter is not None:
                happen(meter, arguments)

        return hook

    enter = tell(lambda meter, call: meter.enter(*call, grad=torch.is_grad_enabled()))
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
    from torch.utils._python_dispatch import TorchDispatchMode

    from simfed.flower.flops import (
        OperatorKind,
        count_numbers,
        find_kind,
        name_operator,
        read_operands,
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
            kind, formula = find_kind(func)
            if kind is OperatorKind.COMPOSED:  # as inference mode leaves it: its parts are counted
                with self:
                    return func.decompose(*args, **kwargs)
            result = func(*args, **kwargs)
            if kind is OperatorKind.FREE:
                return result
            # while autograd runs a graph, and only then, it has one under way
            run = torch._C._current_graph_task_id()
            if formula is None:
                numbers, name = count_numbers(func, args, result), name_operator(func)
                self._meter.skip(name, numbers, lambda: read_operands(args), backward=run != -1)
                return result
            flops = float(formula(*args, **kwargs, out_val=result))
            if run == -1:
                self._meter.count_forward(flops, lambda: read_operands(args))
            else:
                node = torch._C._current_autograd_node()
                number = None if node is None else node._sequence_nr()
                self._meter.count_backward(flops, run, number)
            return result

    return MeterMode
