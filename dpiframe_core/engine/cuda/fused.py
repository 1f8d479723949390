"""Which fused forward kernel runs a program as a whole, and for batches of how many samples.

The kernels are csrc/kernels/fused: `mlp` takes an MlpForm in 16 bits; `cross` and
`cross_persistent` a CrossForm in 16 bits, `cross_fp16x3` one in fp32. The form is what lowering
found (find_form); here it is asked whether its sizes are within the limits of the kernel for the
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.choice import chain_microseconds
from dpiframe_core.engine.cuda.chain.grouping import ProductChain
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.program.program import CrossForm, Layer, MlpForm, Program
from dpiframe_core.program.steps import FusedLinear, Linear

# The kernel for an MLP runs batches for which it takes at most so many times what steps take.
WORTH_IT = 1.0
# Microseconds of steps on an H200 (docs/decisions/fused_mlp.md): beside the products, of each that
# these are said to take alone or in a chain, a number of an embedding, a cross network's scalar
# behind a chain.
BESIDE, PRODUCTS, NUMBER, SCALAR = 6.88, 0.88, 0.9e-6, 2.6
# The 16-bit kernel takes about 21 us a million weights, however few the samples; steps of few
# samples take not much more than their launches: 23 us for 512 samples, 44 us for 2,048
# (docs/decisions/fused_cross.md).
MANY_WEIGHTS, STEPS_UP_TO = 1_000_000, 1024
# The fp32 kernel streams all weights through every cluster however few its samples.
FP16X3, FP16X3_STEPS_UP_TO = "fp32", 2048


def fused_form(program: Program, precision: str) -> MlpForm | CrossForm | None:
    """The program's form, where there is a fused forward kernel for it in this precision."""
    form = program.form
    if isinstance(form, MlpForm) and precision in HALF_PRECISIONS:
        return form if _mlp_fits(program, form) else None
    if isinstance(form, CrossForm) and precision in (*HALF_PRECISIONS, FP16X3):
        return form if _cross_fits(program, form, precision) else None
    return None


def steps_up_to(program: Program, form: MlpForm | CrossForm, precision: str, max_batch: int) -> int:
    """Batches of up to so many samples are faster as steps; 0: none is."""
    if isinstance(form, MlpForm):
        above = 0
        for samples in mlp_buckets(max_batch):
            one, steps = mlp_microseconds(program, form, precision, samples)
            if one <= WORTH_IT * steps:
                break  # for more samples too, or it loses less than a microsecond
            above = samples
        return above
    if precision == FP16X3:
        return FP16X3_STEPS_UP_TO
    weights = sum(layer.weight.size for layer in (*form.cross, *form.layers))
    return STEPS_UP_TO if weights > MANY_WEIGHTS else 0


def mlp_buckets(max_batch: int) -> list[int]:
    """The sizes of batches that an MLP's kernel may take."""
    most = _core.fused_wave_samples(9, 132)  # an H100's compute capability and multiprocessors
    return [samples for samples in _core.batch_buckets(max_batch) if samples <= most]


def mlp_microseconds(
    program: Program, form: MlpForm, precision: str, samples: int
) -> tuple[float, float]:
    """About what a batch takes as one kernel, and as the program's steps, in 16 bits."""
    one = _core.fused_mlp_microseconds(**_mlp_shape(program, form), samples=samples)
    products, is_chain = 0.0, False
    for step in program.steps:
        if isinstance(step, ProductChain) and samples in step.rows:
            is_chain = True
            products += chain_microseconds(step.layers, step.areas, samples)
            continue
        for leaf in step.leaves():
            if isinstance(leaf, (Linear, FusedLinear)):
                n, k = program.weights[leaf.weight].shape
                products += _core.linear_microseconds(precision, samples, int(n), int(k))
    numbers = samples * sum(slot.dim for slot in form.lookup.slots if slot.table is not None)
    steps = BESIDE + PRODUCTS * products + NUMBER * numbers
    # A cross network's scalar runs beside the products behind the first, but waits for a chain.
    return one, steps + (SCALAR if form.cross is not None and is_chain else 0)


def mlp_model(form: MlpForm, num_ids: int) -> _core.FusedMlpModel:
    """What the compiled part takes; a collapsed cross network's columns follow the first layer's
    own.
    """
    first, *rest = form.layers
    if form.cross is not None:
        extra = np.concatenate([form.cross.dots, form.cross.head])
        bias = first.bias
        if bias is not None:
            bias = np.concatenate([bias, np.zeros(len(extra), bias.dtype)])
        first = Layer(np.concatenate([first.weight, extra]), bias)
    return _core.FusedMlpModel(
        _layers([first, *rest]),
        shifts=form.cross.shift.astype(np.float32).tolist() if form.cross else [],
        has_cross=form.cross is not None,
        head=_row(form.head),
        bias=form.bias,
        num_ids=num_ids,
    )


def cross_model(form: CrossForm, num_ids: int) -> _core.FusedCrossModel:
    """What the compiled part takes."""
    return _core.FusedCrossModel(
        _layers(form.cross),
        _row(form.cross_head),
        _layers(form.layers),
        _row(form.head),
        bias=form.bias,
        num_ids=num_ids,
    )


def _layers(layers: Sequence[Layer]) -> list[tuple[np.ndarray, np.ndarray | None]]:
    return [
        (np.ascontiguousarray(x.weight, np.float32), None if x.bias is None else _row(x.bias))
        for x in layers
    ]


def _row(numbers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(numbers, np.float32)


def _mlp_fits(program: Program, form: MlpForm) -> bool:
    lookup = form.lookup
    slots = [slot for slot in lookup.slots if slot.table is not None]
    dims = {slot.dim for slot in slots}
    if lookup.fm_out and (len(dims) != 1 or not all(slot.in_fm for slot in slots)):
        return False
    return _core.fused_mlp_fits(**_mlp_shape(program, form))


def _mlp_shape(program: Program, form: MlpForm) -> dict[str, Any]:
    """What the compiled part knows a model of that form by."""
    lookup = form.lookup
    dims = [slot.dim if slot.table is not None else 0 for slot in lookup.slots]
    return {
        "dims": dims,
        "columns": [len(layer.weight) for layer in form.layers],
        "num_shifts": len(form.cross.shift) if form.cross else 0,
        "has_cross": form.cross is not None,
        "num_fm": max(dims) if lookup.fm_out else 0,
        "num_ids": len(program.field_rows),
        "max_rows": max(program.field_rows),
    }


def _cross_fits(program: Program, form: CrossForm, precision: str) -> bool:
    fits = _core.fused_cross_fp16x3_fits if precision == FP16X3 else _core.fused_cross_fits
    return fits(
        dims=[slot.dim if slot.table is not None else 0 for slot in form.lookup.slots],
        num_cross=len(form.cross),
        columns=[len(layer.weight) for layer in form.layers],
        num_ids=len(program.field_rows),
        max_rows=max(program.field_rows),
    )
