"""The one type in which all files of an input publish a column, though they store several."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
# Bits of the integers that a float holds all of.
_EXACT_BITS = {pa.float16(): 8, pa.float32(): 16, pa.float64(): 32}


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """The type of these that holds the values of all exactly, or the narrowest number that does;
    None if there is none. Texts are alike in all their forms, nulls like anything.
    """
    found = [kind for kind in kinds if not pa.types.is_null(kind)] or list(kinds[:1])
    if len({type_family(kind) for kind in found}) == 1:
        return found[0] if len(found) == len(kinds) or _has_nulls(found[0]) else None
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in found):
        return None
    integers = _UNSIGNED if all(map(pa.types.is_unsigned_integer, found)) else _SIGNED
    wide: Sequence[pa.DataType] = _FLOATS if any(map(pa.types.is_floating, found)) else integers
    return next((kind for kind in wide if all(_holds(kind, each) for each in found)), None)


def type_family(kind: pa.DataType) -> str:
    """The name that types share if their values are published alike: texts, plain or not."""
    if pa.types.is_dictionary(kind):
        return type_family(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    return str(kind)


def _has_nulls(kind: pa.DataType) -> bool:
    """Whether Arrow makes nulls of a type of those of no type."""
    try:
        pa.nulls(1).cast(kind)
    except pa.ArrowException:
        return False
    return True


def _holds(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether a number type holds all values of another."""
    if pa.types.is_floating(kind):
        if pa.types.is_floating(other):
            return bool(other.bit_width <= kind.bit_width)
        return bool(other.bit_width <= _EXACT_BITS[kind])
    if pa.types.is_signed_integer(kind) == pa.types.is_signed_integer(other):
        return bool(other.bit_width <= kind.bit_width)
    return bool(pa.types.is_signed_integer(kind) and other.bit_width < kind.bit_width)
