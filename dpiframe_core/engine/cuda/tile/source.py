"""The source of one kernel that runs a group of operations over tiles of samples.

What stages (`stages.py`) hand to one another lies in shared memory (`shared_memory.py`), in the
activation type, or float32 for single numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpiframe_core.engine.cuda.tile.elements import Elements
from dpiframe_core.engine.cuda.tile.loops import THREADS, Loops
from dpiframe_core.engine.cuda.tile.merge import (
    merge_maps,
    merge_norms,
    merge_products,
    split_sums,
)
from dpiframe_core.engine.cuda.tile.multiply import Multiplications
from dpiframe_core.engine.cuda.tile.product import Product
from dpiframe_core.engine.cuda.tile.rolled import rolled
from dpiframe_core.engine.cuda.tile.shared_memory import (
    NO_PARTS,
    SharedMemory,
    Touched,
    UnsuitableError,
)
from dpiframe_core.engine.cuda.tile.stages import GOOD_SHARED, Stage, Stages
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.engine.translation import Operation
from dpiframe_core.program.tensor_ops import (
    Join,
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
    TakeAlong,
)
from dpiframe_core.program.views import View

MOST_SHARED = 227 * 1024 - 1024  # bytes of a CTA
FEW_SUMS = 32  # of a thread's products: three CTAs have registers for
LIGHT_ELEMENTS = 4096  # of a tile that only moves numbers: more CTAs wait for memory side by side
LEAST_FETCHED = 64  # columns of an input that are asked for ahead
SAMPLES = (32, 16, 8, 4, 2, 1)  # a tile, tried in this order
STAGES = (Map, Take, TakeAlong, Join, Reduce, Softmax, LayerNorm, MatMul)  # what has code here
TYPES = {"fp16": "Half", "bf16": "Bf16", "fp32": "float", "tf32": "float"}


@dataclass(frozen=True)
class TileKernel:
    """A kernel's source, and what it is launched with: buffers and weights in the order of its
    parameters.
    """

    source: str
    name: str
    samples: int
    shared_bytes: int
    buffers: tuple[str, ...]
    weights: tuple[np.ndarray, ...] = field(repr=False)


def tile_kernel(
    operations: Sequence[Operation],
    own: frozenset[str],
    floats: frozenset[str],
    precision: str,
    name: str = "tile_kernel",
    host: bool = False,
    parts: Mapping[str, View] = NO_PARTS,
) -> TileKernel:
    """The kernel of operations in order. `own`: buffers that nothing else reads; `floats`: those of
    float32 in device memory; `host`: as a function for tests; `parts`: what buffers are parts of,
    where they are. UnsuitableError: there is none.
    """
    merged, own = merge_norms(merge_products(operations, own), own)
    merged, own = split_sums(merge_maps(merged, own), own)

    def memory(samples: int, whole: bool) -> SharedMemory:
        return SharedMemory(Stages(merged, own, samples), floats, TYPES[precision], whole, parts)

    light = _most_elements(merged) if not any(_multiplies(o) for o in merged) else 0
    for samples in SAMPLES:
        if light * samples >= 2 * LIGHT_ELEMENTS and samples > 1 and not parts:
            continue
        plain = memory(samples, False)
        most = MOST_SHARED if samples == 1 or plain.fills_warpgroup else GOOD_SHARED
        if plain.bytes <= most:
            # Whole matrices are worth half of the samples, but no more.
            for fewer in (samples, samples // 2):
                found = memory(max(fewer, 1), True)
                if found.has_whole and found.bytes <= GOOD_SHARED:
                    return _Source(found, precision).kernel(name, host)
            return _Source(plain, precision).kernel(name, host)
    raise UnsuitableError(f"a sample takes {plain.bytes:,} bytes of shared memory")


def _multiplies(operation: Operation) -> bool:
    """Whether tensor cores have it, which want many rows."""
    op = operation.op
    return isinstance(op, MatMul) and Product.of(operation, op, SAMPLES[0]).fills_tiles


def _most_elements(operations: Sequence[Operation]) -> int:
    """Of a sample, in one operation."""
    return max(operand.size for o in operations for operand in _walked(o))


def _walked(operation: Operation) -> list[Operand]:
    """Operands all of whose elements are read."""
    found = list(operation.operands)
    if isinstance(operation.op, TakeAlong):
        found.pop(operation.op.picked)
    return found


class _Source:
    def __init__(self, memory: SharedMemory, precision: str) -> None:
        self.memory, self.stages, self.samples = memory, memory.stages, memory.samples
        self.tf32, self.short = precision == "tf32", precision in HALF_PRECISIONS
        self.elements = Elements(memory)
        self.loops = Loops(self.elements)
        self.products = Multiplications(self.elements, self.loops)

    def stage(self, stage: Stage) -> str:
        """A stage's code."""
        op = stage.operation.op
        if stage.scores is not None:
            return self.products.attend(stage, stage.scores)
        if stage.summed is not None:
            return self.products.multiply(stage.summed, stage)
        if isinstance(op, (Map, Take, TakeAlong)):
            return self.loops.each(stage.operation, stage.operation.out, stage.shape)
        if isinstance(op, Join):
            return self.loops.join(stage)
        if isinstance(op, Reduce):
            return self.loops.reduce(stage, op)
        if isinstance(op, Softmax):
            return self.loops.softmax(stage, op)
        if isinstance(op, LayerNorm):
            return self.loops.layer_norm(stage, op)
        if isinstance(op, MatMul):
            return self.products.multiply(stage)
        raise UnsuitableError(f"no stage computes {type(op).__name__}")

    def _fetches(self, number: int) -> list[str]:
        """What sets the whole matrix of a stage on its way."""
        matrix = self.memory.coming(number)
        return [self.products.fetch(self.stages.all[number].multiplying, matrix)] if matrix else []

    def kernel(self, name: str, host: bool) -> TileKernel:
        """The whole source."""
        body = self._fetches(0)
        body += [self.loops.load(view) for view in self.memory.staged.values()]
        # What was touched since all threads met.
        since = Touched(written=[self.memory.regions[buffer] for buffer in self.memory.staged])
        for number, stage in enumerate(self.stages.all):
            touched = self.memory.touched(number, stage)
            arrives = self.memory.coming(number) is not None
            if arrives:
                body.append("matrix_arrives();")
            if arrives or since.meets(touched, self.samples):
                body.append("meet();")
                since = Touched()
            since.add(touched)
            body += self._fetches(number + 1)
            body += [f"// {stage.operation.op} -> {stage.out}", self.stage(stage)]
        kinds = {
            type(s.operation.op) for stage in self.stages.all for s in (stage, stage.multiplying)
        }
        fit = (MOST_SHARED + 1024) // (self.memory.bytes + 1024)
        most = 3 if kinds & {MatMul, LayerNorm, Softmax} else 4
        if self.products.most_sums > FEW_SUMS:
            most = 2
        ctas = max(1, min(most, fit))
        lines = [
            *(["#define DPIF_TILE_HOST"] if host else [f"#define DPIF_TILE_THREADS {THREADS}"]),
            *(["#define DPIF_TILE_TF32"] if self.tf32 else []),
            *(["#define DPIF_TILE_SHORT"] if self.short else []),
            '#include "kernels/tile/tile.cuh"',
            "#define DPIF_UNROLL" + ("" if host else ' _Pragma("unroll")'),
            "#define DPIF_ROLLED" + ("" if host else ' _Pragma("unroll 1")'),
            "using namespace tile;",
            *(
                f"alignas(16) {'static' if host else '__device__'} const {_smallest(t)} t{n}[] = "
                f"{{{', '.join(map(str, t))}}};"
                for n, t in enumerate(self.elements.tables)
            ),
        ]
        if host:
            lines += [
                f'extern "C" void {name}(const Params* params, long long block) {{',
                "  const Params& p = *params;",
                f"  alignas(16) static unsigned char shared[{max(self.memory.bytes, 16)}];",
                f"  const long long first = block * {self.samples};",
            ]
        else:
            lines += [
                f'extern "C" __global__ void __launch_bounds__({THREADS}, {ctas})',
                f"    {name}(const __grid_constant__ Params p) {{",
                "  extern __shared__ __align__(16) unsigned char shared[];",
                f"  const long long first = blockIdx.x * {self.samples}ll;",
            ]
        lines += [
            f"  const int left = shorter(p.rows - first, {self.samples});",
            "  const auto at = [&](int s) { return s < left ? s : left - 1; };",
            "  (void)at;",
            "  begin();",
        ]
        for number, buffer in enumerate(self.elements.buffers):
            element = "float" if buffer in self.memory.floats else self.memory.type
            view = f"p.views[{number}]"
            lines += [
                f"  auto* const b{number} = "
                f"static_cast<{element}*>({view}.data) + first * {view}.stride;",
                f"  const auto g{number} = [&](int sample) {{ return "
                f"b{number} + sample * static_cast<int>({view}.stride); }};",
            ]
            begin, end = self.memory.inputs.get(buffer, (0, 0))
            if end - begin >= LEAST_FETCHED:
                sizes = f"{self.samples}, {ctas}, {begin}, {end}"
                lines.append(f"  fetch_next<{sizes}>(b{number}, {view}.stride, p.rows - first);")
        for number, weight in enumerate(self.elements.weights):
            lines.append(
                f"  const auto* w{number} = p.weights[{number}];"
                if weight.dtype == np.uint8
                else f"  const Numbers w{number}{{static_cast<const float*>(p.weights[{number}])}};"
            )
        pointers = {name: buffer for buffer, name in self.memory.pointers().items()}
        for pointer, buffer in pointers.items():
            region = self.memory.regions[buffer]
            at = f"shared + {region.offset}"
            lines.append(f"  auto* {pointer} = reinterpret_cast<{region.element}*>({at});")
        lines += [f"  {line}" for line in rolled(body)]
        lines.append("}")
        return TileKernel(
            "\n".join(lines) + "\n",
            name,
            self.samples,
            self.memory.bytes,
            tuple(self.elements.buffers),
            tuple(self.elements.weights),
        )


def _smallest(numbers: Sequence[int]) -> str:
    """The type of a table of indices."""
    return "short" if max(numbers) < 2**15 else "int"
