"""The precisions of an engine, what a GPU computes in for each, and how exact that is."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from dpiframe_core.features.schema import FeatureSchema
from dpiframe_core.program.number_bounds import holds_in_fp16
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FM, Lookup

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
HALF_PRECISIONS = ("fp16", "bf16")

# Largest error of a logit against float64, in terms of max(1, |logit|). fp32 is the promise of
# every engine; the others follow from 10, 10 and 7 bits of mantissa in operands (for 16-bit types
# also in tables and activations).
LOGIT_BOUNDS = {"fp32": 1e-5, "tf32": 1e-2, "fp16": 1e-2, "bf16": 6e-2}
# FM's terms cancel, the roundings of the embedding rows that they are made of do not: in 16 bits
# FM brings at most so much more, in terms of sum_f sum_d |v_fd| |s_d - v_fd|, where s_d is the sum
# of v_fd over the fields. Half of it is the rounding of each v_fd (2^-11, 2^-8), half what two
# rounded numbers bring together, of up to 256 fields.
FM_BOUNDS = {"fp32": 0.0, "tf32": 0.0, "fp16": 2.0**-10, "bf16": 2.0**-7}


def computed_precision(precision: str, program: Program, schema: FeatureSchema | None) -> str:
    """What a GPU computes in: fp16 for bf16 where fp16 holds every number, else as asked for."""
    if precision != "bf16":
        return precision
    dense = dense_bounds(schema, program.num_dense)
    return "fp16" if holds_in_fp16(program, dense) else precision


def dense_bounds(schema: FeatureSchema | None, num_dense: int) -> list[float]:
    """The largest magnitude of each dense feature, as the schema makes it of any finite number."""
    if schema is None:
        return [np.inf] * num_dense
    largest = {"none": np.inf, "log1p": np.log1p(np.finfo(np.float64).max)}
    return [max((largest[d.transform] + abs(d.mean)) / d.std, abs(d.fill)) for d in schema.dense]


def bound_in_words(precision: str, program: Program) -> str:
    """How near a logit is to float64's, for `describe`; docs/engine.md says more."""
    text = f"logits within {LOGIT_BOUNDS[precision]:g} max(1, |logit|)"
    has_fm = any(
        isinstance(step, FM) or (isinstance(step, Lookup) and step.fm_out is not None)
        for step in program.steps
    )
    if has_fm and FM_BOUNDS[precision]:
        text += f" + {FM_BOUNDS[precision]:g} sum |v| |s - v| (FM: v of a field, s of all)"
    return f"{text} of float64's"
