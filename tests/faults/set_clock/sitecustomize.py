"""Loaded by Python at its start where this folder is on PYTHONPATH: a clock that is set under way.

SET_CLOCK names a file of one int64, the seconds to add to the time of day, read at each call.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from pathlib import Path


def set_clock() -> None:
    """Put an offset before the time of day."""
    with Path(os.environ["SET_CLOCK"]).open("rb") as file:
        page = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    seconds, nanoseconds = time.time, time.time_ns

    def offset() -> int:
        return struct.unpack("q", page[:8])[0]

    time.time = lambda: seconds() + offset()
    time.time_ns = lambda: nanoseconds() + offset() * 10**9


def load_the_next() -> None:
    """Load the module of this name that this one hides, if there is one."""
    mine = Path(__file__).resolve()
    for folder in sys.path:
        path = Path(folder) / mine.name
        if path.is_file() and path.resolve() != mine:
            runpy.run_path(str(path))
            return


set_clock()
load_the_next()
