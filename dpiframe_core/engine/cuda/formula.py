"""Expressions as CUDA C++, for kernels that are compiled at load.

Functions, NaN and signs are treated as csrc/kernels/tensor/functions.h treats them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpiframe_core.program.expression import Expression

# By function: what it is of {0}, {1}, {2}, each a name or a number.
FUNCTIONS = {
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "sign": "(({0} > 0.0f ? 1.0f : 0.0f) - ({0} < 0.0f ? 1.0f : 0.0f))",
    "floor": "floorf({0})",
    "ceil": "ceilf({0})",
    "round": "rintf({0})",
    "exp": "expf({0})",
    "exp2": "exp2f({0})",
    "expm1": "expm1f({0})",
    "log": "logf({0})",
    "log2": "log2f({0})",
    "log10": "log10f({0})",
    "log1p": "log1pf({0})",
    "sqrt": "sqrtf({0})",
    "rsqrt": "(1.0f / sqrtf({0}))",
    "reciprocal": "(1.0f / {0})",
    "sigmoid": "(1.0f / (1.0f + expf(-{0})))",
    "tanh": "tanhf({0})",
    "relu": "({0} < 0.0f ? 0.0f : {0})",
    "erf": "erff({0})",
    "sin": "sinf({0})",
    "cos": "cosf({0})",
    "tan": "tanf({0})",
    "asin": "asinf({0})",
    "acos": "acosf({0})",
    "atan": "atanf({0})",
    "sinh": "sinhf({0})",
    "cosh": "coshf({0})",
    "not": "({0} == 0.0f ? 1.0f : 0.0f)",
    "isfinite": "(fabsf({0}) <= 3.402823466e38f ? 1.0f : 0.0f)",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "pow": "powf({0}, {1})",
    "min": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "max": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "atan2": "atan2f({0}, {1})",
    "mod": "dpiframe::functions::remainder_of({0}, {1})",
    "eq": "({0} == {1} ? 1.0f : 0.0f)",
    "ne": "({0} != {1} ? 1.0f : 0.0f)",
    "lt": "({0} < {1} ? 1.0f : 0.0f)",
    "le": "({0} <= {1} ? 1.0f : 0.0f)",
    "gt": "({0} > {1} ? 1.0f : 0.0f)",
    "ge": "({0} >= {1} ? 1.0f : 0.0f)",
    "and": "({0} != 0.0f && {1} != 0.0f ? 1.0f : 0.0f)",
    "or": "({0} != 0.0f || {1} != 0.0f ? 1.0f : 0.0f)",
    "where": "({0} != 0.0f ? {1} : {2})",
}


# The same in a few instructions, for results of 16 bits. `exp` is within 1e-5 of the value, the
# others, which are at most 1, are within 1e-6.
SHORT_FUNCTIONS = {
    "exp": "__expf({0})",
    "sigmoid": "__fdividef(1.0f, 1.0f + __expf(-{0}))",
    "tanh": "(1.0f - __fdividef(2.0f, 1.0f + __expf({0} + {0})))",
    "erf": "dpiframe::functions::short_erf({0})",
}


def statements(expression: Expression, names: Mapping[str, str], short: bool = False) -> str:
    """The body of a function that returns the expression, as float; `names`: of its operands;
    `short`: by SHORT_FUNCTIONS.
    """
    functions = {**FUNCTIONS, **SHORT_FUNCTIONS} if short else FUNCTIONS
    lines: list[str] = []
    made: dict[Expression, str] = {}  # equal parts are computed once

    def value(part: Expression) -> str:
        if isinstance(part, float):
            return number(part)
        if isinstance(part, str):
            return names[part]
        if part not in made:
            name, *arguments = _shortened(part)
            text = functions[name].format(*map(value, arguments))
            made[part] = f"v{len(made)}"
            lines.append(f"const float {made[part]} = {text};")
        return made[part]

    last = value(expression)
    return "\n    ".join([*lines, f"return {last};"])


def number(value: float) -> str:
    """The float32 nearest to a number."""
    single = float(np.float32(value))
    if math.isfinite(single):
        return f"({single!r}f)"
    return f"__int_as_float(0x{np.float32(value).view(np.uint32):08x})"


def _shortened(part: tuple[Any, ...]) -> tuple[Any, ...]:
    """x ** 2 and x ** 0.5 take no logarithm."""
    if part[0] == "pow" and part[2] == 2.0:
        return ("mul", part[1], part[1])
    return ("sqrt", part[1]) if part[0] == "pow" and part[2] == 0.5 else part
