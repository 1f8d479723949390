"""How much GPU memory an engine takes, by its own count and by the driver's."""

from __future__ import annotations

import gc

import torch
from pydantic import BaseModel, ConfigDict

from dpiframe_core import ModelSpec
from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine.cuda_engine import open_engine, require_gpu

NARROW = {"fp16", "bf16"}
SMALL = {"scale": 1e-5}


class MemoryReport(BaseModel):
    """Bytes. `used`: by how much the GPU's free memory fell; the kernels' code was loaded before.
    `counted`: the engine's own `device_bytes`."""

    model_config = ConfigDict(frozen=True)

    case: EngineCase
    tables: int
    arena: int
    counted: int
    used: int

    def share(self) -> float:
        """Memory used over the bytes of tables and arena."""
        return self.used / (self.tables + self.arena)


def measure_memory(case: EngineCase) -> MemoryReport:
    """Make an engine and compare the GPU's free memory before and after; nothing else may run."""
    require_gpu()
    small = case.model_copy(update=SMALL)
    open_engine(*small.load(), small)[0].close()  # loads the kernels' code
    spec, weights = case.load()
    before = _free()
    engine, backend = open_engine(spec, weights, case)
    try:
        used = before - _free()
        return MemoryReport(
            case=case,
            tables=table_bytes(spec, case.precision),
            arena=backend.arena_bytes,
            counted=backend.device_bytes,
            used=used,
        )
    finally:
        engine.close()


def table_bytes(spec: ModelSpec, precision: str) -> int:
    """Bytes of all embedding tables in the precision's dtype, and of the float32 wide weights."""
    total = 0
    for name, parameter in spec.parameters().items():
        module, _, table = name.partition("/tables/")
        if table:
            rows, width = parameter.shape
            size = 2 if precision in NARROW and module == "embedding" else 4
            total += rows * width * size
    return total


def _free() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])
