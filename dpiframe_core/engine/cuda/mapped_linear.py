"""Products with compiled epilogues: the sources of their kernels, one for each tile configuration
that the batches' sizes need (csrc/kernels/gemm/mapped/map_epilogue.cuh).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.cuda.device_layout import DeviceLayout, element_bytes
from dpiframe_core.engine.cuda.formula import statements
from dpiframe_core.engine.cuda.kernel_compiler import KernelSource, find_compiler
from dpiframe_core.engine.cuda.places import PlacedLinear
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_PASSES, Pass
from dpiframe_core.program.expression import replaced
from dpiframe_core.program.steps import MappedLinear, Step
from dpiframe_core.program.views import View, Weight

ARCH = "sm_90a"  # wgmma exists on Hopper alone
TYPES = {"fp32": "float", "tf32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}


def kernel_sources(
    step: MappedLinear, layout: DeviceLayout, places: int = 1
) -> list[tuple[_core.LinearConfig, KernelSource]]:
    """The kernels of a step, or of so many that are one, each with its tiles."""
    n, k = layout.program.weights[step.weight].shape
    configs = _core.linear_configs(
        layout.precision, layout.max_batch, int(n) // places, int(k), places
    )
    operands = _map_struct(step, layout)
    return [
        (config, KernelSource(step.name, _source(operands, layout.precision, config, places > 1)))
        for config in configs
    ]


def compiled_products(layout: DeviceLayout) -> dict[str, list[tuple[_core.LinearConfig, bytes]]]:
    """The kernels of all such steps by name, with their tile configurations.

    RuntimeError: there is no NVRTC.
    """
    wanted = [
        (product.name, config, source)
        for step in layout.program.steps
        for product, places in _launched(step)
        for config, source in kernel_sources(product, layout, places)
    ]
    if not wanted:
        return {}
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("there is no NVRTC to compile the products' epilogues")
    cubins = compiler.compile_all([source for *_, source in wanted], ARCH, layout.precision)
    found: dict[str, list[tuple[_core.LinearConfig, bytes]]] = {}
    for (name, config, _), cubin in zip(wanted, cubins, strict=True):
        found.setdefault(name, []).append((config, cubin))
    return found


def _launched(step: Step) -> list[tuple[MappedLinear, int]]:
    """The products of a step that are launches, and how many are one in each."""
    if isinstance(step, PlacedLinear):
        return [(step.whole, len(step.parts))]
    return [(leaf, 1) for leaf in step.leaves() if isinstance(leaf, MappedLinear)]


def device_passes(device: int) -> tuple[Pass, ...]:
    """The passes of a GPU: with compiled epilogues where it and NVRTC allow them."""
    is_hopper = _core.cuda_device_count() > device and _core.gpu_arch(device) == ARCH
    return COMPILED_PASSES if is_hopper and find_compiler() is not None else DEVICE_PASSES


def _source(
    map_struct: str, precision: str, config: _core.LinearConfig, places: bool = False
) -> str:
    form = f"TileForm<{config.tile_n}, {2 if config.in_turn else 1}, {config.rows}>"
    scaled = "true" if precision == "fp32" else "false"
    if precision == "fp32":
        header, tiles = "sm90_linear_fp16x3.cuh", "fp16x3_tiles<Form, Epilogue>"
    else:
        header = "sm90_linear.cuh"
        tiles = f"linear_tiles<{TYPES[precision]}, Form, Epilogue{', true' if places else ''}>"
    return f"""#include "common/short_functions.h"
#include "kernels/gemm/mapped/map_epilogue.cuh"
#include "kernels/gemm/{header}"
#include "kernels/tensor/functions.h"

using namespace dpiframe;

{map_struct}
using Form = {form};
using Epilogue = MapEpilogue<{TYPES[precision]}, Form::kTileN, {scaled}, Map>;

extern "C" __global__ void __launch_bounds__(Form::kThreads, Form::kCtas)
    mapped_linear(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ EpilogueMaps maps,
                  const __grid_constant__ MapEpilogueParams e,
                  const __grid_constant__ TileScheduler scheduler) {{
  {tiles}(x_map, w_map, maps, e, scheduler);
}}
"""


def column_constants(step: MappedLinear, weights: Mapping[str, np.ndarray]) -> list[Weight]:
    """The constants that a kernel reads, behind the views: those of one number it contains."""
    return [name for name in step.constants if weights[name].size > 1]


def _map_struct(step: MappedLinear, layout: DeviceLayout) -> str:
    """The epilogue's expression. Constants of one number are part of it."""
    numbers = _numbers(step, layout)
    expression = replaced(step.expression, lambda name: numbers.get(name, name))
    made = step.products
    kept = [i for i in range(len(step.xs) + len(step.constants)) if f"x{i + made}" not in numbers]
    names = {f"x{i}": f"x[{i}]" for i in range(made)}
    names |= {f"x{i + made}": f"x[{place + made}]" for place, i in enumerate(kept)}
    if step.norm:
        first = made + len(step.xs) + len(step.constants)
        names |= {f"x{first + i}": f"x[{made + len(kept) + i}]" for i in range(2)}
    views = [step.xs[i] if i < len(step.xs) else None for i in kept]
    kinds = [_kind(view, step.out.width, layout) if view else "kColumns" for view in views]
    aligned = ["false" if view and not _aligned(view, layout) else "true" for view in views]
    short = layout.precision in HALF_PRECISIONS
    body = statements(expression, names, short)
    listed_kinds = ", ".join(f"MapOperandKind::{kind}" for kind in kinds or ["kRows"])
    return f"""struct Map {{
  static constexpr int kProducts = {made};
  static constexpr int kOperands = {len(kept)};
  static constexpr bool kDot = {"true" if step.head else "false"};
  static constexpr bool kSummed = {"true" if step.sums_out else "false"};
  static constexpr bool kNormed = {"true" if step.norm else "false"};
  static constexpr MapOperandKind kind(int operand) {{
    constexpr MapOperandKind kinds[] = {{{listed_kinds}}};
    return kinds[operand];
  }}
  static constexpr bool aligned(int operand) {{
    constexpr bool rows[] = {{{", ".join(aligned) or "true"}}};
    return rows[operand];
  }}
  static float of(const float (&x)[kProducts + kOperands + 2 * kNormed]) {{
    {body}
  }}
}};"""


def _numbers(step: MappedLinear, layout: DeviceLayout) -> dict[str, float]:
    """The operands that are constants of one number, by name."""
    weights = [layout.program.weights[name] for name in step.constants]
    first = step.products + len(step.xs)
    named = {f"x{first + i}": weight for i, weight in enumerate(weights)}
    return {name: float(w.reshape(-1)[0]) for name, w in named.items() if w.size == 1}


def _kind(view: View, width: int, layout: DeviceLayout) -> str:
    kind = "Rows" if view.width == width else "Scalar"
    return f"kFloat{kind}" if view.buffer in layout.floats else f"k{kind}"


def _aligned(view: View, layout: DeviceLayout) -> bool:
    """Whether rows begin at multiples of 16 bytes."""
    element = element_bytes(layout.precision, view.buffer in layout.floats)
    offset = layout.schedule.offsets[view.buffer] + view.start * element
    return offset % 16 == 0 and layout.strides[view.buffer] * element % 16 == 0
