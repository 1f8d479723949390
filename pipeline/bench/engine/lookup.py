"""`dpiframe bench lookup`: the multi-table lookup alone, a plain gather, the peers, on a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dpiframe_core import FieldSpec, ModelSpec, _core
from dpiframe_core.model.builtin import Deep, Features, dcn
from pipeline.bench.cases.engine_case import CONFIG, CRITEO_FIELDS, criteo_fields
from pipeline.bench.cases.random_data import FlatTable, IdDistribution, draw_ids, flat_table
from pipeline.bench.engine.cuda_engine import require_gpu
from pipeline.bench.engine.implementations import OURS, reason
from pipeline.bench.engine.peers import DTYPES, OneTable, PerField, Tbe
from pipeline.bench.machine import machine
from pipeline.bench.timing import (
    GRAPH_INPUTS,
    GRAPH_LAUNCHES,
    ROTATED_INPUTS,
    Timing,
    capture,
    time_graphs,
    time_interleaved,
)
from pipeline.errors import DpiframeError

CHECKED = "dpiframe, checked each call"
GATHER = "plain gather"
PER_FIELD = "nn.Embedding a field"
TBE = "TBE"
NONE_BAD = 2**63 - 1  # the report's "first bad id" of a run that met none
# Embeddings are copied, not computed: only a peer that converts its weights may differ at all.
TOLERANCES = {"fp32": 1e-6, "fp16": 1e-3}


class LookupImplementation(NamedTuple):
    """`launch(i, stream)` enqueues input i and returns embeddings [B, F*D].

    Ours and the gather run on `stream`, peers on torch's current stream, which must be the same.
    `as_graph`: timed as a CUDA graph of one lookup, else called directly.
    `run_and_wait(i, stream)`: launch and wait in one call, where the implementation has that.
    """

    launch: Callable[[int, int], Tensor]
    as_graph: bool = False
    run_and_wait: Callable[[int, int], None] | None = None


def lookup_implementations(
    tables: FlatTable, ids: Sequence[Tensor]
) -> dict[str, Callable[[], LookupImplementation]]:
    """By name; `ids`: batches [F, B] on the GPU."""
    return {
        OURS: lambda: _ours(tables, ids),
        CHECKED: lambda: _checked(tables, ids),
        GATHER: lambda: _gather(tables, ids),
        PER_FIELD: lambda: _peer(PerField(tables.tables(), []), PerField, ids, False),
        "one table, graph": lambda: _peer(OneTable(tables, None), OneTable, ids, True),
        TBE: lambda: _peer(_tbe(tables), Tbe, ids, False),
        "TBE, graph": lambda: _peer(_tbe(tables), Tbe, ids, True),
    }


def expected_rows(tables: FlatTable, ids: Tensor) -> Tensor:
    """Embeddings [B, F*D] by plain indexing."""
    return torch.cat([t[i.long()] for t, i in zip(tables.tables(), ids, strict=True)], 1)


def _output(tables: FlatTable, ids: Tensor) -> Tensor:
    width = len(tables.rows) * tables.weight.shape[1]
    return torch.empty(ids.shape[1], width, dtype=tables.weight.dtype, device=ids.device)


def _ours(tables: FlatTable, ids: Sequence[Tensor]) -> LookupImplementation:
    """The compiled lookup, prepared: a call replays a CUDA graph of its one launch."""
    lookup, out, report = _compiled(tables, ids[0])
    calls = [lookup.prepare(batch, out, report) for batch in ids]

    def launch(i: int, stream: int) -> Tensor:
        calls[i].run(stream)
        return out

    def run_and_wait(i: int, stream: int) -> None:
        calls[i].run_and_wait(stream)

    return LookupImplementation(launch, run_and_wait=run_and_wait)


def _checked(tables: FlatTable, ids: Sequence[Tensor]) -> LookupImplementation:
    """The compiled lookup; each call checks the arguments and launches the kernel."""
    lookup, out, report = _compiled(tables, ids[0])

    def launch(i: int, stream: int) -> Tensor:
        lookup.run(ids[i], out, report, stream=stream)
        return out

    return LookupImplementation(launch)


def _compiled(tables: FlatTable, ids: Tensor) -> tuple[_core.CudaMultiTableLookup, Tensor, Tensor]:
    """The compiled lookup, its output and its report of bad ids."""
    dim = tables.weight.shape[1]
    fields = [_core.CudaLookupField(table, f * dim) for f, table in enumerate(tables.tables())]
    lookup = _core.CudaMultiTableLookup(fields)
    out = _output(tables, ids)
    report = torch.tensor([0] * len(fields) + [NONE_BAD], device=out.device)
    torch.cuda.synchronize()
    return lookup, out, report


def _gather(tables: FlatTable, ids: Sequence[Tensor]) -> LookupImplementation:
    """One thread per 16-byte chunk of precomputed rows, no checks: the memory's ceiling."""
    starts = torch.tensor(tables.starts, device=ids[0].device)
    rows = [(batch.T + starts).contiguous() for batch in ids]  # [B, F] int64
    out = _output(tables, ids[0])
    row_bytes = tables.weight.shape[1] * tables.weight.element_size()
    numbers = rows[0].numel()
    table, target = tables.weight.data_ptr(), out.data_ptr()

    def launch(i: int, stream: int) -> Tensor:
        _core.plain_gather(table, rows[i].data_ptr(), numbers, row_bytes, target, stream)
        return out

    return LookupImplementation(launch)


