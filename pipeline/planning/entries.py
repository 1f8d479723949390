"""Entries of `input`: which part of a path is given, and which part is found below it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pipeline.storage.address import is_remote

MAGIC_CHARACTERS = frozenset("*?[")


def entries(given: str | Sequence[str]) -> list[str]:
    """The entries of an `input`, which may be one."""
    return [given] if isinstance(given, str) else list(given)


def is_pattern(entry: str) -> bool:
    """Whether an entry is a glob."""
    return bool(MAGIC_CHARACTERS & set(entry))


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


def absolute_base(entry: str) -> str:
    """`base_of`, absolute and with links resolved, as the paths of input files are."""
    base = base_of(entry)
    return base if is_remote(base) else str(Path(base).expanduser().resolve())
