"""One writer per output folder: `OutputLock`.

Two mechanisms, because neither is enough alone. `flock` excludes other processes of the same kernel
(and of most network file systems): the kernel releases it when its holder dies, even if the process
id is reused. A heartbeat counter in the lock file excludes other hosts whose file system keeps
`flock` local: the lock of another host counts as alive until its counter has not changed for `ttl`
seconds of our own monotonic clock, so no two clocks are compared.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.errors import ConfigError, LockedError, ResumableError
from pipeline.publishing.atomic import make_folders

LOCK_NAME = "_lock"
# What a rerun cures, once there is room again or the access is given back.
_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
_TRANSIENT |= {errno.EROFS, errno.EACCES, errno.EPERM}
_NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_ATTEMPTS = 100
_log = logging.getLogger(__name__)
# The record has a fixed size and only the digits of `beats` change in place, so that a reader never
# sees a half-written record.
_RECORD_BYTES = 1024


@dataclass(frozen=True)
class Owner:
    """Content of a lock file: the process that holds it, and its heartbeat counter `beats`.

    `host_id` tells one running kernel from another.
    """

    host: str
    host_id: str
    pid: int
    uuid: str
    started: str
    beats: str = f"{0:012d}"

    def __str__(self) -> str:
        """For error messages."""
        return f"process {self.pid} on host {self.host} (since {self.started})"

    @classmethod
    def this_process(cls) -> Owner:
        """A new owner; each call gives another `uuid`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(socket.gethostname(), _host_id(), os.getpid(), uuid.uuid4().hex, now)

    @classmethod
    def read(cls, handle: int) -> Owner | None:
        """The owner in a file; None while it holds none."""
        try:
            return cls(**json.loads(os.pread(handle, _RECORD_BYTES, 0)))
        except (ValueError, TypeError):
            return None

    def write(self, handle: int) -> None:
        """Write at the start of a file, in one call."""
        record = json.dumps(asdict(self)).encode().ljust(_RECORD_BYTES - 1) + b"\n"
        if os.pwrite(handle, record, 0) != len(record):
            raise OSError(errno.ENOSPC, "a lock record was written in part only")

    def next_beat(self) -> Self:
        """The same owner, one heartbeat later."""
        return replace(self, beats=f"{int(self.beats) + 1:012d}")


