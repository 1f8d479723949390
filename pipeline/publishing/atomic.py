"""Atomic files: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

# The mark in the names of temporary files, by which those of a killed process are found later.
TEMP_MARK = ".dpiframe-tmp-"


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Raises OSError (disk full, permission, ...) and removes its temporary file if it can.
    """
    temporary = temp_path(path)
    try:
        write_synced(temporary, data)
        commit(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temp_path(path: Path) -> Path:
    """A unique hidden name in the folder of `path`."""
    return path.with_name(f".{path.name}{TEMP_MARK}{uuid.uuid4().hex[:12]}")


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a new file and fsync it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def commit(temporary: Path, path: Path) -> None:
    """Rename a synced temporary file to its final name, and fsync the folder."""
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that a rename in it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> int:
    """Remove temporary files of killed attempts from `folder` (not below it); returns how many."""
    found = list(folder.glob(f".*{TEMP_MARK}*")) if folder.is_dir() else []
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
