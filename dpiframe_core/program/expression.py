"""Expressions over numbers, element by element: what a `Map` computes.

An expression is plain data: a number, the name of an operand ("x0", "x1", ...), or a list of a
function's name and its arguments, such as `["add", ["mul", "x0", "x1"], 0.5]`. Truth is 1, 0 is
false, and any other number is true.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Expression = float | str | tuple[Any, ...]
Folded = TypeVar("Folded")

MOST_PARTS = 10_000  # functions and leaves of one expression
_OPERAND = re.compile(r"x\d{1,4}")

# Functions by name: how many arguments each takes.
ARITY = {
    name: arity
    for arity, names in {
        1: "neg abs sign floor ceil round exp exp2 expm1 log log2 log10 log1p sqrt rsqrt "
        "reciprocal sigmoid tanh relu erf sin cos tan asin acos atan sinh cosh not isfinite",
        2: "add sub mul div pow min max atan2 mod eq ne lt le gt ge and or",
        3: "where",
    }.items()
    for name in names.split()
}


def as_expression(data: Any) -> Expression:
    """Plain data as an expression; ValueError says what is none."""
    budget = [MOST_PARTS]
    return _checked(data, budget, 0)


def _checked(data: Any, budget: list[int], depth: int) -> Expression:
    budget[0] -= 1
    if budget[0] < 0 or depth > 200:
        raise ValueError("an expression has too many parts")
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, str) and data in _LITERALS:
        return _LITERALS[data]
    if isinstance(data, str) and _OPERAND.fullmatch(data):
        return data
    if isinstance(data, (list, tuple)) and data and ARITY.get(data[0]) == len(data) - 1:
        return (data[0], *(_checked(part, budget, depth + 1) for part in data[1:]))
    raise ValueError(f"{str(data)[:80]!r} is no expression")


# JSON has no infinite numbers.
_LITERALS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_data(expression: Expression) -> Any:
    """The expression as JSON holds it."""
    if isinstance(expression, float):
        return expression if math.isfinite(expression) else str(expression)
    if isinstance(expression, str):
        return expression
    return [expression[0], *(to_data(part) for part in expression[1:])]


def operands(expression: Expression) -> Iterator[str]:
    """The operands' names, as often as they occur."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, tuple):
        for part in expression[1:]:
            yield from operands(part)


class Call(tuple[Any, ...]):
    """A function and its arguments, hashed once; `call` makes one of those that are alike.

    In hashes of ids each part is used by several others: walked as a tree, of which each use is a
    part of its own, these have more parts than can be walked.
    """

    _hash: int

    def __new__(cls, parts: tuple[Any, ...]) -> Call:
        made = super().__new__(cls, parts)
        made._hash = hash(tuple(parts))
        return made

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:  # another process hashes otherwise
        return Call, (tuple(self),)


def call(name: str, *arguments: Expression) -> Call:
    """The function of arguments, which are calls or leaves."""
    signs = tuple(math.copysign(1, part) for part in arguments if isinstance(part, float))
    return _made((name, *arguments), signs)


@functools.lru_cache(maxsize=2**16)
def _made(parts: tuple[Any, ...], signs: tuple[float, ...]) -> Call:  # 0 is not -0
    return Call(parts)


def folded(expression: Expression, of: Callable[[Expression, list[Folded]], Folded]) -> Folded:
    """What `of` makes of each part and of what it made of the part's arguments, once for each."""
    made: dict[int, Folded] = {}

    def fold(part: Expression) -> Folded:
        if not isinstance(part, tuple):
            return of(part, [])
        if id(part) not in made:
            made[id(part)] = of(part, [fold(p) for p in part[1:]])
        return made[id(part)]

    return fold(expression)


def rebuilt(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with every part changed, the innermost first; parts that are alike are one."""

    def of(part: Expression, arguments: list[Expression]) -> Expression:
        return change(call(part[0], *arguments) if isinstance(part, tuple) else part)

    return folded(expression, of)


def fingerprint(expression: Expression) -> str:
    """What tells the expression from others, in few characters."""

    def of(part: Expression, arguments: list[str]) -> str:
        if not isinstance(part, tuple):
            return repr(part)
        return hashlib.sha1(repr((part[0], *arguments)).encode()).hexdigest()

    return folded(expression, of)


def replaced(expression: Expression, change: Callable[[str], Expression]) -> Expression:
    """The expression with every operand changed."""
    return rebuilt(expression, lambda part: change(part) if isinstance(part, str) else part)


def postfix(expression: Expression) -> Iterator[float | str]:
    """Leaves and names of functions, each function after its arguments."""
    if not isinstance(expression, tuple):
        yield expression
        return
    for part in expression[1:]:
        yield from postfix(part)
    yield expression[0]


def count_functions(expression: Expression) -> int:
    """Functions in the expression."""
    if not isinstance(expression, tuple):
        return 0
    return 1 + sum(count_functions(part) for part in expression[1:])


def in_words(expression: Expression) -> str:
    """The expression as people write it."""
    if isinstance(expression, float):
        return f"{expression:g}"
    if isinstance(expression, str):
        return expression
    name, *parts = expression
    texts = [in_words(part) for part in parts]
    if name in _SIGNS:
        return f"({texts[0]} {_SIGNS[name]} {texts[1]})"
    return f"{name}({', '.join(texts)})"


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "mod": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def evaluate(expression: Expression, values: Sequence[Tensor]) -> Tensor:
    """The expression with torch, of operands that broadcast."""
    import torch

    def value(part: Expression) -> Any:
        if isinstance(part, float):
            return part
        if isinstance(part, str):
            return values[int(part[1:])]
        return computed(part[0], [value(p) for p in part[1:]])

    like = values[0]
    functions = _torch_functions()

    def tensor(x: Any) -> Tensor:
        return x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=like.dtype)

    def computed(name: str, parts: list[Any]) -> Any:
        if name in _SCALARS and not all(isinstance(p, float) for p in parts):
            return _SCALARS[name](*parts)
        found = functions[name](*map(tensor, parts))
        return found.to(like.dtype) if found.dtype == torch.bool else found

    found = tensor(value(expression))
    return found.expand_as(like) if found.ndim == 0 else found  # of numbers alone


# Those that take numbers beside tensors without a tensor being made of these.
_SCALARS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a * a if isinstance(b, float) and b == 2.0 else a**b,
}


@functools.cache
def _torch_functions() -> dict[str, Callable[..., Tensor]]:
    import torch

    return {name: getattr(torch, name) for name in ARITY if hasattr(torch, name)} | {
        "min": torch.minimum,
        "max": torch.maximum,
        "mod": torch.remainder,
        "not": lambda a: a == 0,
        "and": lambda a, b: (a != 0) & (b != 0),
        "or": lambda a, b: (a != 0) | (b != 0),
        "where": lambda c, a, b: torch.where(c != 0, a, b),
    }
