"""Hive partitions: columns that folder names such as `date=2026-11-19/hour=05` give.

Names and values are taken as pyarrow.dataset's HivePartitioning takes them: percent-decoded,
`__HIVE_DEFAULT_PARTITION__` is null, a column is int32 if all its values are such numbers and
string otherwise, and the first of two folders of one name counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from pipeline.config.where import Condition, Value

NULL = "__HIVE_DEFAULT_PARTITION__"
Kind = Literal["int32", "string"]

_INTEGER = re.compile(r"-?[0-9]+|0[xX][0-9a-fA-F]{1,8}")
_DECIMAL = re.compile(r"-?[0-9]{1,255}")
_TYPES = {"int32": pa.int32(), "string": pa.string()}


def partition_texts(below: str) -> dict[str, str | None]:
    """Column -> value, of the folders of a relative path, whose last name is the file's.

    ValueError: a value that is not UTF-8 once it is percent-decoded.
    """
    found: dict[str, str | None] = {}
    for folder in below.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals:
            found.setdefault(_decoded(name), None if value == NULL else _decoded(value))
    return found


def partition_types(found: Iterable[Mapping[str, str | None]]) -> dict[str, Kind]:
    """The type of every column that any file has; one that is null everywhere is a string."""
    values: dict[str, set[str]] = {}
    for texts in found:
        for name, text in texts.items():
            values.setdefault(name, set())
            if text is not None:
                values[name].add(text)
    return {
        name: "int32" if texts and all(map(_is_int32, texts)) else "string"
        for name, texts in values.items()
    }


def partition_values(
    texts: Mapping[str, str | None], types: Mapping[str, Kind]
) -> dict[str, Value]:
    """The typed values of a file, null for the columns that its path lacks."""
    return {name: _value(texts.get(name), kind) for name, kind in types.items()}


def typed_conditions(
    conditions: Sequence[Condition], types: Mapping[str, Kind]
) -> tuple[Condition, ...]:
    """Conditions to compare typed values with. ValueError: of a column that no path has, or with a
    value of another type.
    """
    for condition in conditions:
        if condition.column not in types:
            known = ", ".join(types) or "none"
            raise ValueError(
                f"{condition.column} is no partition column of the input (it has: {known}); only "
                "folder names such as date=2026-11-19 below the input give them"
            )
    return tuple(condition.typed(types[condition.column]) for condition in conditions)


def with_partitions(schema: pa.Schema, types: Mapping[str, Kind]) -> pa.Schema:
    """The schema of a file with its partition columns behind its own."""
    for name, kind in types.items():
        schema = schema.append(pa.field(name, _TYPES[kind]))
    return schema


def partition_array(value: Value, kind: str, rows: int) -> pa.Array:
    """A partition column [rows]."""
    array: Any = pa.repeat(pa.scalar(value, _TYPES[kind]), rows)
    return array


def partition_folder(values: Mapping[str, Value]) -> str:
    """The folders that say these values, as `partition_texts` reads them; such as a=1/b=x."""
    return "/".join(f"{_encoded(name)}={_encoded(value)}" for name, value in values.items())


def differs(found: Any, said: str | int) -> bool:
    """Whether a whole number, text, date, boolean or null of a file is not what its folder says."""
    if isinstance(found, bool):
        return str(found).lower() != str(said).lower()
    if isinstance(found, date):
        return found.isoformat() != said
    if isinstance(found, str) and isinstance(said, str):
        return found != said
    return bool(_as_number(found) != _as_number(said))


def _as_number(value: Any) -> Any:
    """A number for the text of one, so that 05 is 5."""
    return int(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


def _value(text: str | None, kind: Kind) -> Value:
    if text is None or kind == "string":
        return text
    return _hexadecimal(text) if text[:2] in ("0x", "0X") else int(text)


def _hexadecimal(text: str) -> int:
    """As Arrow reads it: bits of a signed number."""
    bits = int(text, 16)
    return bits - (1 << 32) if bits >= 1 << 31 else bits


def _is_int32(text: str) -> bool:
    if not _INTEGER.fullmatch(text):
        return False
    return text[:2] in ("0x", "0X") or -(2**31) <= int(text) < 2**31


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise ValueError(f"the folder name {text!r} is not UTF-8 once decoded") from None


def _encoded(value: Value) -> str:
    """Percent-encoded as Hive and pyarrow write it, so that it is one folder's name."""
    if value is None:
        return NULL
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.~") else _percent(char)
        for char in str(value)
    )


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
