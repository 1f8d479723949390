"""Atomic files: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path

# The mark in the names of temporary files, by which those of a killed process are found later.
TEMP_MARK = ".dpiframe-tmp-"


def write_atomic(
    path: Path, data: bytes | memoryview, check: Callable[[], None] = lambda: None
) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    `check` is called right before the rename and may raise to forbid it. Raises OSError (disk full,
    permission, ...) and removes its temporary file if it can.
    """
    temporary = temp_path(path)
    try:
        write_synced(temporary, data)
        check()
        commit(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error tells more
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


def make_folders(folder: Path) -> list[Path]:
    """Make `folder` and the missing folders above it; returns those made, the outermost first.

    Each new entry, and that of `folder` in any case, is pushed to the disk: a folder that a power
    cut takes away would take everything in it along.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made = []
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            path.mkdir()
            made.append(path)
            with contextlib.suppress(PermissionError):  # writable, but not readable
                sync_folder(path.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not made:
        with contextlib.suppress(OSError):  # of a mount point it is no matter of ours
            sync_folder(folder.parent)
    return made


def temporaries(folder: Path) -> list[Path]:
    """What killed attempts left in `folder` (not below it)."""
    return list(folder.glob(f".*{TEMP_MARK}*")) if folder.is_dir() else []


def remove_temporaries(folder: Path) -> int:
    """Remove temporary files of killed attempts from `folder` (not below it); returns how many."""
    found = temporaries(folder)
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
