"""What compute-sanitizer runs (make gpu-sanitize): every precision, odd shapes; `stored`: pages of
files; `persistent`: the fused cross kernel for large batches alone; `fp16x3`: that of float32
models alone; `specs`: random specs; `tensor`: generic tensor operations; `zoo`: kernels of groups
with many rows. Racecheck can follow the barriers of the fused kernels and of float32's products in
a build with DPIFRAME_RACECHECK (FUSED_RACECHECK); there no two kernels run at one time. Nothing
else may use the GPU: synccheck takes its memory.

Plain Python, since a test runner would bring the kernels of torch with it; references are computed
on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

import chains
import cuda_cases
import model_zoo
from cuda_cases import PRECISIONS, Batch, check, cuda_engine, even_model, logits
from mapped_programs import gate, gelu, normed_program, pair, program_of
from odd_models import MIXED, Shape
from placed_models import placed_models
from random_specs import error_bound, random_spec, random_weights
from random_tensors import random_tensor_model

from dpiframe_core import CTRModel, _core, from_torch
from dpiframe_core.engine.cuda import fused as whole_models
from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.precision import LOGIT_BOUNDS
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, Pass, lower
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from pipeline.bench.cases.engine_case import EngineCase

whole_models.WORTH_IT = math.inf  # the fused kernels run whatever steps would take

# What racecheck looks for lies in a CTA's shared memory, so that nothing is lost.
ONE_AT_A_TIME: dict[str, Any] = {"graphs": False, "policy": "serial", "streams": 1}
FORCED = ONE_AT_A_TIME if _core.FUSED_RACECHECK else {}

SHAPES = (
    Shape("deepfm", 3, (10,), (50, 30), "raw", 1, "parallel"),
    Shape("dcnv2", 5, (16,), (40, 24), "field", 2, "parallel"),
    Shape("dcn", 7, MIXED, (33,), "raw", 2, "stacked"),
    Shape("wdl", 39, (8,), (136, 72), None, 1, "parallel"),
    Shape("wdl", 90, (16,), (24,), "raw", 1, "parallel"),  # teams share the lookup of a sample
)
# Fused kernels whose weights fill the stages once: where they go round, racecheck does not end in
# minutes.
FUSED = (
    Shape("deepfm", 7, (16,), (40, 24), None, 1, "parallel"),
    Shape("dcnv2", 3, (16,), (40,), None, 3, "parallel"),
)
PERSISTENT = Shape("dcnv2", 39, (16,), (400, 400, 400), None, 3, "parallel")
PERSISTENT_SIZES = (4300, 8600)  # fewer tiles than clusters, then two for some
FP16X3 = Shape("dcnv2", 39, (12, 16, 20), (400, 33, 400), None, 2, "parallel")
FP16X3_SIZES = (2100, 4300)  # buckets beyond those of steps: fewer tiles than clusters, then more
SIZES = (1, 19, 129, 200)
FEW_FIELDS = Shape("wdl", 3, (8,), (520,), None, 1, "parallel")
MANY_ROWS = 4300  # with 520 columns: several tiles a block
LONG = Shape("wdl", 3, (8,), (4200, 40), None, 1, "parallel")  # of k 4,200, which CTAs share


class OnDevice:
    """A copy of a host array on the GPU, by the driver alone."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.values = values.shape, np.ascontiguousarray(values)
        self.address, self.bytes = ctypes.c_uint64(), ctypes.c_size_t(values.nbytes)
        self.call("cuMemAlloc_v2", ctypes.byref(self.address), self.bytes)
        self.call("cuMemcpyHtoD_v2", self.address, self.host(), self.bytes)
        self.call("cuCtxSynchronize")
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.values.dtype.str,
            "data": (self.address.value, False),
            "version": 3,
        }

    def host(self) -> ctypes.c_void_p:
        return self.values.ctypes.data_as(ctypes.c_void_p)

    def take(self) -> np.ndarray:
        """What lies on the GPU; its memory there is freed."""
        self.call("cuMemcpyDtoH_v2", self.host(), self.address, self.bytes)
        self.call("cuMemFree_v2", self.address)
        return self.values

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")


