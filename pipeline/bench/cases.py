"""What is measured: a model of the Criteo Kaggle shape, its inputs, and how a case is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.models import MODELS, Deep, Features
from pipeline.data.cardinalities import CRITEO_CARDINALITIES
from pipeline.data.sampling import zipf_table
from pipeline.data.values import scatter

NUM_INTEGER_FIELDS, INTEGER_BUCKETS = 13, 100
ROTATED_INPUTS = 8


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
    threads: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=20, ge=3)
    seed: int = 0

    def spec(self) -> ModelSpec:
        """39 one-hot fields: 13 bucketed integers, 26 of the published cardinalities."""
        rows = {f"I{i + 1}": INTEGER_BUCKETS for i in range(NUM_INTEGER_FIELDS)}
        rows |= {n: max(2, round(r * self.scale)) for n, r in CRITEO_CARDINALITIES.items()}
        fields = [FieldSpec(name=name, rows=r, dim=self.dim) for name, r in rows.items()]
        return MODELS[self.model](Features(fields), Deep(self.hidden))

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


class Timing(NamedTuple):
    """Milliseconds of one batch: median, and the 10th and 90th percentile over the repeats."""

    median: float
    p10: float
    p90: float


def time_side_by_side(
    runs: Mapping[str, Callable[[np.ndarray], object]], inputs: Sequence[np.ndarray], repeats: int
) -> dict[str, Timing]:
    """Time each run on each input in turn, interleaved, so that they share the disturbances."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(-3, repeats):  # three warm-up rounds
        x = inputs[repeat % len(inputs)]
        for name, run in runs.items():
            began = time.perf_counter()
            run(x)
            if repeat >= 0:
                taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: _timing(samples) for name, samples in taken.items()}


def _timing(samples: list[float]) -> Timing:
    cuts = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(statistics.median(samples), cuts[0], cuts[-1])
