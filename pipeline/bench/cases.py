"""What is measured: a model of the Criteo Kaggle shape, its inputs, and how a case is timed."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, PASSES, Pass
from dpiframe_core.lowering.fuse_lookup import fuse_lookup
from dpiframe_core.models import MODELS, Deep, Features
from pipeline.bench.ablation import NO_FUSION, split_lookup
from pipeline.data.cardinalities import CRITEO_CARDINALITIES
from pipeline.data.sampling import zipf_table
from pipeline.data.values import scatter

NUM_INTEGER_FIELDS, INTEGER_BUCKETS = 13, 100
ROTATED_INPUTS = 8
WARM_UP_CALLS = 4
TABLE_STD = 0.1  # of the tables' weights: logits of order 1, so that differences show


class EngineCase(BaseModel):
    """One benchmark case. `scale` shrinks the published cardinalities."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Literal["wdl", "deepfm", "dcn", "dcnv2"] = "dcnv2"
    batch: int = Field(default=4096, ge=1)
    dim: int = Field(default=16, ge=1)
    hidden: tuple[int, ...] = (400, 400, 400)
    ids: Literal["zipf", "uniform"] = "zipf"
    zipf_exponent: float = Field(default=1.05, gt=0)
    scale: float = Field(default=1.0, gt=0, le=1)
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "fp32"
    policy: Literal["serial", "depth_first", "breadth_first"] = "breadth_first"
    streams: int = Field(default=4, ge=1, le=64)
    graphs: bool = True
    lookup: Literal["fused", "by_table"] = "fused"
    fusion: bool = True
    peers: bool = True
    threads: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=20, ge=3)
    seed: int = 0

    def spec(self) -> ModelSpec:
        """39 one-hot fields: 13 bucketed integers, 26 of the published cardinalities."""
        rows = {f"I{i + 1}": INTEGER_BUCKETS for i in range(NUM_INTEGER_FIELDS)}
        rows |= {n: max(2, round(r * self.scale)) for n, r in CRITEO_CARDINALITIES.items()}
        fields = [FieldSpec(name=name, rows=r, dim=self.dim) for name, r in rows.items()]
        return MODELS[self.model](Features(fields), Deep(self.hidden))

    def passes(self) -> tuple[Pass, ...]:
        """The lowering that the case asks for (ablation)."""
        passes = DEVICE_PASSES if self.device == "cuda" else PASSES
        if not self.fusion:
            passes = (*NO_FUSION, *(DEVICE_FORM if self.device == "cuda" else ()))
        if self.lookup == "fused":
            return passes
        return (split_lookup, *(p for p in passes if p is not fuse_lookup))

    def inputs(self, spec: ModelSpec) -> list[np.ndarray]:
        """Several batches of ids [F, B] int64, so that no repeat meets its own rows in a cache."""
        rng = np.random.default_rng(self.seed)
        return [
            np.stack([self._draw(rng, field.rows) for field in spec.fields])
            for _ in range(ROTATED_INPUTS)
        ]

    def _draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        if self.ids == "uniform":
            return rng.integers(0, rows, self.batch)
        words = rng.integers(0, 2**64, self.batch, dtype=np.uint64)
        ranks = zipf_table(rows, self.zipf_exponent).draw(words)
        return scatter(ranks, rows).astype(np.int64)


def random_weights(case: EngineCase) -> dict[str, Tensor]:
    """Weights of the case's model; the large tables are made once for all cases alike."""
    generator = torch.Generator().manual_seed(case.seed)
    weights = {}
    for name, parameter in case.spec().parameters().items():
        if "/tables/" in name:
            weights[name] = _table(name, parameter.shape, case.seed)
        else:
            scale = parameter.shape[-1] ** -0.5 if len(parameter.shape) == 2 else 0.1
            weights[name] = torch.randn(parameter.shape, generator=generator) * scale
    return weights


@functools.lru_cache(maxsize=128)
def _table(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    # numpy's generator is several times faster here, and a table may have 160 million weights.
    rng = np.random.default_rng([seed, *name.encode()])
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= TABLE_STD
    return torch.from_numpy(values)


class Timing(NamedTuple):
    """Milliseconds of one batch: median, and the 10th and 90th percentile over the repeats."""

    median: float
    p10: float
    p90: float


def time_side_by_side(
    runs: Mapping[str, Callable[[int], object]], repeats: int
) -> dict[str, Timing]:
    """Time the runs in turns, so that they share the machine's disturbances.

    A turn is every input once, after a few calls that are not counted: a run is measured as its
    user calls it, many times in a row, not in caches that another run has filled.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    while min(map(len, taken.values())) < repeats:
        for name, run in runs.items():
            for call in range(-WARM_UP_CALLS, ROTATED_INPUTS):
                began = time.perf_counter()
                run(call % ROTATED_INPUTS)
                if call >= 0:
                    taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: _timing(samples) for name, samples in taken.items()}


def _timing(samples: list[float]) -> Timing:
    cuts = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(statistics.median(samples), cuts[0], cuts[-1])
