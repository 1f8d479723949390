"""The floor of a batch: what its bytes and its products take at the best rates of this machine.

Bytes at the rate of a copy: ids and dense features read, embedding rows read and written once,
logits written. Products in the time that torch.mm (cuBLASLt on a GPU) takes for their very shapes,
or for those padded to multiples of 8 where that is quicker, one after the other; a product of
activations with activations, or of a batch of small weights, at the rate of a large one. Fewer than
MIN_COLUMNS outputs are not counted: they can ride along. In fp32 a product may also be three of
tf32 (emulation). All is measured in the run.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from dpiframe_core import ModelSpec
from dpiframe_core.lowering import lower
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, Lookup, TensorStep
from dpiframe_core.program.tensor_ops import MatMul
from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine.peers import DTYPES
from pipeline.bench.timing import capture, time_with_events

MIN_COLUMNS = 8
PADDED = 8
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}
LARGE = {"cuda": 8192, "cpu": 2048}  # rows, columns and inner size of a large product
EMULATION = 3  # products of tf32 that make one of fp32
TURNS, TURN_MS, MOST_CALLS = 5, 4, 20


class Product(NamedTuple):
    """[rows, inner] x [inner, columns] for a sample; `shared`: all samples have one weight."""

    rows: int
    inner: int
    columns: int
    shared: bool

    @property
    def flop(self) -> int:
        """Operations of a sample."""
        return 2 * self.rows * self.inner * self.columns


class Floor(BaseModel):
    """Milliseconds of a batch's bytes and of its products."""

    model_config = ConfigDict(frozen=True)

    bytes_ms: float
    products_ms: float

    @property
    def ms(self) -> float:
        """Both, one after the other."""
        return self.bytes_ms + self.products_ms


def floor(spec: ModelSpec, weights: Mapping[str, Tensor], case: EngineCase) -> Floor:
    """Measure the floor of a case on its device."""
    program = lower(spec, weights, ())
    moved = case.batch * sample_bytes(program, case)
    multiplied = sum(_product_ms(product, case) for product in products(program))
    return Floor(bytes_ms=1e3 * moved / copy_rate(case.device), products_ms=multiplied)


def sample_bytes(program: Program, case: EngineCase) -> int:
    """Bytes that a sample moves at least."""
    size = DTYPES[case.computed].itemsize
    ids = int(case.id_type.removeprefix("int")) // 8
    slots = [s for step in program.steps if isinstance(step, Lookup) for s in step.slots]
    rows = sum(2 * size * s.dim for s in slots if s.table) + sum(4 for s in slots if s.wide)
    return ids * len(program.field_rows) + 4 * program.num_dense + rows + 4


def products(program: Program) -> Iterator[Product]:
    """The products of a program of plain steps."""
    for step in program.steps:
        found = None
        if isinstance(step, Linear):
            columns, inner = program.weights[step.weight].shape
            found = Product(1, inner, columns, True)
        elif isinstance(step, TensorStep) and isinstance(step.op, MatMul):
            found = _matmul(step, step.op)
        if found and (found.columns >= MIN_COLUMNS or not found.shared):
            yield found


def _matmul(step: TensorStep, op: MatMul) -> Product:
    """A product of tensors, whose axes are of a batch of products, rows, inner, and columns."""
    a, b = (operand.shape for operand in step.operands)
    batch, columns = math.prod(a[: op.batch]), math.prod(b[op.batch + op.inner :])
    rows = math.prod(a[op.batch : op.batch + op.rows])
    inner = math.prod(a[op.batch + op.rows :])
    return Product(batch * rows, inner, columns, shared=batch == len(step.constants) == 1)


def _product_ms(product: Product, case: EngineCase) -> float:
    if not product.shared:
        rate = max(_large_rate(case.device, kind) / times for kind, times in _ways(case))
        return 1e3 * product.flop * case.batch / rate
    rows, sides = case.batch * product.rows, (product.inner, product.columns)
    shapes = {sides}
    if case.device == "cuda":  # rows that start at no multiple of 16 bytes are slow to load
        shapes.add((-(-sides[0] // PADDED) * PADDED, -(-sides[1] // PADDED) * PADDED))
    return min(
        times * mm_ms(case.device, kind, rows, *shape)
        for shape in shapes
        for kind, times in _ways(case)
    )


def _ways(case: EngineCase) -> list[tuple[str, int]]:
    """The precisions in which a product may be computed, with how many of them make one."""
    found = [(case.computed, 1)]
    if case.computed == "fp32" and case.device == "cuda":
        found.append(("tf32", EMULATION))
    return found


@functools.cache
def mm_ms(device: str, precision: str, m: int, k: int, n: int) -> float:
    """Milliseconds of x [m, k] by a weight that lies as [k, n] or [n, k], whichever is faster."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        x, y = (torch.randn(s, device=device, dtype=DTYPES[precision]) for s in ((m, k), (n, k)))
        out = torch.empty(m, n, device=device, dtype=x.dtype)
        weights = (y.T, y.T.contiguous())
        return min(_ms(partial(torch.mm, x, w, out=out), device) for w in weights)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@functools.cache
def _large_rate(device: str, precision: str) -> float:
    """Operations a second of a large product."""
    size = LARGE[device]
    return 2e3 * size**3 / mm_ms(device, precision, size, size, size)


@functools.cache
def copy_rate(device: str) -> float:
    """Bytes read and written a second by a copy in the device's memory."""
    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2e3 * len(source) / _ms(partial(target.copy_, source), device)


def _ms(work: Callable[[], object], device: str) -> float:
    """The shortest time of a call, of several turns; on a GPU a turn is a graph of calls."""
    if device == "cpu":
        work()
        return min(_host_ms(work) for _ in range(TURNS))
    work()
    calls = max(1, min(MOST_CALLS, round(TURN_MS / time_with_events(work))))
    graph, _ = capture(lambda: [work() for _ in range(calls)], warm_ups=1)
    return min(time_with_events(graph.replay) for _ in range(TURNS)) / calls


def _host_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)
