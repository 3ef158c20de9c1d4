"""Arithmetic that a user writes in a file, with names for values known later.

It has numbers, names, + - * / **, min, max and ceil. Where the value's own name has
other characters than letters and digits, an underscore stands for each of them:
`num_examples` is `num-examples`. What is left of a bar counts where all its names have
values, else what is right of it: `0.02 * num_examples | 100 ms`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from simfed.ground.errors import InputError, did_you_mean, listed
from simfed.ground.plain import Plain
from simfed.ground.units import parse_duration

_TWO: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[[list[float]], float]] = {
    "min": min,
    "max": max,
    "ceil": lambda values: float(math.ceil(values[0])),
}
_LONGEST = 1000
"""Characters; deeper trees than these can hold would not be arithmetic any more."""


class Arithmetic:
    """A parsed expression.

    >>> read_arithmetic("0.5 + 0.02 * num_examples")({"num-examples": 100, "loss": 0.3})
    2.5
    >>> read_arithmetic("ceil(rows / 32) * max(0.1, 0.2)")({"rows": 33})
    0.4
    >>> read_arithmetic("20 ms")({})
    0.02
    >>> read_arithmetic("0.02 * num_examples | 100 ms")({})
    0.1
    """

    def __init__(self, text: str, tree: ast.expr) -> None:
        self.text = text
        self._tree = tree

    @property
    def names(self) -> list[str]:
        """The names in it, in the order of their first use."""
        names = (node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name))
        return [name for name in dict.fromkeys(names) if name not in _CALLS]

    def __call__(self, values: Mapping[str, Plain]) -> float:
        """Return the value, a finite number.

        Raises: `InputError` for a name that has no value, a value that is no number,
        and a result that is not finite.
        """
        spelled = {spell_name(name): value for name, value in values.items()}
        try:
            result = float(_evaluate_node(self._tree, spelled))
        except _MissingValue as missing:
            allowed = f"a value that is there: {listed(spelled) or 'there is none'}"
            hint = did_you_mean(missing.name, spelled)
            raise InputError(
                allowed, where=self.text, got=missing.name, hint=hint
            ) from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InputError("a number", where=self.text, got=str(error)) from None
        if not math.isfinite(result):
            raise InputError("a finite number", where=self.text, got=result)
        return result


@lru_cache
def read_arithmetic(text: str) -> Arithmetic:
    """Parse arithmetic, or a duration with its unit, whose value is in seconds.

    Raises: `InputError` for anything else.

    >>> read_arithmetic("open('x')")
    Traceback (most recent call last):
    simfed.ground.errors.InputError: got "open('x')", expected a duration such as ...
    """
    wrong = InputError(
        "a duration such as 20 ms, or arithmetic such as 0.02 * num_examples, with + - "
        "* / ** min max ceil |",
        got=text,
    )
    if len(text) > _LONGEST:
        raise wrong
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        before, bar, last = text.rpartition("|")
        try:
            duration = ast.Constant(parse_duration(last))
            if not bar:
                return Arithmetic(text, duration)
            return Arithmetic(
                text, ast.BinOp(read_arithmetic(before)._tree, ast.BitOr(), duration)
            )
        except InputError:
            raise wrong from None
    if not all(map(_is_allowed, ast.walk(tree))):
        raise wrong
    return Arithmetic(text, tree)


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, (ast.operator, ast.unaryop, ast.expr_context)):
        return True  # judged with the expression around it
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.BinOp):
        return type(node.op) in _TWO or isinstance(node.op, ast.BitOr)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.USub, ast.UAdd))
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _CALLS
        enough = (
            len(node.args) == 1 if ast.unparse(node.func) == "ceil" else bool(node.args)
        )
        return named and enough and not node.keywords
    return isinstance(node, ast.Name)


def _evaluate_node(node: ast.expr, values: Mapping[str, Plain]) -> float:
    if isinstance(node, ast.Constant):
        assert isinstance(
            node.value, (int, float)
        )  # read_arithmetic lets no other pass
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise _MissingValue(node.id)
        return float(values[node.id])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        try:
            return _evaluate_node(node.left, values)
        except _MissingValue:
            return _evaluate_node(node.right, values)
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate_node(node.operand, values)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        return _TWO[type(node.op)](
            _evaluate_node(node.left, values), _evaluate_node(node.right, values)
        )
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return _CALLS[node.func.id]([_evaluate_node(inner, values) for inner in node.args])


class _MissingValue(Exception):
    def __init__(self, name: str) -> None:
        self.name = name


def spell_name(name: str) -> str:
    """Return how arithmetic spells the name of a value."""
    return "".join(c if c.isalnum() else "_" for c in name)