def _host_id() -> str:
    """The kernel's boot id: containers of one kernel share it (and flock), a reboot changes it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class OutputLock:
    """Context manager that owns an output folder (made if it is not there).

    Entering raises LockedError naming the owner; it waits up to `ttl` seconds only for a lock of
    another host that may be dead, without `wait` not even for that. Leaving removes the lock file,
    unless another took it over, and folders that entering made, unless they were used.
    `beat` is the time between two heartbeats in seconds; `ttl` must be several of them.
    """

    def __init__(
        self, output: str | Path, ttl: float = 60.0, beat: float = 5.0, wait: bool = True
    ) -> None:
        if not 0 < 3 * beat <= ttl:
            raise ValueError(f"ttl must be at least 3 beats, got ttl={ttl} and beat={beat}")
        self.path = Path(output).expanduser().absolute() / LOCK_NAME
        self._ttl, self._beat, self._wait = ttl, beat, wait
        self._made: list[Path] = []
        self._handle = -1
        self._created = False
        self._owner: Owner | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Take the lock."""
        if self._handle >= 0:
            raise RuntimeError(f"the lock {self.path} is held already")
        try:
            self._handle = self._open_locked()
            _LIVE.add(self)
            self._take_over()
        except OSError as error:
            self._give_up()
            raise _write_error(self.path.parent, error) from error
        except BaseException:
            self._give_up()
            raise
        self._stop.clear()
        self._thread = threading.Thread(target=self._keep_beating, name="output-lock", daemon=True)
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
        """Raise if the lock is no longer ours: call it before what must not be done twice."""
        found = self._read_path()
        if found is None:
            raise ResumableError(f"the lock {self.path} was removed while this job held it")
        if self._owner is None or found.uuid != self._owner.uuid:
            raise LockedError(f"the output {self.path.parent} was taken over by {found}")

    def release(self) -> None:
        """Stop the heartbeat and remove the lock file if it is still ours; can be called twice."""
        self._stop.set()
        stuck = False
        if self._thread is not None:
            self._thread.join(timeout=10)
            stuck = self._thread.is_alive()  # in a write that hangs: it still needs the handle
        found = self._read_path()
        if self._owner is not None and found is not None and found.uuid == self._owner.uuid:
            with suppress(OSError):
                self.path.unlink()
            self._remove_made()
        self._owner = self._thread = None
        if not stuck:
            self._close()

    def _open_locked(self) -> int:
        """A handle that holds the flock of the file at the path now, not of one since removed."""
        for _ in range(_ATTEMPTS):
            self._made += make_folders(self.path.parent)
            try:
                handle = self._open()
            except FileNotFoundError:  # removed by its owner between two of our calls
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path(handle):
                    return handle
                os.close(handle)
            except BlockingIOError:
                owner = Owner.read(handle)
                os.close(handle)
                name = str(owner) if owner else "a process that has just started"
                raise LockedError(
                    f"the output {self.path.parent} is being written by {name}; "
                    "wait for it, stop it, or choose another output"
                ) from None
            except BaseException:
                os.close(handle)
                raise
        raise FileNotFoundError(errno.ENOENT, "the lock file keeps being removed")

    def _open(self) -> int:
        # O_CLOEXEC: Ray's processes must not inherit the flock and outlive this process with it
        flags = os.O_RDWR | os.O_CLOEXEC
        with suppress(FileExistsError):
            handle = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            self._created = True
            return handle
        self._created = False
        return os.open(self.path, flags)

    def _is_at_path(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def _take_over(self) -> None:
        """Write our owner record, once no owner on another host can be alive."""
        found = Owner.read(self._handle)
        mine = Owner.this_process()
        # An empty file that we did not create may belong to another host that is about to write it.
        foreign = not self._created and (found is None or found.host_id != mine.host_id)
        if foreign:
            if not self._wait:
                raise LockedError(f"the output {self.path.parent} has a lock of {found}")
            self._wait_until_dead(found)
        self._owner = mine
        mine.write(self._handle)
        os.fsync(self._handle)
        if foreign:  # another waiter may have written at the same time: the last writer keeps it
            time.sleep(2 * self._beat)
            self.check()

    def _wait_until_dead(self, found: Owner | None) -> None:
        still_for = 2 * self._beat if found is None else self._ttl
        who = found or "an unknown process"
        _log.warning("lock of %s found, waiting %.0f s for its heartbeat", who, still_for)
        since = time.monotonic()
        while time.monotonic() - since < still_for:
            time.sleep(self._beat / 2)
            now = self._read_path()
            if now is None or now == found:
                continue
            raise LockedError(
                f"the output {self.path.parent} is being written by {now}, which is alive; "
                "wait for it, stop it, or choose another output"
            )

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._beat):
            owner = self._owner
            if owner is None:
                return
            found = self._read_path()
            if found is not None and found.uuid != owner.uuid:
                return  # taken over while this process was suspended; check() tells the job
            self._owner = owner.next_beat()
            with suppress(OSError):  # a full disk must not stop the job; the next beat may pass
                self._owner.write(self._handle)

    def _read_path(self) -> Owner | None:
        """The owner in the file at the path, opened again so that no network cache answers."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return Owner.read(handle)
        finally:
            os.close(handle)

    def _give_up(self) -> None:
        if self._created and self._handle >= 0:  # we created it and hold its flock
            with suppress(OSError):
                self.path.unlink()
        self._remove_made()
        self._owner = None
        self._close()

    def _remove_made(self) -> None:
        """Remove the folders that were made for the lock alone."""
        with suppress(OSError):  # not empty
            while self._made:
                self._made.pop().rmdir()
        self._made = []

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _forget_in_child(self) -> None:
        """A forked child holds a copy of the flock: close it, and never beat or release."""
        self._owner = self._thread = None
        self._close()


def _write_error(folder: Path, error: OSError) -> ConfigError | ResumableError:
    reason = error.strerror or str(error)
    if error.errno in _TRANSIENT:
        return ResumableError(
            f"cannot write to the output {folder}: {reason}; make room or restore access, then run "
            "the same command"
        )
    if error.errno in _NO_FLOCK:
        return ConfigError(
            f"the file system of the output {folder} has no file locks ({reason}), which keep two "
            "jobs from writing one output; choose an output on another file system"
        )
    return ConfigError(f"cannot write to the output {folder}: {reason}; choose another output")


_LIVE: weakref.WeakSet[OutputLock] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for lock in list(_LIVE):
        lock._forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)
