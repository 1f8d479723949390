"""Finding the broken line: line by line, slow and exact, after a whole block was refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import islice

import pyarrow as pa

from pipeline.data.layouts import LABEL_COLUMNS
from pipeline.data.textfiles import BYTE_ORDER_MARK, TextFile, never_null, open_lines

_INTEGER = re.compile(r"-?[0-9]+")
_HEX = re.compile(r"[0-9a-fA-F]{8}")
_SHOWN = 60

# Says what is wrong with a field's text, or None.
FieldCheck = Callable[[str], str | None]


def find_broken_line(file: TextFile, rows_before: int) -> str | None:
    """`file:line: what is wrong` for the first broken line, passing over that many rows.

    None when no line breaks the rules.
    """
    checks = _field_checks(file)
    first = file.header_lines + rows_before
    with open_lines(file.path) as lines:
        lines.seek(len(BYTE_ORDER_MARK) if lines.read(3) == BYTE_ORDER_MARK else 0)
        for number, line in enumerate(islice(lines, first, None), start=first + 1):
            problem = _check_line(line, file.delimiter, checks)
            if problem:
                return f"{file.path}:{number}: {problem}"
    return None


def _check_line(line: bytes, delimiter: str, checks: list[tuple[str, FieldCheck]]) -> str | None:
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return f"is not valid utf-8 (byte {error.start + 1})"
    if not text:
        return "the line is empty"
    fields = text.split(delimiter)
    if len(fields) != len(checks):
        return f"has {len(fields)} fields, expected {len(checks)}"
    for value, (name, check) in zip(fields, checks, strict=True):
        problem = check(value)
        if problem:
            return f"field {name}: {_shorten(value)!r} {problem}"
    return None


def _field_checks(file: TextFile) -> list[tuple[str, FieldCheck]]:
    label = LABEL_COLUMNS[file.dataset].name
    checks: list[tuple[str, FieldCheck]] = []
    for name, kind in file.types.items():
        if name == label:
            check: FieldCheck = _check_label
        elif pa.types.is_string(kind):
            check = _check_hex
        else:
            check = partial(_check_integer, kind, name in never_null(file.dataset))
        checks.append((name, check))
    return checks


def _check_label(text: str) -> str | None:
    return None if text in ("0", "1") else "is not 0 or 1"


def _check_hex(text: str) -> str | None:
    return None if not text or _HEX.fullmatch(text) else "is not 8 hex digits"


def _check_integer(kind: pa.DataType, required: bool, text: str) -> str | None:
    if not text:
        return "is empty" if required else None
    if not _INTEGER.fullmatch(text):
        return "is not an integer"
    low, high = _limits(kind)
    return None if low <= int(text) <= high else f"is outside {kind} ({low} to {high})"


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
