"""StoreLock: one writer per output in an object store.

The lock is an object: made by a conditional put, kept by heartbeats, each a conditional put on the
version before. Where a heartbeat has not changed for `ttl` seconds of our own monotonic clock, its
owner is taken for dead and the lock replaced, by a conditional put on that version, so that one of
many waiters gets it, and the owner, if it lives, fails at its next heartbeat. A dead owner in the
same process table is known at once. A driver that lost its lock and does not know yet can publish
nothing: the output's head is fenced (`store_head.py`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.errors import LockedError, ResumableError
from pipeline.publishing.lock import Owner
from pipeline.storage.object_store import ObjectStore

LOCK = "_lock"
TRIES = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreOwner(Owner):
    """Content of the lock's object; `table` and `born` tell one process of a host from others.

    `released`: given back, and about to be removed.
    """

    table: str = ""
    born: str = ""
    released: bool = False

    @classmethod
    def here(cls) -> StoreOwner:
        """This process; each call gives another `uuid`."""
        mine = Owner.this_process()
        return cls(**asdict(mine), table=_process_table(), born=_born(mine.pid))

    @classmethod
    def parse(cls, data: bytes) -> StoreOwner | None:
        """The owner in an object; None: no lock wrote it."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None

    def is_near(self, mine: StoreOwner) -> bool:
        """Whether we see its process, if it lives."""
        return bool(self.table) and (self.host_id, self.table) == (mine.host_id, mine.table)

    def lives(self) -> bool:
        """Whether its process runs; of one that is near."""
        return bool(self.born) and _born(self.pid) == self.born

    @property
    def data(self) -> bytes:
        """The bytes of the object."""
        return json.dumps(asdict(self)).encode()


def _process_table() -> str:
    """The namespace in which process ids are; empty where that cannot be told."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When a process began, in ticks since the kernel did; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class StoreLock:
    """Context manager that owns an output in a store; see `OutputLock`, which does so in a folder.

    All that talks to the store raises OSError.
    """

    def __init__(
        self, store: ObjectStore, ttl: float = 60.0, beat: float = 5.0, wait: bool = True
    ) -> None:
        if not 0 < 3 * beat <= ttl:
            raise ValueError(f"ttl must be at least 3 beats, got ttl={ttl} and beat={beat}")
        self.store = store
        self._ttl, self._beat, self._wait = ttl, beat, wait
        self._owner: StoreOwner | None = None
        self._etag = ""
        self._guard = threading.Lock()  # of the two above
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Take the lock. LockedError names the owner."""
        mine = StoreOwner.here()
        self._etag = self._take(mine)
        self._owner = mine
        self._stop.clear()
        self._thread = threading.Thread(target=self._keep_beating, name="store-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back."""
        self.release()

    def check(self) -> None:
        """Raise if the lock is no longer ours: call it before what must not be done twice.

        A lock that somebody removed is taken again.
        """
        with self._guard:
            if self._owner is None:
                raise ResumableError(f"the lock {self.store.path(LOCK)} is not held")
            found = self._read()
            if found is None:
                etag = self.store.create(LOCK, self._owner.data)
                if etag is not None:
                    self._etag = etag
                    return
                found = self._read()
            if found is None:
                raise ResumableError(f"the lock {self.store.path(LOCK)} was removed while held")
            if found[0] is None or found[0].uuid != self._owner.uuid:
                raise LockedError(f"the output {self.store.address} was taken over by {found[0]}")

    def release(self) -> None:
        """Stop the heartbeat and remove the lock if it is still ours; can be called twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._thread = None
        with suppress(OSError), self._guard:
            if self._owner is not None:
                # From here on nobody else's lock can be there before the object is removed.
                gone = replace(self._owner, released=True)
                if self._swap(gone):
                    self.store.delete([LOCK])
        self._owner = None

    def _take(self, mine: StoreOwner) -> str:
        """Make or take over the lock; its version."""
        for _ in range(TRIES):
            etag = self.store.create(LOCK, mine.data)
            if etag is not None:
                return etag
            found = self._read()
            if found is None:
                continue
            owner, etag = found
            near = owner is not None and owner.is_near(mine)
            if owner is None or not near or (owner.released and owner.lives()):
                self._wait_until_dead(owner, etag)
            elif owner.lives():
                raise LockedError(_busy(self.store, owner))
            taken = self.store.swap(LOCK, mine.data, etag)
            if taken is not None:
                return taken
        raise LockedError(f"the lock {self.store.path(LOCK)} is taken again and again by others")

    def _wait_until_dead(self, owner: StoreOwner | None, etag: str) -> None:
        """Return when the lock stood still for long enough, or is gone; LockedError: it beats."""
        given_back = owner is not None and owner.released
        still_for = min(self._ttl, 4 * self._beat) if given_back else self._ttl
        if not self._wait and not given_back:
            raise LockedError(f"the output {self.store.address} has a lock of {owner}")
        if not given_back:
            who = owner or "an unknown process"
            _log.warning("lock of %s found, waiting %.0f s for its heartbeat", who, still_for)
        since = time.monotonic()
        while time.monotonic() - since < still_for:
            time.sleep(self._beat / (20 if given_back else 2))
            info = self.store.info(LOCK)
            if info is None:
                return
            if info.etag != etag:
                found = self._read()
                if found is None:
                    return
                raise LockedError(_busy(self.store, found[0]))

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._beat):
            with suppress(OSError), self._guard:  # the next beat may pass
                owner = self._owner
                if owner is None or not self._swap(owner.next_beat()):
                    return  # taken over while this process was suspended; check() tells the job

    def _swap(self, owner: StoreOwner) -> bool:
        """Replace the record; False if the lock is another's. One that was removed is made anew."""
        assert self._owner is not None
        etag = self.store.swap(LOCK, owner.data, self._etag)
        if etag is None:
            found = self._read()
            if found is None:
                etag = self.store.create(LOCK, owner.data)
            elif found[0] is not None and found[0].uuid == owner.uuid:  # an answer was lost
                etag = self.store.swap(LOCK, owner.data, found[1])
        if etag is None:
            return False
        self._owner, self._etag = owner, etag
        return True

    def _read(self) -> tuple[StoreOwner | None, str] | None:
        """The owner and the version of the lock; None if it is not there."""
        try:
            data, info = self.store.read_with_info(LOCK)
        except FileNotFoundError:
            return None
        return StoreOwner.parse(data), info.etag


def _busy(store: ObjectStore, owner: StoreOwner | None) -> str:
    return (
        f"the output {store.address} is being written by {owner or 'an unknown process'}, which "
        "is alive; wait for it, stop it, or choose another output"
    )