def run(engine: CudaBackend, batches: list[Batch]) -> None:
    """Host and device inputs, ids outside their tables among them."""
    for batch in batches:
        check(engine, batch, batches[0])
    batch = batches[-2]
    ids = batch.ids.copy()
    ids[0, 0], ids[-1, -1] = -1, 2**40
    ids[1, 7] = engine.program.field_rows[1]
    scores = np.empty(batch.size, np.float32)
    expected = engine.run(list(ids), batch.dense, True, scores, scores=True)
    for values in (ids, np.clip(ids, -1, 2**31 - 1).astype(np.int32)):
        there, out = OnDevice(values), OnDevice(np.zeros_like(scores))
        dense = OnDevice(batch.dense) if len(batch.dense) else None
        counts, first = engine.run_on_device(there, dense, out.address.value, batch.size, True)
        np.testing.assert_array_equal(out.take(), scores)
        np.testing.assert_array_equal(counts, expected)
        assert counts.sum() == 3 and first == (0, 0)
        for array in (there, dense) if dense else (there,):
            array.take()


def opened(
    model: CTRModel, passes: tuple[Pass, ...] = DEVICE_PASSES, **options: Any
) -> CudaBackend:
    """The model on the GPU, by one host thread, which a sanitizer follows faster than several."""
    return cuda_engine(model, passes, threads=1, **{**options, **FORCED})


def case(
    shape: Shape,
    sizes: tuple[int, ...],
    precisions: tuple[str, ...],
    fused: bool = False,
) -> None:
    began = time.monotonic()
    model = even_model(shape.spec())
    batches = []
    for size in sizes:
        ids, dense = model_zoo.random_inputs(model.spec, size, size)
        batches.append(Batch(ids, dense, model_zoo.reference_logits(model, ids, dense)))
    for i, precision in enumerate(precisions):
        options = {"precision": precision, "max_batch": sizes[-1], "graphs": i % 2 == 0}
        engine = opened(model, fused=fused, **options)
        run(engine, batches)
        engine.close()
    print(f"{shape}: {time.monotonic() - began:.1f} s", flush=True)


