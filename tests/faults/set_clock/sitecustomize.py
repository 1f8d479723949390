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


def _page() -> mmap.mmap:
    with Path(os.environ["SET_CLOCK"]).open("rb") as file:
        return mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)


PAGE = _page()
RIGHT, RIGHT_NS = time.time, time.time_ns


def seconds() -> float:
    """In place of time.time; with a name of this module, as Ray pickles it."""
    return RIGHT() + struct.unpack("q", PAGE[:8])[0]


def nanoseconds() -> int:
    """In place of time.time_ns."""
    return RIGHT_NS() + struct.unpack("q", PAGE[:8])[0] * 10**9


def load_the_next() -> None:
    """Load the module of this name that this one hides, if there is one."""
    mine = Path(__file__).resolve()
    for folder in sys.path:
        path = Path(folder) / mine.name
        if path.is_file() and path.resolve() != mine:
            runpy.run_path(str(path))
            return


time.time, time.time_ns = seconds, nanoseconds
load_the_next()