def _tbe(tables: FlatTable) -> Any:
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise DpiframeError("fbgemm_gpu is not installed")
    return Tbe(tables, None).cuda()


def _peer(
    module: Any, kind: type[PerField | OneTable | Tbe], ids: Sequence[Tensor], as_graph: bool
) -> LookupImplementation:
    """A peer's lookup, its inputs in its own best layout."""
    prepared = [kind.prepare(batch) for batch in ids]

    @torch.no_grad()
    def launch(i: int, stream: int) -> Tensor:
        out: Tensor = module(*prepared[i])[0]
        return out

    return LookupImplementation(launch, as_graph)


class LookupCase(BaseModel):
    """A case of the lookup alone: F fields of the Criteo Kaggle tables, embeddings [B, F*D]."""

    model_config = CONFIG

    batch: int = Field(default=4096, ge=1)
    fields: int = Field(default=CRITEO_FIELDS, ge=1, le=4096)
    dim: int = Field(default=16, ge=1, le=4096)
    ids: IdDistribution = "zipf"
    zipf_exponent: float = Field(default=1.05, gt=0)
    id_type: Literal["int32", "int64"] = "int32"
    scale: float = Field(default=1.0, gt=0, le=1)
    precision: Literal["fp32", "fp16"] = "fp32"
    repeats: int = Field(default=40, ge=3)
    seed: int = 0

    def field_specs(self) -> list[FieldSpec]:
        """The fields."""
        return criteo_fields(self.fields, self.dim, self.scale)

    def spec(self) -> ModelSpec:
        """A model with this lookup; it names the tables."""
        return dcn(Features(self.field_specs()), Deep((1,)))

    def draw(self) -> list[Tensor]:
        """Batches of ids [F, B] on the GPU."""
        rows = tuple(field.rows for field in self.field_specs())
        drawn = draw_ids(rows, self.batch, self.ids, self.zipf_exponent, GRAPH_INPUTS, self.seed)
        dtype = getattr(torch, self.id_type)
        return [torch.from_numpy(ids).to("cuda", dtype) for ids in drawn]


class LookupReport(BaseModel):
    """Milliseconds a batch: of a synchronised `call`, and on the GPU alone, in a graph (`gpu`)."""

    model_config = ConfigDict(frozen=True)

    case: LookupCase
    call: dict[str, Timing]  # ours runs and waits in one call, others run and then synchronise
    gpu: dict[str, Timing]
    failed: dict[str, str]
    machine: dict[str, str]

    def rate(self, name: str) -> float:
        """Embedding rows gathered on the GPU, in 10^9 a second."""
        return self.case.batch * self.case.fields / self.gpu[name].median / 1e6

    def of_gather(self, name: str) -> float:
        """The plain gather's time over this one's; NaN where the gather was not timed."""
        if GATHER not in self.gpu:
            return float("nan")
        return self.gpu[GATHER].median / self.gpu[name].median

    def call_ratio(self, name: str) -> float:
        """A synchronised call's time over ours."""
        return self.call[name].median / self.call[OURS].median

    def gpu_ratio(self, name: str) -> float:
        """The time on the GPU over ours."""
        return self.gpu[name].median / self.gpu[OURS].median


