"""The published text files: Criteo's TSV and Avazu's CSV, plain or gzip; finding a bad line.

Criteo: no header; label (absent in test files), I1..I13, C1..C26. Avazu: a header; id, click
(absent in test files), then 22 columns, in any order. Fields are never quoted. An integer is
decimal; a string is exactly 8 hex digits; any of these may be empty. Label and id may not.

The converter parses blocks with pyarrow, which would also take `0x1F` and ` 7` as integers:
`CheckedBytes` refuses bytes that no field may hold. Only after a block is refused does
`find_broken_line` read line by line, to name the line and the field.
"""

from __future__ import annotations

import difflib
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import pyarrow as pa

from pipeline.data.parquet_layouts import KEY_COLUMNS, LABEL_COLUMNS, Dataset, raw_schema
from pipeline.errors import ConfigError, ContractError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_FIELD_BYTES = b"0123456789abcdefABCDEF-\r\n"
# Longer than any valid line; a longer line is not read to its end.
_MAX_LINE = 1 << 16
_INTEGER = re.compile(r"-?[0-9]+")
_HEX = re.compile(r"[0-9a-fA-F]{8}")
_MOST_DIGITS = 100
_SHOWN = 60
FieldCheck = Callable[[str], str | None]  # field's text -> what is wrong, or None


class TextFile(NamedTuple):
    """One input file: its columns in their order, the delimiter, and header lines (0 or 1)."""

    path: Path
    dataset: Dataset
    columns: tuple[str, ...]
    delimiter: str
    header_lines: int

    @property
    def has_label(self) -> bool:
        """True for a training file."""
        return LABEL_COLUMNS[self.dataset].name in self.columns

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The Arrow type of each column."""
        schema = raw_schema(self.dataset)
        return {name: schema.field(name).type for name in self.columns}


def is_gzip(path: Path) -> bool:
    """True when the file starts as gzip does, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


@contextmanager
def open_lines(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked. Damaged gzip raises ContractError on reading."""
    try:
        with path.open("rb") as file:
            packed = is_gzip(path)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged_gzip(path, error) from error


class CheckedBytes(io.RawIOBase):
    """A file's bytes as pyarrow reads them, which are checked below the header.

    Raises pa.ArrowInvalid for a byte that no field may hold.
    """

    def __init__(self, file: TextFile) -> None:
        compression = "gzip" if is_gzip(file.path) else None
        self._stream = pa.input_stream(str(file.path), compression=compression)
        self._allowed = _FIELD_BYTES + file.delimiter.encode()
        self._in_header = file.header_lines > 0
        self._at_start = True

    def readable(self) -> bool:
        """True, as pyarrow asks."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most `size`."""
        data: bytes = self._stream.read(size)
        fields = data.removeprefix(BYTE_ORDER_MARK) if self._at_start else data
        self._at_start = False
        if self._in_header:
            _, end, fields = data.partition(b"\n")
            self._in_header = not end
        if fields.translate(None, self._allowed):
            raise pa.ArrowInvalid("a byte that no field may hold")
        return data

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()


def damaged_gzip(path: Path, error: Exception) -> ContractError:
    """The error for a gzip file that ends early or does not unpack."""
    return ContractError(f"{path}: the gzip file is truncated or damaged ({error}): fetch it again")


def inspect_file(path: Path, dataset: Dataset) -> TextFile:
    """Look at the first line. Raises ConfigError without a file, ContractError if it is wrong."""
    if not path.is_file():
        raise ConfigError(f"input {path} is not a file")
    try:
        with open_lines(path) as file:
            line = file.readline(_MAX_LINE)
            has_rows = bool(file.read(1)) or dataset == "criteo"
    except OSError as error:
        raise ConfigError(f"cannot read input {path}: {error}") from error
    if not line:
        raise ContractError(f"{path}: the file is empty")
    text = line.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    inspected = _criteo(path, text) if dataset == "criteo" else _avazu(path, text)
    if not has_rows:
        raise ContractError(f"{path}: the file holds a header and no rows")
    return inspected


def _criteo(path: Path, line: str) -> TextFile:
    features = raw_schema("criteo", with_label=False).names[1:]
    columns = [LABEL_COLUMNS["criteo"].name, *features]
    found = line.count("\t") + 1
    if found not in (len(columns), len(features)):
        raise ContractError(
            f"{path}:1: has {found} tab-separated fields, "
            f"expected {len(columns)} with a label or {len(features)} without"
        )
    return TextFile(path, "criteo", tuple(columns[len(columns) - found :]), "\t", 0)


def _avazu(path: Path, header: str) -> TextFile:
    columns = header.split(",")
    known = raw_schema("avazu").names
    required = [name for name in known if name != LABEL_COLUMNS["avazu"].name]
    problems = []
    for name in columns:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (nearest is {near[0]})" if near else ""
            problems.append(f"unknown column {name[:40]!r}{hint}")
    problems += [f"missing column {name!r}" for name in required if name not in columns]
    problems += [f"repeated column {n!r}" for n in sorted(set(columns)) if columns.count(n) > 1]
    if problems:
        more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ContractError(f"{path}:1: header: {', '.join(problems[:5])}{more}")
    return TextFile(path, "avazu", tuple(columns), ",", 1)


def never_null(dataset: Dataset) -> set[str]:
    """The columns that every row must fill."""
    return {KEY_COLUMNS[dataset].name, LABEL_COLUMNS[dataset].name}


def find_broken_line(file: TextFile, rows_before: int) -> str | None:
    """`file:line: what is wrong` for the first broken line, passing over that many rows.

    None when no line breaks the rules.
    """
    checks = _field_checks(file)
    first = file.header_lines + rows_before
    with open_lines(file.path) as lines:
        lines.seek(len(BYTE_ORDER_MARK) if lines.read(3) == BYTE_ORDER_MARK else 0)
        bounded = iter(partial(lines.readline, _MAX_LINE + 1), b"")
        for number, line in enumerate(islice(bounded, first, None), start=first + 1):
            problem = _check_line(line, file.delimiter, checks)
            if problem:
                return f"{file.path}:{number}: {problem}"
    return None


def _check_line(line: bytes, delimiter: str, checks: list[tuple[str, FieldCheck]]) -> str | None:
    if len(line) > _MAX_LINE:
        return f"the line has more than {_MAX_LINE:,} bytes"
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
    return (
        None
        if len(text) <= _MOST_DIGITS and low <= int(text) <= high
        else f"is outside {kind} ({low} to {high})"
    )


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
