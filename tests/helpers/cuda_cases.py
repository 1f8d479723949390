"""Engines on the GPU and what they are compared with."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import model_zoo
import numpy as np
import torch

from dpiframe_core import FieldSpec, ModelSpec, _core
from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions, Faults
from dpiframe_core.engine.precision import LOGIT_BOUNDS as BOUNDS
from dpiframe_core.lowering import DEVICE_PASSES, Pass, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.program import Program

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
POLICIES = ("serial", "depth_first", "breadth_first")
DEVICE = "cuda"
HAS_GPU = _core.cuda_device_count() > 0

REFERENCE_ROWS = 8192  # at once, so that float64 takes little memory


@dataclass(frozen=True)
class Batch:
    """ids [F, B], dense [N, B], and the logits [B] that float64 gives them."""

    ids: np.ndarray
    dense: np.ndarray
    logits: np.ndarray

    @property
    def size(self) -> int:
        return self.ids.shape[1]


def large_model(name: str, seed: int = 0) -> CTRModel:
    """A model with 12 fields of dim 16 and wide products, whose plans have branches."""
    features = Features(
        model_zoo.fields(16)
        + [
            f.model_copy(update={"name": f"D{i}", "table": f"D{i}"})
            for i, f in enumerate(model_zoo.fields(16)[:5])
        ]
    )
    return model_zoo.random_model(MODELS[name](features, Deep((128, 72, 40))), seed)


def even_model(spec: ModelSpec, seed: int = 0) -> CTRModel:
    """A random model whose FM and cross terms are no larger than those of `large_model`, for which
    BOUNDS were found: embeddings are the smaller the more and the wider they are.
    """
    model = model_zoo.random_model(spec, seed)
    num_fields = len(spec.fields) + len(spec.dense)
    for name, tensor in model.state_dict().items():
        if name.startswith(("embedding/", "dense_fields/")):
            tensor.mul_(min(1.0, (24 / (num_fields * tensor.shape[1] ** 0.5)) ** 0.5))
        elif name.startswith("cross/") and tensor.ndim == 2:
            tensor.mul_(0.5)
    return model


def cuda_options(**options: Any) -> CudaOptions:
    """Options of an engine that leaves processors to other tests."""
    return CudaOptions(**{"threads": 2, **options})


@lru_cache(maxsize=4)
def lowered(model: CTRModel, passes: tuple[Pass, ...] = DEVICE_PASSES) -> Program:
    """The model's program."""
    return lower(model.spec, model.state_dict(), passes)


def cuda_engine(
    model: CTRModel,
    passes: tuple[Pass, ...] = DEVICE_PASSES,
    faults: Faults | None = None,
    **options: Any,
) -> CudaBackend:
    """The model on the GPU."""
    return CudaBackend(lowered(model, passes), cuda_options(**options), faults)


def program_of_size(name: str, rows: int) -> Program:
    """A model of 39 fields of dim 16 with tables of `rows` rows, zeros that take no host memory."""
    fields = [FieldSpec(name=f"C{i}", rows=rows, dim=16) for i in range(39)]
    spec = MODELS[name](Features(fields), Deep((400, 400, 400)))
    weights = {
        name: torch.from_numpy(np.zeros(parameter.shape, np.float32))
        for name, parameter in spec.parameters().items()
    }
    return lower(spec, weights, DEVICE_PASSES)