def stored_case(shape: Shape, rows: int, **options: Any) -> None:
    """Ids as a file stores them, then with damaged pages."""
    began = time.monotonic()
    model = even_model(shape.spec())
    ids, dense = model_zoo.random_inputs(model.spec, rows)
    ids[1] = np.resize(ids[1][:1000], rows)  # long matches, short ones, runs
    ids[2] = np.resize(ids[2][:7], rows)
    ids[3, : rows // 2] = ids[3, 0]
    names = [f"C{f}" for f in range(len(ids))]
    engine = opened(model, max_batch=1000)
    scores = np.empty(rows, np.float32)
    engine.run(ids, dense, False, scores, scores=True)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.parquet"
        columns = dict(zip(names, ids.astype(np.int32), strict=True))
        pq.write_table(pa.table(columns), path, **options)
        file = _core.ParquetFile(path)
        stop = len(file.group_rows)
        memory = np.zeros(file.pages_bytes(names, 0, stop), np.uint8)
        stored = file.read_pages(names, 0, stop, memory)
    scorer = engine.page_scorer(use_oov=False)
    found = scorer.score(stored, memory, dense)
    assert found is not None
    np.testing.assert_array_equal(found.scores, scores)
    rng, whole = np.random.default_rng(rows), memory.copy()
    for _ in range(20):
        memory[rng.integers(0, stored.compressed_bytes, 9)] ^= 0x55
        with contextlib.suppress(RuntimeError):
            scorer.score(stored, memory, dense)
        memory[:] = whole
    print(f"stored, {options}: {time.monotonic() - began:.1f} s", flush=True)


def specs() -> None:
    """Random specs, as tests/gpu/engine/test_random_specs_cuda.py draws them, in small batches."""
    for seed in range(8):
        spec = random_spec(seed)
        model = random_weights(spec, seed)
        for precision in ("fp32", "fp16"):
            engine = opened(model, precision=precision, max_batch=130)
            for size in (1, 130):
                ids, dense = model_zoo.random_inputs(spec, size, size)
                expected = model_zoo.reference_logits(model, ids, dense)
                error = np.abs(logits(engine, ids, dense) - expected)
                assert (error < error_bound(model, precision, ids, dense, expected)).all()
            engine.close()


def tensor() -> None:
    """Generic tensor operations, odd shapes and every kind of kernel among them."""
    for seed in range(8):
        compare(random_tensor_model(seed), (1, 19, 70), ("fp32", "bf16"))
    epilogues()
    product_chains()
    placed()
    long_axes()


def product_chains() -> None:
    """Chains of products, wherever they fit: more tiles than one, rows that fill no tile."""
    if device_passes(0) is DEVICE_PASSES:
        return  # no Hopper GPU or no NVRTC
    programs = (
        chains.mlp(130, 240, 100),
        chains.mlp(64, 240, 240, residual=True),
        normed_program(72, 240, gelu),
    )
    for ctas, program in itertools.product((1, 2, 4), programs):
        with pytest.MonkeyPatch.context() as patch:
            chains.always(patch, ctas)
            dense_case(program, "fp16")


def placed() -> None:
    """Products of places that are one, with operands of every kind."""
    if device_passes(0) is DEVICE_PASSES:
        return  # no Hopper GPU or no NVRTC
    for module in placed_models().values():
        imported = from_torch(module.eval(), torch.tensor([1, 2]), precisions=())
        program = lower(imported.spec, imported.weights, device_passes(0))
        engine = CudaBackend(program, CudaOptions(precision="fp16", max_batch=300, **FORCED))
        for size in (1, 300):
            ids = np.arange(size, dtype=np.int32)[None] % 19
            found = np.empty(size, np.float32)
            engine.run(ids, np.zeros((0, size), np.float32), False, found)
            dense = torch.zeros(0, size)
            wanted = run_program(program, torch.from_numpy(ids).long(), dense).numpy().ravel()
            error = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
            assert error.max() <= LOGIT_BOUNDS["fp16"]
        engine.close()


def zoo() -> None:
    """Models whose groups multiply by matrices in shared memory, attend, or norm rows."""
    for name in ("xdeepfm", "autoint", "masknet", "finalmlp"):
        shape = EngineCase(model=name, fields=26, dense=13, hidden=(40, 24), scale=1e-5)
        compare(CTRModel.from_weights(*shape.load()), (1, 37), ("fp16", "bf16", "fp32"))


def compare(model: CTRModel, sizes: tuple[int, ...], precisions: tuple[str, ...]) -> None:
    """Batches of random inputs, of each size, through an engine of each precision."""
    batches = []
    for size in sizes:
        ids, dense = model_zoo.random_inputs(model.spec, size, size)
        batches.append(Batch(ids, dense, model_zoo.reference_logits(model, ids, dense)))
    for precision in precisions:
        engine = opened(model, precision=precision, max_batch=max(sizes))
        for batch in batches:
            check(engine, batch, batches[0])
        engine.close()


def epilogues() -> None:
    """Products with a compiled epilogue; columns that fill no vector, rows that fill no tile; a k
    that CTAs share.
    """
    if device_passes(0) is DEVICE_PASSES:
        return  # no Hopper GPU or no NVRTC
    for make, precision, k in itertools.product((gelu, gate, pair), ("fp32", "fp16"), (72, 4200)):
        dense_case(program_of(k, 429, make), precision)
    dense_case(normed_program(72, 429, gelu), "fp16")


def dense_case(program: Program, precision: str) -> None:
    """A program of dense features alone."""
    engine = CudaBackend(program, CudaOptions(precision=precision, max_batch=300, **FORCED))
    for size in (1, 300):
        dense = np.random.default_rng(size).normal(size=(program.num_dense, size))
        found = np.empty(size, np.float32)
        engine.run(np.zeros((0, size), np.int32), dense.astype(np.float32), False, found)
        ids = torch.zeros(0, size, dtype=torch.int64)
        wanted = run_program(program, ids, torch.from_numpy(dense)).numpy().ravel()
        error = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max() <= LOGIT_BOUNDS[precision]
    engine.close()


def long_axes() -> None:
    """What random graphs are too small for: results that a warp or a block shares, sorts."""
    rows, width = 3, 2600
    values = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    x, whole = OnDevice(values), _core.TensorOperand([width], [1], 0)
    source = _core.DeviceMatrix(x.address.value, width, width, "float32")
    matrix = _core.TensorOperand([40, 65], [65, 1], 0)
    turned = _core.TensorOperand([65, 40], [1, 65], 0)
    square = values.reshape(rows, 40, 65)
    falling = -np.sort(-values, axis=1)
    cases: list[tuple[Any, list[Any], np.ndarray]] = [
        (_core.ReduceOp("max", [0]), [whole], values.max(1, keepdims=True)),
        (_core.ReduceOp("sum", [1]), [matrix], square.sum(2)),
        (_core.TopKOp(2, True, False), [whole], falling[:, :2]),
        (_core.TopKOp(9, True, False), [whole], falling[:, :9]),
        (_core.MatMulOp(0, 1, 1), [matrix, turned], square @ square.transpose(0, 2, 1)),
    ]
    for op, operands, expected in cases:
        expected = expected.reshape(rows, -1)
        out = OnDevice(np.full(expected.shape, np.nan, np.float32))
        columns = expected.shape[1]
        there = _core.DeviceMatrix(out.address.value, columns, columns, "float32")
        _core.tensor_op(op, [source] * len(operands), operands, there, rows)
        np.testing.assert_allclose(out.take(), expected, 1e-4, 1e-4)
    x.take()


def persistent() -> None:
    case(PERSISTENT, PERSISTENT_SIZES, ("fp16",), fused=True)


def fp16x3() -> None:
    case(FP16X3, FP16X3_SIZES, ("fp32",), fused=True)


def all_others() -> None:
    for shape in SHAPES:
        case(shape, SIZES, PRECISIONS)
    for shape in FUSED:
        case(shape, (19, 70), ("fp16",), fused=True)
    case(FEW_FIELDS, (19, 129, MANY_ROWS), ("fp16", "fp32"))
    case(LONG, (1, 129, 300), PRECISIONS)
    model = even_model(SHAPES[1].spec())  # the plain steps, which no pass has fused
    ids, dense = model_zoo.random_inputs(model.spec, 129)
    batch = Batch(ids, dense, model_zoo.reference_logits(model, ids, dense))
    for precision in ("fp32", "bf16"):
        engine = opened(model, DEVICE_FORM, precision=precision, max_batch=129)
        check(engine, batch, batch)
        engine.close()


def stored() -> None:
    stored_case(SHAPES[1], 9000, compression="zstd", row_group_size=5000)
    stored_case(SHAPES[1], 3000, compression="zstd", use_dictionary=False, compression_level=19)
    stored_case(SHAPES[1], 3000, compression="none", data_page_version="2.0")


if __name__ == "__main__":
    if not cuda_cases.HAS_GPU:
        raise SystemExit("needs a CUDA device")
    cases = {
        "": all_others, "stored": stored, "persistent": persistent, "fp16x3": fp16x3,
        "specs": specs, "tensor": tensor, "chains": product_chains, "placed": placed, "zoo": zoo,
    }  # fmt: skip
    cases["".join(sys.argv[1:])]()
