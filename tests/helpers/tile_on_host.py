"""Generated kernels of groups of steps, compiled for the host and run there: by one thread, or with
emulated instructions by as many as on a GPU.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from dpiframe_core.engine.cuda.tile.grouping import TileGroup
from dpiframe_core.engine.cuda.tile.source import TileKernel
from dpiframe_core.program.program import Program
from dpiframe_core.program.views import State

CSRC = Path(__file__).parents[2] / "csrc"
EMULATOR = Path(__file__).parent / "tile_emulator"
COMPILE = ("g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC")
_LIBC = ctypes.CDLL(None)
Order = Literal["ascending", "descending"]
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class _View(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_longlong))


class _Params(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_longlong),
        ("views", _View * 16),
        ("weights", ctypes.c_void_p * 128),
    )


class GuardedMemory:
    """Copies of tensors, each right before a page that may not be touched: who reads or writes
    behind its end (rounded up to 16 bytes) dies of SIGSEGV.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        size = -(-tensor.nbytes // 16) * 16
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
        self._maps.append(memory)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        page = ctypes.c_size_t(mmap.PAGESIZE)
        if _LIBC.mprotect(ctypes.c_void_p(first + pages), page, 0):
            raise OSError("mprotect failed")
        offset = pages - size
        flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        return flat.view(tensor.shape).copy_(tensor)


def largest_error(
    program: Program,
    group: TileGroup,
    precision: str,
    batch: int,
    folder: Path,
    emulated: Order | None = None,
    warpgroups: bool = False,
) -> float:
    """Of what a group writes, over the largest number of each result, at least 1: the kernel's
    numbers against the steps' in float64, of random inputs; NaN where one alone has no number.
    `emulated`: all threads of a GPU, in
    this order, with the products of a Hopper's warpgroups if wanted.
    """
    floats = program.float_buffers()
    kernel = group.generate(program, floats, precision, host=not emulated)
    entry = _compiled(kernel, folder, emulated, warpgroups)
    generator = torch.Generator().manual_seed(batch)
    read = {view.buffer for view in group.reads()}
    full, rows, guarded = {}, {}, GuardedMemory()
    for name, width in program.buffers.items():
        kind = torch.float32 if name in floats else TYPES[precision]
        stride = width if width == 1 else -(-width // 8) * 8
        rows[name] = guarded.copy(torch.full((batch, stride), torch.nan, dtype=kind))
        if name in read:
            rows[name][:, :width] = torch.randn(batch, width, generator=generator) * 0.5
        full[name] = rows[name][:, :width].double()
    params = _Params(rows=batch)
    for i, name in enumerate(kernel.buffers):
        params.views[i] = _View(rows[name].data_ptr(), rows[name].stride(0))
    for i, weight in enumerate(kernel.weights):
        params.weights[i] = guarded.copy(torch.from_numpy(np.ascontiguousarray(weight))).data_ptr()
    for block in range(-(-batch // kernel.samples)):
        entry(ctypes.byref(params), ctypes.c_longlong(block))
    numbers = {n: torch.from_numpy(np.asarray(w, np.float64)) for n, w in program.weights.items()}
    state = State(full, numbers, torch.empty(0))
    group.run(state)
    worst = 0.0
    for view in group.writes():
        columns = slice(view.start, view.start + view.width)
        found, wanted = rows[view.buffer][:, columns].double(), full[view.buffer][:, columns]
        if not torch.equal(found.isnan(), wanted.isnan()):
            return math.nan
        found, wanted = found.nan_to_num(0.0), wanted.nan_to_num(0.0)
        worst = max(worst, ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1)).item())
    return worst


def _compiled(
    kernel: TileKernel, folder: Path, emulated: Order | None, warpgroups: bool
) -> Callable[..., None]:
    """The function of parameters and a block's number."""
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    text, name = kernel.source, kernel.name
    if warpgroups:
        text = f"#define DPIF_TILE_WARPGROUPS\n{text}"
    if emulated == "descending":
        text = f"#define DPIF_TILE_DESCENDING\n{text}"
    if emulated:
        size = max(kernel.shared_bytes, 16)
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        # Shared memory ends right before a page that may not be touched.
        text += f"""
#include <sys/mman.h>
extern "C" {{ alignas({mmap.PAGESIZE}) unsigned char pages[{pages + mmap.PAGESIZE}]; }}
asm(".globl shared\\n.set shared, pages + {pages - -(-size // 16) * 16}");
static const Params* given;
extern "C" void run_block(const Params* params, long long block) {{
  given = params;
  mprotect(pages + {pages}, {mmap.PAGESIZE}, PROT_NONE);
  std::memset(shared, 0xff, {size});  // NaN
  run_cta(block, [] {{ {name}(*given); }});
}}
"""
        name = "run_block"
    source.write_text(text)
    folders = [f"-I{EMULATOR}"] * bool(emulated) + [f"-I{CSRC}"]
    subprocess.run([*COMPILE, *folders, "-o", library, source], check=True)
    entry: Callable[..., None] = ctypes.CDLL(str(library))[name]
    return entry
