"""Entries of `input`: which part of a path is given, and which part is found below it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.storage.address import is_remote

MAGIC_CHARACTERS = frozenset("*?[")
ENDINGS = (".parquet", ".parq", ".pq")  # in any case


def entries(given: str | Sequence[str]) -> list[str]:
    """The entries of an `input`, which may be one."""
    return [given] if isinstance(given, str) else list(given)


def is_pattern(entry: str) -> bool:
    """Whether an entry is a glob."""
    return bool(MAGIC_CHARACTERS & set(entry))


def is_parquet_name(name: str) -> bool:
    """Whether a file below a folder that is an entry belongs to the input, by its name."""
    return name.lower().endswith(ENDINGS) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Whether tools give such names to files without data: .part.crc, _SUCCESS, _temporary."""
    return name.startswith((".", "_"))


def base_of(entry: str) -> str:
    """The folder below which an entry finds files: of a glob, the part before its first wildcard;
    of all else, the entry itself, which may be a file.
    """
    if not is_pattern(entry):
        return entry.rstrip("/") or "/"
    scheme, mark, rest = entry.rpartition("://")
    parts = PurePosixPath(rest).parts
    first = next(i for i, part in enumerate(parts) if is_pattern(part))
    return scheme + mark + str(PurePosixPath(*parts[:first]))


class FoundFile(NamedTuple):
    """An input file: its absolute path, links resolved, or address, and its path below the folder
    from which on folder names are partition columns.
    """

    path: str
    below: str


def lead_of(entry: str, partition_base: str | None) -> str:
    """What lies between `partition_base` and the base of an entry, with a slash behind it, or
    nothing. ConfigError: the entry is not below it.
    """
    if partition_base is None:
        return ""
    base, above = _absolute(base_of(entry)), _absolute(base_of(partition_base))
    if base == above:
        return ""
    prefix = above.rstrip("/") + "/"
    if not base.startswith(prefix):
        raise ConfigError(f"input {entry} is not below partition_base {partition_base}")
    return base[len(prefix) :] + "/"


def _absolute(address: str) -> str:
    return address if is_remote(address) else str(Path(address).expanduser().absolute())


def absolute_base(entry: str) -> str:
    """`base_of`, absolute and with links resolved, as the paths of input files are."""
    base = base_of(entry)
    return base if is_remote(base) else str(Path(base).expanduser().resolve())
