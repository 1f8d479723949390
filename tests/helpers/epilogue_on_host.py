"""Epilogues of products on the host: compiled ones (csrc/kernels/gemm/mapped), a warp's part of a
tile; the one of csrc/kernels/gemm/sm90_epilogue.cuh, all tiles.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

CSRC = Path(__file__).parents[2] / "csrc"
EMULATOR = Path(__file__).parent / "epilogue_emulator"
TYPES = {"fp16": "__half", "bf16": "__nv_bfloat16", "tf32": "float", "fp32": "float"}
MAIN = """
using namespace dpiframe;
using T = {type};
constexpr int kTileN = {tile_n}, kBlocks = {blocks};
using Epilogue = MapEpilogue<T, kTileN, {scaled}, Map>;

// sums: [kBlocks * 16, kTileN], of the rows from first_row on, and of those 64 below.
extern "C" void run(const MapEpilogueParams* e, const float* sums, const float* bias,
                    const float* scale, long long first_row, int first_column, int part) {{
  alignas(16) float vectors[ColumnVectors::kVectors * kTileN];
  std::copy(bias, bias + kTileN, vectors);
  std::copy(scale, scale + kTileN, vectors + kTileN);
  alignas(1024) unsigned char memory[2 * kBoxBytes];
  std::memset(memory, 0xff, sizeof(memory));
  const EpilogueMaps maps{{}};
  std::vector<std::thread> lanes;
  for (unsigned lane = 0; lane < 32; ++lane)
    lanes.emplace_back([&, lane] {{
      threadIdx.x = lane;
      float own[kBlocks][kTileN / 2];
      for (int b = 0; b < kBlocks; ++b)
        for (int i = 0; i < kTileN / 2; ++i) {{
          const int row = b * 16 + lane / 4 + i / 2 % 2 * 8;
          const int column = i / 8 * 16 + lane % 4 * 4 + i / 4 % 2 * 2 + i % 2;
          own[b][i] = sums[row * kTileN + column];
        }}
      const ColumnVectors columns(vectors, kTileN);
      const WarpBoxes boxes(maps, memory, kBoxBytes, 0);
      Epilogue epilogue(*e, columns, boxes, first_row, first_column);
      epilogue.start<kBlocks>();
      epilogue.finish(own, part);
    }});
  for (auto& lane : lanes) lane.join();
}}
extern "C" void fill(MapEpilogueParams* e, long long rows, int n, void* out, long long ldo,
                     int vectors, int count, const void* const* data, const long long* strides) {{
  *e = {{}};
  e->linear.rows = rows;
  e->linear.n = n * Map::kProducts;
  e->columns = n;
  e->linear.out = out;
  e->linear.ldo = ldo;
  e->vectors = vectors;
  for (int i = 0; i < count; ++i) e->operands[i] = {{data[i], strides[i]}};
}}
// head [n]; written: dots, sums, squares, [parts, rows] each; read: those of moments.
extern "C" void fill_rows(MapEpilogueParams* e, const float* head, float* const* made,
                          float* const* read, int parts, float columns, float eps) {{
  e->linear.head = head;
  e->linear.head_partial = made[0];
  e->linear.ld_partial = e->linear.rows;
  e->row_sums = {{made[1], made[2]}};
  e->moments = {{{{read[0], read[1]}}, parts, columns, eps}};
}}
extern "C" long long params_bytes() {{ return sizeof(MapEpilogueParams); }}
"""


def cuda_headers() -> Path | None:
    """The folder of CUDA's headers; None where there is no toolkit."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    text = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", "-"], input="", capture_output=True, text=True
    )
    found = [part for part in text.stderr.split() if part.startswith('"-I')]
    folders = [Path(part.strip('"').removeprefix("-I")) for part in found]
    return next((folder for folder in folders if (folder / "cuda_fp16.h").exists()), None)


