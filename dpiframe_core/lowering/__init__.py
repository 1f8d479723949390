"""Lowering: ModelSpec + weights -> Program, through small passes, each in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpiframe_core.lowering.collapse_cross_v1 import collapse_cross_v1
from dpiframe_core.lowering.device.align_columns import align_columns
from dpiframe_core.lowering.device.end_in_head import end_in_head
from dpiframe_core.lowering.device.fuse_cross import fuse_cross
from dpiframe_core.lowering.device.fuse_dot import fuse_dot
from dpiframe_core.lowering.device.load_dense import load_dense
from dpiframe_core.lowering.device.separate_scalars import separate_scalars
from dpiframe_core.lowering.fold_batch_norm import fold_batch_norm
from dpiframe_core.lowering.fuse_activation import fuse_activation
from dpiframe_core.lowering.fuse_head import fuse_head
from dpiframe_core.lowering.fuse_lookup import fuse_lookup
from dpiframe_core.lowering.merge_siblings import merge_siblings
from dpiframe_core.lowering.place_concat import place_concat
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.steps import Program

if TYPE_CHECKING:
    from torch import Tensor

Pass = Callable[[Program], Program]

PASSES: tuple[Pass, ...] = (
    fold_batch_norm,
    fuse_activation,
    collapse_cross_v1,
    fuse_lookup,
    fuse_head,
    merge_siblings,
    place_concat,
)

# What the kernels of a GPU ask of any program.
DEVICE_FORM: tuple[Pass, ...] = (load_dense, separate_scalars, end_in_head)

# For a GPU, whose products have an epilogue of more than a bias and a ReLU.
DEVICE_PASSES: tuple[Pass, ...] = (*PASSES, fuse_cross, fuse_dot, *DEVICE_FORM, align_columns)


def lower(
    spec: ModelSpec,
    weights: Mapping[str, np.ndarray] | Mapping[str, Tensor],
    passes: tuple[Pass, ...] = PASSES,
) -> Program:
    """The program of a model; with `passes=()` the plain one, a step for each small operation.

    Weights that lowering leaves alone share memory with those given; half types are widened to
    float32.
    """
    arrays = {name: _array(weight) for name, weight in weights.items()}
    program = ProgramBuilder(spec, arrays).build()
    for run in passes:
        program = run(program)
    return program


def _array(weight: np.ndarray | Tensor) -> np.ndarray:
    """The weight in float32 or float64, without a copy where it is that already."""
    if isinstance(weight, np.ndarray):
        return weight if weight.dtype.itemsize >= 4 else weight.astype(np.float32)
    widened = weight.detach() if weight.dtype.itemsize >= 4 else weight.detach().float()
    array: np.ndarray = widened.numpy()
    return array


__all__ = ["DEVICE_FORM", "DEVICE_PASSES", "PASSES", "Pass", "lower"]