class TimedLookup(NamedTuple):
    """What is timed of an implementation: a synchronised call, and a graph of many lookups."""

    implementation: LookupImplementation  # kept: a graph holds no reference to what it reads
    call: Callable[[int], object]
    graph: torch.cuda.CUDAGraph
    out: Tensor  # what the last lookup of the graph writes


def bench_lookup(case: LookupCase) -> LookupReport:
    """Run every implementation on the same tables and ids, compare their outputs, time them."""
    require_gpu()
    spec, ids = case.spec(), case.draw()
    tables = flat_table(spec, "embedding", case.seed, DTYPES[case.precision], "cuda")
    assert tables is not None
    timed: dict[str, TimedLookup] = {}
    failed: dict[str, str] = {}
    for name, make in lookup_implementations(tables, ids).items():
        try:
            implementation = make()
            _check(implementation.launch(0, _stream()), tables, ids[0], case)
            timed[name] = _prepare_timing(implementation)
            _check_graph(timed[name], tables, ids[-1], case)
        except Exception as error:
            if name == OURS:
                raise
            timed.pop(name, None)
            failed[name] = reason(error)
    return LookupReport(
        case=case,
        call=time_interleaved({n: r.call for n, r in timed.items()}, case.repeats),
        gpu=time_graphs({n: r.graph for n, r in timed.items()}, GRAPH_LAUNCHES, case.repeats),
        failed=failed,
        machine=machine("cuda"),
    )


def show(report: LookupReport) -> str:
    """The report as a table."""
    c = report.case
    rows = sum(field.rows for field in c.field_specs())
    lines = [
        f"lookup, batch {c.batch:,}, {c.fields} fields, {rows:,} rows x dim {c.dim}, {c.ids} "
        f"{c.id_type} ids, {c.precision}, {report.machine['gpu']}; us",
        f"{'':<30}{'call':>9}{'p90':>9}{'ratio':>8}{'gpu':>9}{'p90':>9}{'ratio':>8}"
        f"{'G rows/s':>10}{'of gather':>10}",
    ]
    for name, call in report.call.items():
        gpu = report.gpu[name]
        lines.append(
            f"{name:<30}{1e3 * call.median:9.1f}{1e3 * call.p90:9.1f}"
            f"{report.call_ratio(name):8.2f}{1e3 * gpu.median:9.1f}{1e3 * gpu.p90:9.1f}"
            f"{report.gpu_ratio(name):8.2f}{report.rate(name):10.2f}{report.of_gather(name):10.0%}"
        )
    lines += [f"{name:<30}  failed: {why}" for name, why in report.failed.items()]
    return "\n".join(lines)


def _prepare_timing(implementation: LookupImplementation) -> TimedLookup:
    """The graph of many lookups, and a synchronised call as the implementation's users make it."""

    def launches() -> Tensor:
        for i in range(GRAPH_LAUNCHES):
            out = implementation.launch(i % GRAPH_INPUTS, _stream())
        return out

    graph, out = capture(launches)
    torch_stream = torch.cuda.current_stream()
    stream = torch_stream.cuda_stream
    run_and_wait = implementation.run_and_wait
    if run_and_wait is not None:
        return TimedLookup(implementation, lambda i: run_and_wait(i, stream), graph, out)
    if not implementation.as_graph:

        def direct(i: int) -> None:
            implementation.launch(i, stream)
            torch_stream.synchronize()

        return TimedLookup(implementation, direct, graph, out)

    def launch(i: int) -> Tensor:
        return implementation.launch(i, _stream())

    graphs = [capture(partial(launch, i))[0] for i in range(ROTATED_INPUTS)]

    def replay(i: int) -> None:
        graphs[i].replay()
        torch_stream.synchronize()

    return TimedLookup(implementation, replay, graph, out)


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def _check_graph(timed: TimedLookup, tables: FlatTable, ids: Tensor, case: LookupCase) -> None:
    """DpiframeError unless the graph's last lookup overwrites the whole output correctly."""
    timed.out.fill_(float("nan"))
    timed.graph.replay()
    _check(timed.out, tables, ids, case)


def _check(out: Tensor, tables: FlatTable, ids: Tensor, case: LookupCase) -> None:
    """DpiframeError unless the embeddings are those that plain indexing gives."""
    torch.cuda.synchronize()
    difference = float((out.float() - expected_rows(tables, ids).float()).abs().max())
    if not difference <= TOLERANCES[case.precision]:
        raise DpiframeError(f"the embeddings differ from the tables' rows by {difference:.1e}")