def _compiled(source: Path, library: Path, headers: Path | None, *folders: Path) -> ctypes.CDLL:
    """The library of a source; `folders` are looked in before csrc."""
    assert headers is not None
    included = [f"-I{folder}" for folder in (*folders, EMULATOR, CSRC)]
    command = ("g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", *included)
    subprocess.run([*command, f"-isystem{headers}", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


class RowParts(NamedTuple):
    """What an epilogue makes of rows: dots with head [n], sums and sums of squares [parts, rows];
    and reads: sums and sums of squares of rows of so many columns.
    """

    head: np.ndarray
    made: tuple[np.ndarray, np.ndarray, np.ndarray]
    read: tuple[np.ndarray, np.ndarray]
    columns: int
    eps: float


class HostEpilogue:
    """An epilogue for tiles of `tile_n` columns, of 16 rows in each of `blocks` blocks."""

    def __init__(
        self, map_struct: str, precision: str, tile_n: int, blocks: int, folder: Path
    ) -> None:
        self.tile_n, self.blocks = tile_n, blocks
        self.rows: RowParts | None = None
        headers = cuda_headers()
        scaled = "true" if precision == "fp32" else "false"
        source, library = folder / "epilogue.cpp", folder / "epilogue.so"
        source.write_text(
            '#include "warp.h"\n#include "kernels/gemm/mapped/map_epilogue.cuh"\n'
            f"using namespace dpiframe;\n{map_struct}\n"
            + MAIN.format(type=TYPES[precision], tile_n=tile_n, blocks=blocks, scaled=scaled)
        )
        self._library = _compiled(source, library, headers)

    def run(
        self,
        sums: np.ndarray,
        bias: np.ndarray,
        scale: np.ndarray,
        operands: Sequence[tuple[torch.Tensor, int]],
        out: torch.Tensor,
        place: tuple[int, int],
        shape: tuple[int, int],
        vectors: bool,
    ) -> None:
        """sums [blocks * 16, tile_n]; bias, scale [tile_n]; operands and their strides; `place`:
        first row and column of the tile; `shape`: rows and columns of all. Writes `out`, and
        what `self.rows` says.
        """
        size = self._library.params_bytes
        size.restype = ctypes.c_longlong
        params = ctypes.create_string_buffer(int(size()))
        data = (ctypes.c_void_p * len(operands))(*(x.data_ptr() for x, _ in operands))
        strides = (ctypes.c_longlong * len(operands))(*(stride for _, stride in operands))
        self._library.fill(
            params,
            ctypes.c_longlong(shape[0]),
            shape[1],
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_longlong(out.stride(0)),
            int(vectors),
            len(operands),
            data,
            strides,
        )
        if self.rows:
            rows = self.rows
            self._library.fill_rows(
                params,
                ctypes.c_void_p(rows.head.ctypes.data),
                (ctypes.c_void_p * 3)(*(x.ctypes.data for x in rows.made)),
                (ctypes.c_void_p * 2)(*(x.ctypes.data for x in rows.read)),
                len(rows.read[0]),
                ctypes.c_float(rows.columns),
                ctypes.c_float(rows.eps),
            )
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (sums, bias, scale)]
        tile = place[1] // self.tile_n
        self._library.run(params, *pointers, ctypes.c_longlong(place[0]), place[1], tile)


TILES = """
#include "tile_epilogue.h"
using namespace dpiframe;
extern "C" void run(const long long* sizes, const float* sums, const float* bias, const float* head,
                    const void* x0, const void* xl, void* out, float* partial) {{
  LinearParams p{{}};
  p.rows = sizes[0];
  p.n = p.relu_end = p.head_end = sizes[1];
  p.ldo = p.ldx0 = p.ldxl = sizes[2];
  p.cross_end = p.relu_begin = sizes[3];
  p.head_begin = sizes[4];
  p.bias = bias;
  p.head = head;
  p.x0 = x0;
  p.xl = xl;
  p.out = out;
  p.head_partial = partial;
  p.ld_partial = p.rows;
  finish_tiles<{type}, {tile_n}>(p, sums);
}}
"""


class HostTiles:
    """Bias, ReLU, cross layer and head of a product, in tiles of `tile_n` columns."""

    def __init__(self, precision: str, tile_n: int, folder: Path) -> None:
        source, library = folder / "tiles.cpp", folder / "tiles.so"
        source.write_text(TILES.format(type=TYPES[precision], tile_n=tile_n))
        self._library = _compiled(source, library, cuda_headers(), EMULATOR / "boxes")

    def run(
        self,
        sums: np.ndarray,
        vectors: tuple[np.ndarray, np.ndarray | None],
        rows: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        ranges: tuple[int, int],
        partial: np.ndarray,
        stored: bool = True,
    ) -> None:
        """sums [rows, tiles * tile_n]; `vectors`: bias [n] and head [n - head_begin], or None;
        `rows`: x0 and xl, which lie as out [rows, n] does; `ranges`: where the cross layer ends and
        ReLU begins; where the head begins. Writes partial [tiles, rows] and, if `stored`, out.
        """
        bias, head = vectors
        sizes = (ctypes.c_longlong * 5)(*out.shape, out.stride(0), *ranges)
        arrays = [a.ctypes.data_as(ctypes.c_void_p) for a in (sums, bias)]
        weights = None if head is None else head.ctypes.data_as(ctypes.c_void_p)
        given = [ctypes.c_void_p(x.data_ptr()) for x in (*rows, out)]
        if not stored:
            given[2] = ctypes.c_void_p(None)
        parts = None if head is None else partial.ctypes.data_as(ctypes.c_void_p)
        self._library.run(sizes, *arrays, weights, *given, parts)
