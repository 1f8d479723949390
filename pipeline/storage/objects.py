"""Objects by their whole address: opened, and read so that a bad answer is asked for again."""

from __future__ import annotations

import errno
import random
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pipeline.errors import ConfigError
from pipeline.storage.address import split

if TYPE_CHECKING:
    from pipeline.storage.object_store import ObjectInfo, ObjectStore

# The store's client repeats a request by itself; it does not when an answer breaks off.
TRIES, PAUSE_S, GIVE_UP_S = 6, 0.1, 120.0
END_BYTES = 64 << 10  # one request brings most footers
_TAIL = 8  # length of the footer, magic

Result = TypeVar("Result")


class ObjectEnd(NamedTuple):
    """The last bytes of a parquet file, with its whole footer, and which object it is."""

    info: ObjectInfo
    bytes: memoryview


def open_store(address: str) -> ObjectStore:
    """The store at an address. ConfigError: a package is missing, or its settings are unusable."""
    try:
        from pipeline.storage.object_store import ObjectStore
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{address} needs the Python package {error.name}: pip install {error.name}, on every "
            "machine of the job"
        ) from None
    try:
        return ObjectStore(address)
    except ValueError as error:
        raise ConfigError(f"{address}: {error}") from None


def open_object(address: str) -> tuple[ObjectStore, str]:
    """The bucket of an object, and its key there. ConfigError."""
    bucket, key = split(address)
    return open_store(bucket), key


def repeated(ask: Callable[[], Result]) -> Result:
    """What a request gives, which is made again with growing pauses when its answer breaks off.

    OSError; a missing or replaced object and refused credentials are errors at once.
    """
    began = time.monotonic()
    for left in reversed(range(TRIES)):
        try:
            return ask()
        except OSError as error:
            late = time.monotonic() - began > GIVE_UP_S
            if error.errno != errno.EIO or not left or late:
                raise
        time.sleep(PAUSE_S * 2 ** (TRIES - left) * random.uniform(0.5, 1.0))
    raise AssertionError


def read_exactly(store: ObjectStore, key: str, start: int, stop: int, etag: str) -> memoryview:
    """Bytes [start, stop) of this version of an object, neither fewer nor more; OSError."""

    def ask() -> memoryview:
        found = store.read_range(key, start, stop, etag or None)
        if len(found) != stop - start:
            reason = f"an answer of {len(found)} bytes where {stop - start} were asked for"
            raise OSError(errno.EIO, reason, store.path(key))
        return found

    return repeated(ask)


def read_footer(address: str, etag: str = "") -> ObjectEnd:
    """The end of a parquet file, mostly by one request.

    What is no parquet file gives its last bytes. `etag`: the version that is wanted, if not any.
    OSError, ConfigError.
    """
    store, key = open_object(address)
    end, info = repeated(lambda: _end(store, key, etag))
    if len(end) >= _TAIL:
        length = struct.unpack("<I", end[-_TAIL:-4])[0] + _TAIL
        if len(end) < length <= info.size:
            start, stop = info.size - length, info.size - len(end)
            before = read_exactly(store, key, start, stop, info.etag)
            end = memoryview(b"".join([before, end]))
    return ObjectEnd(info, end)


def _end(store: ObjectStore, key: str, etag: str) -> tuple[memoryview, ObjectInfo]:
    try:
        end, info = store.read_end(key, END_BYTES, etag or None)
    except OSError as error:
        found = store.info(key) if error.errno == errno.EIO else None
        if found is None or found.size:
            raise
        return memoryview(b""), found  # no range of an empty object can be asked for
    if len(end) != min(END_BYTES, info.size):
        raise OSError(errno.EIO, f"an answer of {len(end)} bytes", store.path(key))
    return end, info
