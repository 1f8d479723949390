"""PyTorch's operations that work element by element, as expressions of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpiframe_core.program.expression import Expression

E = Expression

LARGEST = 3.4028234663852886e38  # of float32, which scores are computed in


def truncated(x: E) -> E:
    """x rounded towards 0."""
    return ("mul", ("sign", x), ("floor", ("abs", x)))


def unlike(x: E, y: E) -> E:
    """Whether one is true and the other is not."""
    return ("ne", ("ne", x, 0.0), ("ne", y, 0.0))


def unlike_itself(x: E) -> E:
    """Whether it is NaN."""
    return ("ne", x, x)


def known(x: E, y: E, of_both: E) -> E:
    """x or y where the other is NaN."""
    return ("where", unlike_itself(x), y, ("where", unlike_itself(y), x, of_both))


def clamp(x: E, low: E | None = None, high: E | None = None) -> E:
    """x, at least low, at most high, where they are given."""
    x = x if low is None else ("max", x, low)
    return x if high is None else ("min", x, high)


def gelu(x: E, approximate: str = "none") -> E:
    """Hendrycks and Gimpel, 2016."""
    if approximate == "tanh":
        cubic = ("mul", 0.044715, ("mul", x, ("mul", x, x)))
        inner = ("mul", math.sqrt(2 / math.pi), ("add", x, cubic))
        return ("mul", ("mul", 0.5, x), ("add", 1.0, ("tanh", inner)))
    return ("mul", ("mul", 0.5, x), ("add", 1.0, ("erf", ("mul", x, math.sqrt(0.5)))))


def softplus(x: E, beta: float = 1.0, threshold: float = 20.0) -> E:
    """ln(1 + exp(beta x)) / beta, x itself where beta x is above the threshold."""
    scaled = ("mul", x, float(beta))
    soft = ("div", ("log1p", ("exp", ("min", scaled, float(threshold)))), float(beta))
    return ("where", ("gt", scaled, float(threshold)), x, soft)


def elu(x: E, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> E:
    """Clevert et al., 2016; the scaled forms are SELU's and CELU's."""
    low = ("mul", float(alpha), ("expm1", ("mul", ("min", x, 0.0), float(input_scale))))
    return ("mul", float(scale), ("where", ("gt", x, 0.0), x, low))


def leaky_relu(x: E, slope: float = 0.01) -> E:
    """x, times slope where it is negative."""
    return ("where", ("gt", x, 0.0), x, ("mul", x, float(slope)))


def hardsigmoid(x: E) -> E:
    """min(max(x + 3, 0), 6) / 6."""
    return ("div", clamp(("add", x, 3.0), 0.0, 6.0), 6.0)


def div(x: E, y: E, rounding_mode: str | None = None) -> E:
    """x / y, rounded down or towards 0 if asked."""
    whole: dict[str | None, Callable[[E], E]] = {
        None: lambda q: q,
        "floor": lambda q: ("floor", q),
        "trunc": truncated,
    }
    return whole[rounding_mode](("div", x, y))


def floor_divided(x: E, y: E) -> E:
    """As Python's //: 1 // 0.1 is 9, since 0.1 is a bit more than a tenth. A power of 2 divides
    without rounding.
    """
    cut = ("floor", ("div", x, y))
    if isinstance(y, float) and (not math.isfinite(y) or math.frexp(abs(y))[0] in (0.0, 0.5)):
        return cut
    whole = ("round", ("div", ("sub", x, ("mod", x, y)), y))
    is_usual = ("and", ("isfinite", y), ("ne", y, 0.0))
    return whole if isinstance(y, float) else ("where", is_usual, whole, cut)


def rounded(x: E, decimals: float = 0.0) -> E:
    """x to so many decimals, halves to the even number."""
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return ("div", ("round", ("mul", x, scale)), scale)
    return ("mul", ("round", ("div", x, scale)), scale) if decimals else ("round", x)


def added(x: E, y: E, alpha: float = 1.0) -> E:
    """x + alpha y."""
    return ("add", x, y if alpha == 1 else ("mul", y, float(alpha)))


def subtracted(x: E, y: E, alpha: float = 1.0) -> E:
    """x - alpha y."""
    return ("sub", x, y if alpha == 1 else ("mul", y, float(alpha)))


def unary(name: str) -> Callable[[E], E]:
    """The function of one argument of that name."""
    return lambda x: (name, x)


def binary(name: str) -> Callable[[E, E], E]:
    """The function of two arguments of that name."""
    return lambda x, y: (name, x, y)


_SAME_NAME = (
    "neg abs sign floor ceil exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal "
    "sigmoid tanh relu erf sin cos tan asin acos atan sinh cosh"
)
_BINARY = {
    "mul": "mul", "maximum": "max", "minimum": "min", "atan2": "atan2", "pow": "pow",
    "remainder": "mod", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt",
    "ge": "ge", "logical_and": "and", "logical_or": "or", "bitwise_and": "and",
    "bitwise_or": "or",
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., E]] = {
    **{name: unary(name) for name in _SAME_NAME.split()},
    **{name: binary(ours) for name, ours in _BINARY.items()},
    "add": added,
    "sub": subtracted,
    "rsub": lambda x, y, alpha=1.0: subtracted(y, x, alpha),
    "div": div,
    "true_divide": div,
    "floor_divide": lambda x, y: div(x, y, "floor"),
    "round": rounded,
    "square": lambda x: ("mul", x, x),
    "trunc": truncated,
    "frac": lambda x: ("sub", x, truncated(x)),
    "fmod": lambda x, y: ("sub", x, ("mul", y, truncated(("div", x, y)))),
    "erfc": lambda x: ("sub", 1.0, ("erf", x)),
    "sgn": unary("sign"),
    "asinh": lambda x: (
        "mul", ("sign", x),
        ("log", ("add", ("abs", x), ("sqrt", ("add", ("mul", x, x), 1.0)))),
    ),
    "acosh": lambda x: ("log", ("add", x, ("sqrt", ("sub", ("mul", x, x), 1.0)))),
    "atanh": lambda x: ("mul", 0.5, ("sub", ("log1p", x), ("log1p", ("neg", x)))),
    "copysign": lambda x, y: ("where", ("lt", y, 0.0), ("neg", ("abs", x)), ("abs", x)),
    "fmax": lambda x, y: known(x, y, ("max", x, y)),
    "fmin": lambda x, y: known(x, y, ("min", x, y)),
    "ldexp": lambda x, y: ("mul", x, ("pow", 2.0, y)),
    "hypot": lambda x, y: ("sqrt", ("add", ("mul", x, x), ("mul", y, y))),
    "xlogy": lambda x, y: ("where", ("eq", x, 0.0), 0.0, ("mul", x, ("log", y))),
    "signbit": lambda x: ("lt", x, 0.0),
    "logical_xor": unlike,
    "bitwise_xor": unlike,
    "logical_not": unary("not"),
    "bitwise_not": unary("not"),
    "isfinite": unary("isfinite"),
    "isnan": unlike_itself,
    "isinf": lambda x: ("eq", ("abs", x), math.inf),
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": lambda x, high: clamp(x, None, high),
    "hardtanh": lambda x, low=-1.0, high=1.0: clamp(x, float(low), float(high)),
    "relu6": lambda x: clamp(x, 0.0, 6.0),
    "gelu": gelu,
    "silu": lambda x: ("mul", x, ("sigmoid", x)),
    "mish": lambda x: ("mul", x, ("tanh", softplus(x))),
    "softplus": softplus,
    "softsign": lambda x: ("div", x, ("add", 1.0, ("abs", x))),
    "elu": elu,
    "celu": lambda x, alpha=1.0: elu(x, alpha, 1.0, 1.0 / alpha),
    "selu": lambda x: elu(x, 1.6732632423543772, 1.0507009873554805),
    "leaky_relu": leaky_relu,
    "prelu": lambda x, slope: ("where", ("gt", x, 0.0), x, ("mul", x, slope)),
    "_prelu_kernel": lambda x, slope: ("where", ("gt", x, 0.0), x, ("mul", x, slope)),
    "hardsigmoid": hardsigmoid,
    "hardswish": lambda x: ("mul", x, hardsigmoid(x)),
    "hardshrink": lambda x, limit=0.5: ("where", ("le", ("abs", x), float(limit)), 0.0, x),
    "softshrink": lambda x, limit=0.5: (
        "mul", ("sign", x), ("max", ("sub", ("abs", x), float(limit)), 0.0)
    ),
    "log_sigmoid": lambda x: (
        "sub", ("min", x, 0.0), ("log1p", ("exp", ("neg", ("abs", x))))
    ),
    "threshold": lambda x, at, value: ("where", ("gt", x, float(at)), x, float(value)),
    "where": lambda c, x, y: ("where", c, x, y),
    "masked_fill": lambda x, mask, value: ("where", mask, value, x),
    "addcmul": lambda x, a, b, value=1.0: added(x, ("mul", a, b), value),
    "addcdiv": lambda x, a, b, value=1.0: added(x, ("div", a, b), value),
    "lerp": lambda x, y, w: ("add", x, ("mul", w, ("sub", y, x))),
    "nan_to_num": lambda x, nan=0.0, high=None, low=None: (
        "where", ("isfinite", x), x,
        ("where", ("ne", x, x), float(nan or 0.0),
         ("where", ("gt", x, 0.0), LARGEST if high is None else float(high),
          -LARGEST if low is None else float(low))),
    ),
    "logit": lambda x, eps=None: (
        lambda p: ("sub", ("log", p), ("log1p", ("neg", p)))
    )(x if eps is None else clamp(x, float(eps), 1.0 - float(eps))),
    "heaviside": lambda x, y: ("where", ("eq", x, 0.0), y, ("gt", x, 0.0)),
}  # fmt: skip

# Of numbers that are not whole, where the quotient is rounded before it is cut.
FUNCTIONS_OF_FLOATS: dict[str, Callable[..., E]] = {
    "floor_divide": floor_divided,
    "div": lambda x, y, rounding_mode=None: (
        floor_divided(x, y) if rounding_mode == "floor" else div(x, y, rounding_mode)
    ),
    "fmod": lambda x, y: ("mul", ("sign", x), ("mod", ("abs", x), ("abs", y))),
}

FUNCTIONS_OF_TRUTHS: dict[str, Callable[..., E]] = {"add": lambda x, y, alpha=1.0: ("or", x, y)}


def of_bits(name: str, x: E, y: E = 0.0, *, bits: int) -> E:
    """An operation on the bits of whole numbers by arithmetic; where that goes bit by bit these are
    below 2**bits.
    """
    if name == "bitwise_and" and isinstance(y, float) and y >= 0 and math.log2(y + 1).is_integer():
        return ("mod", x, y + 1)
    if name == "bitwise_not":
        return ("sub", ("neg", x), 1.0)
    if name in ("bitwise_left_shift", "__lshift__"):
        return ("mul", x, ("pow", 2.0, y))
    if name in ("bitwise_right_shift", "__rshift__"):
        return ("floor", ("div", x, ("pow", 2.0, y)))
    found = _unlike_bits(x, y, bits)
    if name == "bitwise_xor":
        return found
    return ("div", ("sub" if name == "bitwise_and" else "add", ("add", x, y), found), 2.0)


def _unlike_bits(x: E, y: E, bits: int) -> E:
    """x ^ y: a bit of it is the sum of theirs, modulo 2; the sign is one more, of -2**bits."""

    def bit(k: int) -> E:
        a, b = (("floor", ("div", part, 2.0**k)) if k else part for part in (x, y))
        unlike = ("mod", ("add", a, b), 2.0)
        return ("mul", unlike, 2.0**k) if k else unlike

    def total(parts: list[E]) -> E:  # by halves: sums of sums are deeper than can be walked
        half = len(parts) // 2
        return ("add", total(parts[:half]), total(parts[half:])) if half else parts[0]

    found = total([bit(k) for k in range(bits)])
    sign = ("ne", ("lt", x, 0.0), ("lt", y, 0.0))
    return ("sub", found, ("mul", sign, 2.0**bits))
