"""The content of a lock file: who holds it, and a counter that shows that the holder lives."""

from __future__ import annotations

import errno
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

# The record always fills this many bytes and only the digits of `beats` ever change in place, so
# that a reader never sees a record that is half written.
_RECORD_BYTES = 1024


@dataclass(frozen=True)
class Owner:
    """A process that holds, or held, a lock. `host_id` tells one running kernel from another."""

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
        """A new owner; two of one process are not the same."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(socket.gethostname(), _host_id(), os.getpid(), uuid.uuid4().hex, now)

    @classmethod
    def read(cls, handle: int) -> Owner | None:
        """The owner in a file; None when it holds none (yet)."""
        try:
            return cls(**json.loads(os.pread(handle, _RECORD_BYTES, 0)))
        except (ValueError, TypeError):
            return None

    def write(self, handle: int) -> None:
        """Write at the start of a file, in one call."""
        record = json.dumps(asdict(self)).encode().ljust(_RECORD_BYTES - 1) + b"\n"
        if os.pwrite(handle, record, 0) != len(record):
            raise OSError(errno.ENOSPC, "a lock record was written in part only")

    def next_beat(self) -> Owner:
        """The same owner, one heartbeat later."""
        return replace(self, beats=f"{int(self.beats) + 1:012d}")


def _host_id() -> str:
    """The kernel's boot id: containers of one kernel share it (and flock), a reboot changes it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
