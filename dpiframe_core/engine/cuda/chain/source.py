"""The source of a chain's kernel: its layers as constants of product_chain.cuh."""

from __future__ import annotations

from collections.abc import Sequence

from dpiframe_core.engine.cuda.chain.areas import (
    CHUNK,
    CHUNK_BYTES,
    GROUP,
    Areas,
    own_columns,
)
from dpiframe_core.engine.cuda.chain.layers import Layer

TYPES = {"fp16": ("__half", "f16"), "bf16": ("__nv_bfloat16", "bf16")}


def chain_source(
    layers: Sequence[Layer], areas: Areas, precision: str, stored: frozenset[int]
) -> str:
    """CUDA C++; `stored`: the layers whose results go to device memory."""
    of_type, of_wgmma = TYPES[precision]
    widths = sorted({own_columns(layer.n, areas.ctas) for layer in layers})
    products = "\n".join(_wgmma(width, of_wgmma) for width in widths)
    parts = "\n".join(_layer(i, layers, areas, i in stored) for i in range(len(layers)))
    listed = ", ".join(f"{{{a.offset}, {a.chunks}}}" for a in areas.inputs)
    return f"""#include "common/short_functions.h"
#include "kernels/chain/product_chain.cuh"
#include "kernels/tensor/functions.h"

using namespace dpiframe;

template <int kColumns>
struct Product;
{products}
template <int kIndex>
struct ChainLayer;
{parts}
struct Chain {{
  using T = {of_type};
  template <int kIndex>
  using Layer = ChainLayer<kIndex>;
  static constexpr int kLayers = {len(layers)};
  static constexpr int kInputs = {len(areas.inputs)};
  static constexpr ChainInput input(int i) {{
    constexpr ChainInput inputs[] = {{{listed}}};
    return inputs[i];
  }}
  static constexpr int kStages = {areas.stages};
  static constexpr int kStageBytes = {areas.stage_bytes};
  static constexpr int kStageArea = {areas.stages_at};
  static constexpr int kBarrierArea = {areas.barriers_at};
  static constexpr int kDotArea = {areas.dots_at};
  static constexpr int kMomentArea = {areas.moments_at};
  static constexpr int kInputsFree = {areas.inputs_free};
  static constexpr int kCtas = {areas.ctas};
}};

extern "C" __global__ void __launch_bounds__(kChainThreads, 1)
    product_chain(const __grid_constant__ ChainParams p) {{
  run_chain<Chain>(p);
}}
"""


def _layer(i: int, layers: Sequence[Layer], areas: Areas, stores: bool) -> str:
    layer = layers[i]
    own = own_columns(layer.n, areas.ctas)
    area = areas.read(layer.x)
    chunk, column = divmod(layer.x.start - area.view.start, CHUNK)
    out, out_column, in_place = -1, 0, False
    if layer.out:
        out, out_column = areas.written(layer.out).offset, layer.out.start
        in_place = areas.is_in_place(i, layer.out)
    operands = []
    for operand in layer.operands:
        at = areas.read(operand.view, epilogue=True)
        begin = operand.view.start - at.view.start
        operands.append(f"{{{at.offset}, {begin}, {operand.begin}, {operand.end}}}")
    dot = layer.dot
    within = f"column >= {dot.begin} && column < {dot.end}" if dot else "false"
    vector = dot.vector if dot else 0
    place = sum(before.dot is not None for before in layers[:i]) if dot else -1
    makers = [x.sums for x in layers if x.sums]
    moments = makers.index(layer.sums) if layer.sums else -1
    norm = makers.index(layer.norm.sums) if layer.norm else -1
    columns, eps = (layer.norm.width, layer.norm.eps) if layer.norm else (1, 0.0)
    return f"""template <>
struct ChainLayer<{i}> {{
  using Multiply = Product<{own}>;
  static constexpr int kK = {layer.k}, kN = {layer.n}, kOwn = {own};
  static constexpr int kTiles = {max(1, areas.stage_bytes // (2 * own * 128))};
  static constexpr int kX = {area.offset + chunk * CHUNK_BYTES}, kXStep = {column // GROUP};
  static constexpr int kOut = {out}, kOutColumn = {out_column};
  static constexpr bool kInPlace = {_bool(in_place)}, kStores = {_bool(stores)};
  static constexpr int kDot = {place}, kMoments = {moments}, kNorm = {norm};
  static constexpr float kNormColumns = {columns}, kNormEps = {eps!r};
  static constexpr int kVectors = {len(layer.vectors)}, kOperands = {len(operands)};
  static constexpr ChainOperand operand(int i) {{
    constexpr ChainOperand operands[] = {{{", ".join(operands) or "{}"}}};
    return operands[i];
  }}
  static float of(float sum, const float (&x)[kOperands + {1 + 2 * (norm >= 0)}],
                  const float (&v)[kVectors], int column) {{
    {layer.body}
  }}
  static float dot(float value, const float (&v)[kVectors], int column) {{
    return {within} ? value * v[{vector}] : 0.0f;
  }}
}};"""


def _wgmma(columns: int, of_type: str) -> str:
    """A product of 64 rows and 16 terms, both operands in shared memory."""
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    listed = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""template <>
struct Product<{columns}> {{
  template <class T>
  static void ss(float (&d)[{count}], std::uint64_t a, std::uint64_t b, int add) {{
    asm volatile(
        "{{.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{of_type}.{of_type} "
        "{{{sums}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;}}"
        : {listed}
        : "l"(a), "l"(b), "r"(add));
  }}
}};"""


def _bool(value: bool) -> str:
    return "true" if value else "false"
