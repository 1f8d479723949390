"""The precisions of an engine, and what a GPU computes in for each."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from dpiframe_core.features.schema import FeatureSchema
from dpiframe_core.program.number_bounds import holds_in_fp16
from dpiframe_core.program.program import Program

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
HALF_PRECISIONS = ("fp16", "bf16")


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
