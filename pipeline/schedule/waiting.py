"""Waiting until the input of a job is there: `wait_for`, `deadline`.

Nothing is touched meanwhile. Durations are of a clock that is never set; only how long ago a file
was modified is the difference between the file system's clock and this host's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipeline.config.job import JobConfig
from pipeline.config.types import quiet_seconds, seconds_of
from pipeline.errors import DpiframeError, ResumableError
from pipeline.planning.entries import absolute_base, entries
from pipeline.planning.inputs import list_inputs
from pipeline.storage.address import is_remote
from pipeline.storage.objects import open_object

POLL_SECONDS = 5.0
LOG_SECONDS = 60.0
MARKER = "_SUCCESS"

log = logging.getLogger("dpiframe.job")


class _File(NamedTuple):
    """What changes when a file does; times in nanoseconds."""

    path: str
    size: int
    changed_ns: int


def wait_for_input(config: JobConfig, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once the input is there, at once if `wait_for` is not set.

    Raises ResumableError at the deadline, with what is still missing.
    """
    if config.wait_for is None:
        return
    quiet = quiet_seconds(config.wait_for)
    look = _Marked(config) if quiet is None else _Quiet(config, quiet)
    began = logged = time.monotonic()
    seconds = seconds_of(config.deadline)
    while True:
        try:
            missing = look()
        except (DpiframeError, OSError) as error:  # not there yet, or not in full
            missing = str(error)
        if missing is None:
            return
        now = time.monotonic()
        if now - began >= seconds:
            raise ResumableError(
                f"the input was not there within {config.deadline} (deadline): {missing}; nothing "
                "was touched, run the same command once it is"
            )
        if now - logged >= LOG_SECONDS or now == logged == began:
            logged = now
            log.warning("waiting for the input, up to %s: %s", config.deadline, missing)
        sleep(min(POLL_SECONDS, max(0.01, began + seconds - now)))


class _Marked:
    """Says which input file has no marker beside or above it, up to the folder of its entry."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._marked: set[str] = set()  # folders; a marker that was seen counts as there

    def __call__(self) -> str | None:
        for entry in entries(self._config.input):
            base = absolute_base(entry)
            for path in list_inputs(self._config.model_copy(update={"input": entry})):
                if not any(self._has_marker(folder) for folder in folders_above(path, base)):
                    return f"{path} has no {MARKER} beside it, nor in a folder above it"
        return None

    def _has_marker(self, folder: str) -> bool:
        if folder not in self._marked and exists(f"{folder.rstrip('/')}/{MARKER}"):
            self._marked.add(folder)
        return folder in self._marked


class _Quiet:
    """Says since when a file changed that must not have changed for so long."""

    def __init__(self, config: JobConfig, seconds: int) -> None:
        self._config, self._seconds = config, seconds
        self._seen: list[_File] | None = None
        self._changed = 0.0  # of the monotonic clock

    def __call__(self) -> str | None:
        files = [file_of(path) for path in dict.fromkeys(list_inputs(self._config))]
        newest = max(files, key=lambda file: file.changed_ns)
        now = time.monotonic()
        if self._seen is None:
            self._changed = now - max(0.0, time.time() - newest.changed_ns / 1e9)
        elif files != self._seen:  # whatever times they have: a copy may keep those of the original
            self._changed = now
        self._seen = files
        still = now - self._changed
        if still >= self._seconds:
            return None
        return f"{newest.path} changed {still:.0f} s ago, {self._seconds} s of quiet are asked for"


def folders_above(path: str, base: str) -> list[str]:
    """The folder of a file and those above it, up to `base` if that is one of them."""
    folder = path.rpartition("/")[0] or "/"
    found = [folder]
    while folder != base and folder.startswith(f"{base.rstrip('/')}/"):
        folder = folder.rpartition("/")[0] or "/"
        found.append(folder)
    return found


def exists(address: str) -> bool:
    """Whether there is a file or an object."""
    if not is_remote(address):
        return Path(address).exists()
    store, key = open_object(address)
    return store.info(key) is not None


def file_of(address: str) -> _File:
    """A file or an object as it is now; OSError."""
    if not is_remote(address):
        stat = Path(address).stat()
        return _File(address, stat.st_size, max(stat.st_mtime_ns, stat.st_ctime_ns))
    store, key = open_object(address)
    info = store.info(key)
    if info is None:
        raise FileNotFoundError(f"{address} was removed")
    return _File(address, info.size, info.modified_ns)
