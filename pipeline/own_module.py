"""Our own modules as processes."""

from __future__ import annotations

import sys
from pathlib import Path


def own_module(name: str) -> list[str]:
    """The command that runs a module of ours, which is found where this process finds it.

    The current folder may hold another package of that name, such as `jobs` or `pipeline`.
    """
    looks_here = "" in sys.path or str(Path.cwd()) in sys.path
    return [sys.executable, *([] if looks_here else ["-P"]), "-m", name]
