"""Object stores in memory, behind the true ObjectStore, and requests that crash, fail or freeze."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest
from obstore.store import MemoryStore

import pipeline.publishing.store as store_output
import pipeline.publishing.store_lock as store_lock
from pipeline.publishing import output_tree
from pipeline.storage.object_store import ObjectInfo, ObjectStore

Result = TypeVar("Result")
ADDRESS = "s3://memory/deep/output"


class MemoryObjects(ObjectStore):
    """The true ObjectStore, whose bucket is memory of this process."""

    def __init__(self, bucket: MemoryStore | None = None, address: str = ADDRESS) -> None:
        self.address, self._prefix = address, address.split("/", 3)[3]
        self._bucket = bucket or MemoryStore()

    def copy(self) -> MemoryObjects:
        """Another store with the same objects."""
        other = MemoryObjects(address=self.address)
        for info in self.list():
            other.put(info.key, self.read(info.key))
        return other


class Crash(BaseException):
    """The process is dead: nothing that it asks for is done any more."""


class FaultyStore:
    """The requests of one process to a store; `fault(at)` is asked what becomes of each.

    crash: dead before it; crash-after: dead after it; half: dead after a part of many keys;
    fail: refused; lost: done, but the answer is lost; twice: sent again, as clients do after a lost
    answer. Or a function: called before it, while the process is frozen.
    """

    def __init__(
        self, store: ObjectStore, fault: Callable[[int], str | Callable[[], None]] | None = None
    ) -> None:
        self.store, self.address = store, store.address
        self.fault = fault or (lambda at: "")
        self.count, self.dead = 0, False
        self.names: list[str] = []
        self._guard = threading.RLock()

    def path(self, key: str) -> str:
        return self.store.path(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(self._ask("list", lambda: list(self.store.list(prefix))))

    def info(self, key: str) -> ObjectInfo | None:
        return self._ask(f"info {key}", lambda: self.store.info(key))

    def read(self, key: str, etag: str | None = None) -> bytes:
        return self._ask(f"read {key}", lambda: self.store.read(key, etag))

    def read_with_info(self, key: str, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        return self._ask(f"read {key}", lambda: self.store.read_with_info(key, etag))

    def read_range(self, key: str, start: int, stop: int) -> memoryview:
        return self._ask(f"range {key}", lambda: self.store.read_range(key, start, stop))

    def put(self, key: str, data: Any) -> str:
        return self._ask(f"put {key}", lambda: self.store.put(key, data))

    def create(self, key: str, data: Any) -> str | None:
        return self._ask(f"create {key}", lambda: self.store.create(key, data))

    def swap(self, key: str, data: Any, etag: str) -> str | None:
        return self._ask(f"swap {key}", lambda: self.store.swap(key, data, etag))

    def delete(self, keys: Iterable[str]) -> None:
        some = [*keys]
        half = some[: (len(some) + 1) // 2]
        if some:
            self._ask(
                f"delete {some[0]}, ...",
                lambda: self.store.delete(some),
                lambda: self.store.delete(half),
            )

    def _ask(
        self, name: str, do: Callable[[], Result], half: Callable[[], Any] | None = None
    ) -> Result:
        with self._guard:
            if self.dead:
                raise Crash
            self.count += 1
            self.names.append(name)
            how = self.fault(self.count)
            if callable(how):
                how()
                return do()
            if how in ("crash", "half", "crash-after"):
                self.dead = True
                if how == "half" and half is not None:
                    half()
                if how == "crash-after":
                    do()
                raise Crash
            if how == "fail":
                raise OSError(errno.EIO, "503 Service Unavailable: please slow down", name)
            if how == "lost":
                do()
                raise OSError(errno.EIO, "the answer was lost", name)
            if how == "twice":
                do()
            return do()


class QuickStoreLock(store_lock.StoreLock):
    """A lock whose owner, in the same process, is as far as another host's; waits for a moment."""

    def _take(self, mine: store_lock.StoreOwner) -> str:
        beat, ttl = self._beat, self._ttl
        self._beat, self._ttl = 0.005, 0.02
        try:
            return super()._take(mine)
        finally:
            self._beat, self._ttl = beat, ttl


@contextlib.contextmanager
def outputs_in(opened: Callable[[], Any]) -> Iterator[None]:
    """Every output at an address lies in the store that `opened` gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_output, "open_store", lambda address: opened())
        patch.setattr(output_tree, "open_store", lambda address: opened())
        patch.setattr(store_output, "StoreLock", QuickStoreLock)
        patch.setattr(store_output, "THREADS", 1)
        patch.setattr(store_lock, "_process_table", lambda: "")
        yield
