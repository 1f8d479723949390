"""Kernels compiled at load for the program at hand, by NVRTC, and kept on disk.

NVRTC comes with torch's CUDA packages and with the CUDA toolkit. Where there is none,
`find_compiler` returns None, and programs run by the kernels that were compiled ahead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from dpiframe_core import _core
from dpiframe_core.engine.precision import HALF_PRECISIONS

OPTIONS = ("--std=c++20", "-DNDEBUG", "--device-as-default-execution-space")
DIGEST_BYTES = 32


class CompileError(RuntimeError):
    """NVRTC refused a kernel that a program generated; with its log."""


class KernelSource(NamedTuple):
    """CUDA C++ of one kernel. It may include the headers that are embedded in the extension
    (csrc/jit/nvrtc.h); `name` is for messages alone.
    """

    name: str
    text: str


class Compiler(Protocol):
    """What `_core.Nvrtc` is."""

    @property
    def version(self) -> str: ...
    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes: ...


class KernelCompiler:
    """Compiles kernels, or takes them from `folder`, where it puts what it compiled.

    Any number of processes may share the folder. A file that is damaged is compiled anew; a folder
    that cannot be written is no error.
    """

    def __init__(self, compiler: Compiler, folder: Path) -> None:
        self._compiler, self._folder = compiler, folder

    def compile_all(
        self, sources: Sequence[KernelSource], arch: str, precision: str = "fp32"
    ) -> list[bytes]:
        """The cubin of each source for a GPU such as "sm_90a"; different ones in parallel threads.
        Kernels of other precisions than fp32 divide and take roots within 2 ulp, in a few
        instructions; those of 16 bits take subnormal numbers of float32 as 0, so that an
        exponential is one. An exact root calls a function, beside which ptxas lets one wgmma wait
        for the other, with all sums in memory between them.

        CompileError: a source does not compile.
        """
        inexact = () if precision == "fp32" else ("--prec-div=false", "--prec-sqrt=false")
        subnormals = ("--ftz=true",) if precision in HALF_PRECISIONS else ()
        options = (*OPTIONS, *inexact, *subnormals, f"--gpu-architecture={arch}")
        different = {source.text: source for source in sources}
        threads = max(1, min(len(different), os.cpu_count() or 1))
        with ThreadPoolExecutor(threads) as pool:
            made = pool.map(lambda source: self._made(source, options), different.values())
            cubins = dict(zip(different, made, strict=True))
        return [cubins[source.text] for source in sources]

    def _made(self, source: KernelSource, options: Sequence[str]) -> bytes:
        parts = (self._compiler.version, *options, _headers_digest(), source.text)
        digest = hashlib.sha256(b"".join(_framed(part.encode()) for part in parts))
        path = self._folder / f"{digest.hexdigest()}.cubin"
        kept = _read(path)
        if kept is None:
            try:
                kept = self._compiler.compile(source.text, source.name, options)
            except RuntimeError as error:
                raise CompileError(str(error)) from error
            _write(path, kept)
        return kept


def find_compiler() -> KernelCompiler | None:
    """A compiler with the cache of this user; None where there is no NVRTC."""
    nvrtc = _nvrtc()
    return None if nvrtc is None else KernelCompiler(nvrtc, cache_folder())


def cache_folder() -> Path:
    """$DPIFRAME_CACHE/kernels, else $XDG_CACHE_HOME/dpiframe/kernels, else
    ~/.cache/dpiframe/kernels.
    """
    if named := os.environ.get("DPIFRAME_CACHE"):
        return Path(named) / "kernels"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dpiframe" / "kernels"


@cache
def _nvrtc() -> Compiler | None:
    for path in _libraries():
        with suppress(RuntimeError):
            return _core.Nvrtc(path)
    return None


def _libraries() -> Iterator[str]:
    """Paths and names under which NVRTC may be found, torch's own first: its driver is there."""
    spec = importlib.util.find_spec("nvidia")
    folders = [
        Path(root) / package / "lib"
        for root in (spec.submodule_search_locations or () if spec else ())
        for package in ("cu13", "cuda_nvrtc")
    ]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders += [Path(toolkit) / "lib64" for toolkit in toolkits if toolkit]
    names = ("libnvrtc.so.13", "libnvrtc.so.12")
    for folder in folders:
        yield from (str(folder / name) for name in names if (folder / name).exists())
    yield from names


@cache
def _headers_digest() -> str:
    parts = (part for header in _core.embedded_headers() for part in header)
    return hashlib.sha256(b"".join(_framed(part.encode()) for part in parts)).hexdigest()


def _framed(part: bytes) -> bytes:
    """The part behind its length, so that no two lists of parts are the same bytes."""
    return len(part).to_bytes(8, "little") + part


def _read(path: Path) -> bytes | None:
    """What was kept, None where it is not there or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    kept = data[DIGEST_BYTES:]
    return kept if data[:DIGEST_BYTES] == hashlib.sha256(kept).digest() else None


def _write(path: Path, cubin: bytes) -> None:
    """Keep a cubin behind its digest; it appears by a rename."""
    made = path.with_name(f"{path.stem}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(hashlib.sha256(cubin).digest() + cubin)
        made.replace(path)
    except OSError:
        with suppress(OSError):
            made.unlink()