def free_bytes() -> int:
    """What the GPU has left, for tests that have it alone."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def batches(model: CTRModel, sizes: Sequence[int], seed: int = 0) -> list[Batch]:
    """A batch of each size, first and last ids among the ids."""
    made = []
    for size in sizes:
        ids, dense = model_zoo.random_inputs(model.spec, size, seed + size)
        made.append(Batch(ids, dense, reference(model, ids, dense)))
    return made


def reference(model: CTRModel, ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """Logits [B] of the unlowered model in float64, by torch on the GPU."""
    double, out = _in_double(model), np.empty(ids.shape[1])
    for start in range(0, len(out), REFERENCE_ROWS):
        rows = slice(start, start + REFERENCE_ROWS)
        with torch.no_grad():
            out[rows] = double(*on_device(ids[:, rows], dense[:, rows].astype(np.float64))).cpu()
    return out


@lru_cache(maxsize=2)
def _in_double(model: CTRModel) -> CTRModel:
    return copy.deepcopy(model).double().to(DEVICE)


def on_device(*arrays: np.ndarray) -> Iterator[torch.Tensor]:
    """The arrays on the GPU."""
    return (torch.from_numpy(np.ascontiguousarray(a)).to(DEVICE) for a in arrays)


def logits(
    engine: CudaBackend, ids: np.ndarray, dense: np.ndarray, scores: bool = False
) -> np.ndarray:
    """Logits [B], or scores, of host arrays; NaN where nothing was written."""
    out = np.full(ids.shape[1], np.nan, np.float32)
    parts = (slice(i, i + engine.max_batch) for i in range(0, len(out), engine.max_batch))
    for _ in engine.stream(((list(ids[:, s]), dense[:, s], out[s]) for s in parts), False, scores):
        pass
    return out


def device_scores(
    engine: CudaBackend, ids: torch.Tensor, dense: torch.Tensor, use_oov: bool = False
) -> tuple[torch.Tensor, np.ndarray, tuple[int, int] | None]:
    """Scores [B], counts [F] and the first bad id's (row, field) of arrays on the GPU."""
    out = torch.full((ids.shape[1],), torch.nan, device=DEVICE)
    counts, first = np.zeros(len(ids), np.int64), None
    stream = torch.cuda.current_stream().cuda_stream
    for start in range(0, len(out), engine.max_batch):
        i, d, o = (x[..., start : start + engine.max_batch] for x in (ids, dense, out))
        found, place = engine.run_on_device(
            i, d if len(d) else None, o.data_ptr(), len(o), use_oov, stream
        )
        counts += found
        if place and first is None:
            first = (place[0] + start, place[1])
    return out, counts, first


def inputs(spec: ModelSpec, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """ids [F, B] and dense [N, B]."""
    return model_zoo.random_inputs(spec, batch, seed)


def scaled_error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, in terms of max(1, |expected|); infinite where a value is NaN."""
    if len(got) == 0:
        return 0.0
    error = np.abs(got - expected) / np.maximum(1, np.abs(expected))
    return float(np.where(np.isnan(error), np.inf, error).max())


def check(engine: CudaBackend, batch: Batch, between: Batch) -> None:
    """The engine is within its bound, and gives the same bits again: after another batch, over an
    arena full of NaN.
    """
    engine.poison()
    first = logits(engine, batch.ids, batch.dense)
    error = scaled_error(first, batch.logits)
    bound = BOUNDS[engine.options.precision]
    assert error < bound, f"{error} >= {bound}, batch {batch.size}, {engine.options}"
    logits(engine, between.ids, between.dense)
    engine.poison()
    again = logits(engine, batch.ids, batch.dense)
    np.testing.assert_array_equal(again, first, f"batch {batch.size}, {engine.options}")


def check_on_device(engine: CudaBackend, batch: Batch) -> None:
    """Arrays on the GPU, ids of both types, give the bits that host arrays give."""
    expected = logits(engine, batch.ids, batch.dense, scores=True)
    ids, dense = on_device(batch.ids, batch.dense)
    for dtype in (torch.int32, torch.int64):
        engine.poison()
        scores, counts, first = device_scores(engine, ids.to(dtype), dense)
        where = f"batch {batch.size}, {dtype}, {engine.options}"
        np.testing.assert_array_equal(scores.cpu().numpy(), expected, where)
        assert not counts.any(), where
        assert first is None, where


def check_bad_ids(
    engine: CudaBackend, other: CudaBackend, batches: Sequence[Batch], use_oov: bool
) -> None:
    """Scores, counts and the first of ids outside their tables, of both types, are the other's."""
    rng = np.random.default_rng(3)
    for batch in batches:
        ids = batch.ids.copy()
        bad = rng.random(ids.shape) < 0.01
        bad[-1, -1] = True
        ids[bad] = rng.choice(np.array([-1, -(2**31), 2**31 - 1]), bad.sum())
        there, dense = on_device(ids, batch.dense)
        for dtype in (torch.int32, torch.int64):
            got, expected = (
                device_scores(each, there.to(dtype), dense, use_oov) for each in (engine, other)
            )
            np.testing.assert_allclose(got[0].cpu(), expected[0].cpu(), atol=2e-3)
            np.testing.assert_array_equal(got[1], expected[1])
            np.testing.assert_array_equal(got[1], bad.sum(1))
            assert got[2] == expected[2]
        good, dense = on_device(batch.ids, batch.dense)
        assert not device_scores(engine, good, dense)[1].any()
