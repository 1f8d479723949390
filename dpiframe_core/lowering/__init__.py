"""Lowering: ModelSpec + weights -> Program, through small passes, each in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpiframe_core.lowering.batches_to_rows import batches_to_rows
from dpiframe_core.lowering.collapse_cross_v1 import collapse_cross_v1
from dpiframe_core.lowering.device.align_columns import align_columns
from dpiframe_core.lowering.device.batch_norm_to_affine import batch_norm_to_affine
from dpiframe_core.lowering.device.end_in_head import end_in_head
from dpiframe_core.lowering.device.find_form import find_form
from dpiframe_core.lowering.device.fuse_cross import fuse_cross
from dpiframe_core.lowering.device.fuse_dot import fuse_dot
from dpiframe_core.lowering.device.fuse_epilogue import fuse_epilogue, split_epilogues
from dpiframe_core.lowering.device.load_dense import load_dense
from dpiframe_core.lowering.device.lookup_dense import lookup_dense
from dpiframe_core.lowering.device.matmul_to_rows import matmul_to_rows
from dpiframe_core.lowering.device.pad_products import pad_products
from dpiframe_core.lowering.device.pair_dots import pair_dots
from dpiframe_core.lowering.device.pair_products import pair_products
from dpiframe_core.lowering.device.places_to_linear import places_to_linear, split_places
from dpiframe_core.lowering.device.separate_scalars import separate_scalars
from dpiframe_core.lowering.device.sum_parts import sum_parts
from dpiframe_core.lowering.fold_batch_norm import fold_batch_norm
from dpiframe_core.lowering.fuse_activation import fuse_activation
from dpiframe_core.lowering.fuse_head import fuse_head
from dpiframe_core.lowering.fuse_lookup import fuse_lookup
from dpiframe_core.lowering.fuse_softmax_guard import fuse_softmax_guard
from dpiframe_core.lowering.matmul_to_linear import matmul_to_linear
from dpiframe_core.lowering.merge_siblings import merge_siblings
from dpiframe_core.lowering.pick_late import pick_late
from dpiframe_core.lowering.place_concat import place_concat
from dpiframe_core.lowering.scale_columns import scale_columns
from dpiframe_core.lowering.scale_products import scale_products
from dpiframe_core.model.modules import ViewInputs
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.program import Program
from dpiframe_core.program.views import DENSE

if TYPE_CHECKING:
    from torch import Tensor

Pass = Callable[[Program], Program]

FUSIONS: tuple[Pass, ...] = (
    pick_late,
    matmul_to_linear,
    fold_batch_norm,
    batches_to_rows,
    fuse_activation,
    collapse_cross_v1,
    fuse_lookup,
    fuse_softmax_guard,
    scale_products,
    fuse_head,
    scale_columns,
)

PASSES: tuple[Pass, ...] = (*FUSIONS, merge_siblings, place_concat)

# Those that do not ask for a logit, for programs that end in another module.
MODULE_PASSES: tuple[Pass, ...] = (
    pick_late,
    matmul_to_linear,
    fold_batch_norm,
    batches_to_rows,
    fuse_activation,
    fuse_lookup,
    fuse_softmax_guard,
    scale_products,
    scale_columns,
)

# What the kernels of a GPU ask of any program.
DEVICE_FORM: tuple[Pass, ...] = (load_dense, separate_scalars, batch_norm_to_affine, end_in_head)

# For a GPU, which has fused forward kernels, and products with an epilogue of more than a bias and
# a ReLU.
DEVICE_PASSES: tuple[Pass, ...] = (
    *FUSIONS,
    places_to_linear,
    sum_parts,
    pair_dots,
    find_form,
    merge_siblings,
    place_concat,
    fuse_cross,
    fuse_dot,
    *DEVICE_FORM,
    align_columns,
    pad_products,
    matmul_to_rows,
    lookup_dense,
)

# The same for a GPU for which kernels are compiled at load.
BEFORE_MERGE = DEVICE_PASSES.index(merge_siblings)
COMPILED_PASSES: tuple[Pass, ...] = (
    *DEVICE_PASSES[:BEFORE_MERGE],
    split_places,
    fuse_epilogue,
    scale_columns,
    pair_products,
    *DEVICE_PASSES[BEFORE_MERGE:],
    split_epilogues,
)


def lower(
    spec: ModelSpec,
    weights: Mapping[str, np.ndarray] | Mapping[str, Tensor],
    passes: tuple[Pass, ...] = PASSES,
) -> Program:
    """The program of a model; with `passes=()` the plain one, a step for each small operation.

    Weights that lowering leaves alone share memory with those given; half types are widened to
    float32.
    """
    program = _plain(spec, {name: _array(weight) for name, weight in weights.items()})
    for run in passes:
        program = run(program)
    return program


def _plain(spec: ModelSpec, weights: Mapping[str, np.ndarray]) -> Program:
    """Every module lowered in order."""
    build = ProgramBuilder()
    views = {DENSE: build.buffer(DENSE, len(spec.dense))}
    for module, inputs, _ in spec.walk():
        read = [views[name] for name in module.inputs]
        views[module.name] = module.lower(build, ViewInputs(inputs.fields, inputs.shapes, read))
    return Program(
        field_names=tuple(f.name for f in spec.fields),
        field_rows=tuple(f.rows for f in spec.fields),
        oov_rows=tuple(-1 if f.oov_row is None else f.oov_row for f in spec.fields),
        num_dense=len(spec.dense),
        buffers=build.buffers,
        steps=tuple(build.steps),
        weights=weights,
        output=views[spec.output],
        field_ids=spec.field_ids,
    ).changed()


def _array(weight: np.ndarray | Tensor) -> np.ndarray:
    """The weight in float32 or float64, without a copy where it is that already."""
    if isinstance(weight, np.ndarray):
        return weight if weight.dtype.itemsize >= 4 else weight.astype(np.float32)
    widened = weight.detach() if weight.dtype.itemsize >= 4 else weight.detach().float()
    array: np.ndarray = widened.numpy()
    return array


__all__ = [
    "COMPILED_PASSES",
    "DEVICE_FORM",
    "DEVICE_PASSES",
    "FUSIONS",
    "MODULE_PASSES",
    "PASSES",
    "Pass",
    "lower",
]
