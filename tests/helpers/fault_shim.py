"""The fault shim from Python: build it, preload it, arm it, read its trace."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "faults" / "shim.c"


class Call(NamedTuple):
    """One file-system call of a trace that succeeded; see `on_paths` and the like in shim.c."""

    op: str
    fd: int
    at: int
    path: str
    to: str
    data: bytes


def compiler() -> str | None:
    """A C compiler, None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the shim into `folder`."""
    library = folder / "shim.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True)
    return library


def preloaded() -> bool:
    """Whether this process runs over the shim."""
    return hasattr(ctypes.CDLL(None), "faults_arm")


def run_over_shim(library: Path) -> int:
    """Run this very command again, over the shim; its exit code."""
    environment = os.environ | {"LD_PRELOAD": str(library)}
    return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


def arm(
    folder: Path, at: int = 0, mode: str = "", error: int = 0, trace: Path | None = None
) -> None:
    """From here on calls below `folder` count, and the fault hits number `at`."""
    name = os.fsencode(trace) if trace else b""
    ctypes.CDLL(None).faults_arm(os.fsencode(folder), ctypes.c_long(at), mode.encode(), error, name)


def count() -> int:
    """Calls since `arm`; the fault is over."""
    calls: int = ctypes.CDLL(None).faults_count()
    ctypes.CDLL(None).faults_disarm()
    return calls


def read_trace(path: Path) -> list[Call]:
    """The calls that a trace holds."""
    content, calls, position = path.read_bytes(), [], 0
    while position < len(content):
        end = content.index(b"\n", position)
        op, fd, at, size, name, to = content[position:end].decode().split("\t")
        position = end + 1 + int(size)
        calls.append(Call(op, int(fd), int(at), name, to, content[end + 1 : position]))
    return calls
