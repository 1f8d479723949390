"""The kernel of a chain of products (csrc/kernels/chain) on the host: the threads of a cluster, its
shared memory, its barriers; wgmma and TMA as plain loops.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import torch
from epilogue_on_host import CSRC, cuda_headers
from torch_types import TORCH_TYPES

from dpiframe_core.engine.cuda.chain.areas import own_columns
from dpiframe_core.engine.cuda.chain.grouping import ProductChain
from dpiframe_core.program.program import Program

EMULATOR = Path(__file__).parent / "chain_emulator"
PARTIALS, SENTINEL = 3, -7.0
MAIN = """
extern "C" void run(ChainParams* p, int blocks) {
  std::memset(shared, 0xff, sizeof(shared));
  gridDim.x = blocks;
  constexpr unsigned kCtas = Chain::kCtas;
  cluster = std::make_unique<std::barrier<>>(kCtas * kThreads);
  for (int block = 0; block < blocks; block += kCtas) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kCtas * kThreads; ++i)
      threads.emplace_back([=] {
        cta = i / kThreads;
        blockIdx.x = block + cta;
        threadIdx.x = i % kThreads;
        product_chain(*p);
      });
    for (auto& thread : threads) thread.join();
  }
}
extern "C" ChainParams* make(long long rows) {
  auto* p = new ChainParams{};
  p->rows = rows;
  p->num_tiles = (rows + kChainRows - 1) / kChainRows;
  return p;
}
extern "C" void set_map(ChainParams* p, int weight, int i, const void* data, long rows,
                        long columns, long stride, long box_rows) {
  const HostMap map{static_cast<const unsigned char*>(data), rows, columns, stride, box_rows};
  std::memcpy(weight ? p->weights + i : p->inputs + i, &map, sizeof(map));
}
extern "C" void set_layer(ChainParams* p, int i, const float* vectors, void* out, long stride,
                          float* partial, float* sums, float* squares, long ld_partial,
                          int num_partials) {
  p->vectors[i] = vectors;
  p->outs[i] = {out, stride, partial, sums, squares, ld_partial, num_partials};
}
"""


def compiled(source: str, folder: Path) -> ctypes.CDLL:
    """The library of a chain's source."""
    begin = source.index("template <int kColumns>\nstruct Product;")
    end = source.index("template <int kIndex>")
    product = "template <int kColumns>\nusing Product = HostProduct<kColumns>;\n"
    path, library = folder / "chain.cpp", folder / "chain.so"
    path.write_text('#include "cta.h"\n' + source[:begin] + product + source[end:] + MAIN)
    folders = [f"-I{EMULATOR}", f"-I{CSRC}", f"-isystem{cuda_headers()}"]
    flags = ("-std=c++20", "-O2", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", "-pthread")
    subprocess.run(["g++", *flags, *folders, "-o", library, path], check=True)
    return ctypes.CDLL(str(library))


def run(
    chain: ProductChain, program: Program, precision: str, buffers: dict[str, torch.Tensor],
    blocks: int, folder: Path,
) -> None:  # fmt: skip
    """Reads the chain's inputs from `buffers` [rows, columns], which are in float64, and writes
    what other steps read, and the dots, there.
    """
    library, kind = compiled(chain.source(precision).text, folder), TORCH_TYPES[precision]
    library.make.restype = ctypes.c_void_p
    (rows,) = {len(buffer) for buffer in buffers.values()}
    params = ctypes.c_void_p(library.make(ctypes.c_longlong(rows)))
    kept: list[object] = []  # memory that the kernel reads

    def number(value: int) -> ctypes.c_long:
        return ctypes.c_long(value)

    def address(values: torch.Tensor | np.ndarray | None) -> ctypes.c_void_p | None:
        kept.append(values)
        if values is None:
            return None
        at = values.data_ptr() if isinstance(values, torch.Tensor) else values.ctypes.data
        return ctypes.c_void_p(at)

    for i, area in enumerate(chain.areas.inputs):
        view = area.view
        values = torch.full((rows, view.width + 8), torch.nan, dtype=kind)
        values[:, : view.width] = buffers[view.buffer][:, view.start : view.start + view.width]
        sizes = map(number, (rows, view.width, values.stride(0), 64))
        library.set_map(params, 0, i, address(values), *sizes)
    results, sums = {}, dict[str, torch.Tensor]()
    for i, layer in enumerate(chain.layers):
        weight = prepared(program.weights[layer.weight], kind)
        own = own_columns(layer.n, chain.areas.ctas)
        sizes = map(number, (*weight.shape, weight.stride(0), own))
        library.set_map(params, 1, i, address(weight), *sizes)
        vectors = np.pad(np.stack(layer.vectors), ((0, 0), (0, -layer.n % 16)))
        if i in chain.stored:
            results[i] = torch.full((rows, -(-layer.n // 8) * 8 + 8), SENTINEL, dtype=kind)
        made = {"dot": layer.dot and layer.dot.out}
        if i in chain.summed:
            made |= {"sums": layer.sums, "squares": layer.squares}
        for view in made.values():
            if view:
                sums[view.buffer] = torch.full((PARTIALS, rows), torch.nan)
        out = results.get(i)
        parts = [sums[v.buffer] if (v := made.get(x)) else None for x in ("dot", "sums", "squares")]
        library.set_layer(
            params, i, address(vectors), address(out), number(0 if out is None else out.stride(0)),
            *map(address, parts), number(rows), PARTIALS,
        )  # fmt: skip
    library.run(params, blocks)
    for buffer, parts in sums.items():
        buffers[buffer][:, 0] = parts.double().sum(0)
    for i, layer in enumerate(chain.layers):
        if layer.out and i in results:
            assert (results[i][:, layer.n :] == SENTINEL).all(), "written outside its columns"
            buffer = buffers[layer.out.buffer]
            buffer[:, layer.out.start : layer.out.start + layer.n] = results[i][:, : layer.n]


def prepared(weight: np.ndarray, kind: torch.dtype) -> torch.Tensor:
    """As prepare_linear_weight lays it out (csrc/kernels/gemm/tile_config.h)."""
    n, k = weight.shape
    rows = np.arange(-(-n // 16) * 16)
    places = rows // 16 * 16 + rows % 4 // 2 * 8 + rows % 16 // 4 * 2 + rows % 2
    made = torch.zeros((len(rows), -(-k // 64) * 64), dtype=kind)
    made[places[:n], :k] = torch.from_numpy(weight).to(kind)
    return made
