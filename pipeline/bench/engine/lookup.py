"""Who looks embeddings up: ours, the plain gather, and the peers, on the same tables and ids."""

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
from pipeline.bench.engine.cases import CONFIG, CRITEO_FIELDS, criteo_fields
from pipeline.bench.engine.cuda_engine import require_gpu
from pipeline.bench.engine.implementations import OURS, reason
from pipeline.bench.engine.peers import OneTable, PerField, Tbe
from pipeline.bench.engine.random_data import FlatTable, IdDistribution, draw_ids, flat_table
from pipeline.bench.machine import machine
from pipeline.bench.timing import (
    GRAPH_INPUTS,
    GRAPH_LAUNCHES,
    ROTATED_INPUTS,
    Timing,
    capture,
    time_graphs,
    time_side_by_side,
)
from pipeline.errors import DpiframeError

CHECKED = "dpiframe, checked each call"
GATHER = "plain gather"
PER_FIELD = "nn.Embedding a field"
TBE = "TBE"
NONE_BAD = 2**63 - 1
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


class LookupContender(NamedTuple):
    """`launch(i, stream)` enqueues input i and returns embeddings [B, F*D].

    Ours and the gather run on the given stream, peers on torch's current one, which must be that.
    `as_graph`: its users call it as a graph of one lookup, else directly.
    `run_and_wait(i, stream)`: launch and wait in one call, where it offers that.
    """

    launch: Callable[[int, int], Tensor]
    as_graph: bool = False
    run_and_wait: Callable[[int, int], None] | None = None


def lookup_contenders(
    tables: FlatTable, ids: Sequence[Tensor]
) -> dict[str, Callable[[], LookupContender]]:
    """What makes each; `ids`: batches [F, B] on the GPU."""
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


def _ours(tables: FlatTable, ids: Sequence[Tensor]) -> LookupContender:
    """The compiled lookup, prepared: a call replays a graph of its one launch."""
    lookup, out, report = _compiled(tables, ids[0])
    calls = [lookup.prepare(batch, out, report) for batch in ids]

    def launch(i: int, stream: int) -> Tensor:
        calls[i].run(stream)
        return out

    def run_and_wait(i: int, stream: int) -> None:
        calls[i].run_and_wait(stream)

    return LookupContender(launch, run_and_wait=run_and_wait)


def _checked(tables: FlatTable, ids: Sequence[Tensor]) -> LookupContender:
    """The compiled lookup, its arguments checked and its kernel launched by each call."""
    lookup, out, report = _compiled(tables, ids[0])

    def launch(i: int, stream: int) -> Tensor:
        lookup.run(ids[i], out, report, stream=stream)
        return out

    return LookupContender(launch)


def _compiled(tables: FlatTable, ids: Tensor) -> tuple[_core.CudaMultiTableLookup, Tensor, Tensor]:
    """The compiled lookup, and the output and the report of its runs."""
    dim = tables.weight.shape[1]
    fields = [_core.CudaLookupField(table, f * dim) for f, table in enumerate(tables.tables())]
    lookup = _core.CudaMultiTableLookup(fields)
    out = _output(tables, ids)
    report = torch.tensor([0] * len(fields) + [NONE_BAD], device=out.device)
    torch.cuda.synchronize()
    return lookup, out, report


def _gather(tables: FlatTable, ids: Sequence[Tensor]) -> LookupContender:
    """A thread a 16-byte piece, row numbers given ready: what the memory allows."""
    starts = torch.tensor(tables.starts, device=ids[0].device)
    rows = [(batch.T + starts).contiguous() for batch in ids]  # [B, F] int64
    out = _output(tables, ids[0])
    row_bytes = tables.weight.shape[1] * tables.weight.element_size()
    numbers = rows[0].numel()
    table, target = tables.weight.data_ptr(), out.data_ptr()

    def launch(i: int, stream: int) -> Tensor:
        _core.plain_gather(table, rows[i].data_ptr(), numbers, row_bytes, target, stream)
        return out

    return LookupContender(launch)


def _tbe(tables: FlatTable) -> Any:
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise DpiframeError("fbgemm_gpu is not installed")
    return Tbe(tables, None).cuda()


def _peer(
    module: Any, kind: type[PerField | OneTable | Tbe], ids: Sequence[Tensor], as_graph: bool
) -> LookupContender:
    """A peer's lookup, its inputs in its own best layout."""
    prepared = [kind.prepare(batch) for batch in ids]

    @torch.no_grad()
    def launch(i: int, stream: int) -> Tensor:
        out: Tensor = module(*prepared[i])[0]
        return out

    return LookupContender(launch, as_graph)


# Rows are copied, not computed with: only a peer that rounds in another place may differ at all.
TOLERANCES = {"fp32": 1e-6, "fp16": 1e-3}


class LookupCase(BaseModel):
    """One case of the lookup alone: F fields of the Criteo Kaggle tables, embeddings [B, F*D]."""

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
        """A model that begins with this lookup: it names the tables."""
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
        """Rows gathered on the GPU, in 10^9 a second."""
        return self.case.batch * self.case.fields / self.gpu[name].median / 1e6

    def of_gather(self, name: str) -> float:
        """The plain gather's time over this one's; not a number where it was not timed."""
        if GATHER not in self.gpu:
            return float("nan")
        return self.gpu[GATHER].median / self.gpu[name].median

    def call_ratio(self, name: str) -> float:
        """A synchronised call's time over ours."""
        return self.call[name].median / self.call[OURS].median

    def gpu_ratio(self, name: str) -> float:
        """The time on the GPU over ours."""
        return self.gpu[name].median / self.gpu[OURS].median


class Ready(NamedTuple):
    """A contender that is ready: a synchronised call of input i, and a graph of many lookups."""

    contender: LookupContender  # a graph does not keep the memory that it reads
    call: Callable[[int], object]
    graph: torch.cuda.CUDAGraph
    out: Tensor  # what the last lookup of the graph writes


def bench_lookup(case: LookupCase) -> LookupReport:
    """Make the contenders on the same tables and ids, compare what they write, time them."""
    require_gpu()
    spec, ids = case.spec(), case.draw()
    tables = flat_table(spec, "embedding", case.seed, DTYPES[case.precision], "cuda")
    assert tables is not None
    ready: dict[str, Ready] = {}
    failed: dict[str, str] = {}
    for name, make in lookup_contenders(tables, ids).items():
        try:
            contender = make()
            _check(contender.launch(0, _stream()), tables, ids[0], case)
            ready[name] = _make_ready(contender)
            _check_graph(ready[name], tables, ids[-1], case)
        except Exception as error:
            if name == OURS:
                raise
            ready.pop(name, None)
            failed[name] = reason(error)
    return LookupReport(
        case=case,
        call=time_side_by_side({n: r.call for n, r in ready.items()}, case.repeats),
        gpu=time_graphs({n: r.graph for n, r in ready.items()}, GRAPH_LAUNCHES, case.repeats),
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


def _make_ready(contender: LookupContender) -> Ready:
    """Capture the contender's graph, and make its synchronised call, as its users would."""

    def launches() -> Tensor:
        for i in range(GRAPH_LAUNCHES):
            out = contender.launch(i % GRAPH_INPUTS, _stream())
        return out

    graph, out = capture(launches)
    torch_stream = torch.cuda.current_stream()
    stream = torch_stream.cuda_stream
    run_and_wait = contender.run_and_wait
    if run_and_wait is not None:
        return Ready(contender, lambda i: run_and_wait(i, stream), graph, out)
    if not contender.as_graph:

        def direct(i: int) -> None:
            contender.launch(i, stream)
            torch_stream.synchronize()

        return Ready(contender, direct, graph, out)
    singles = [capture(partial(_launch, contender, i)) for i in range(ROTATED_INPUTS)]

    def replay(i: int) -> None:
        singles[i][0].replay()
        torch_stream.synchronize()

    return Ready(contender, replay, graph, out)


def _launch(contender: LookupContender, i: int) -> Tensor:
    return contender.launch(i, _stream())


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def _check_graph(ready: Ready, tables: FlatTable, ids: Tensor, case: LookupCase) -> None:
    """The graph's last lookup writes what it should, over what stood there."""
    ready.out.fill_(float("nan"))
    ready.graph.replay()
    _check(ready.out, tables, ids, case)


def _check(out: Tensor, tables: FlatTable, ids: Tensor, case: LookupCase) -> None:
    """DpiframeError unless the embeddings are those that plain indexing gives."""
    torch.cuda.synchronize()
    difference = float((out.float() - expected_rows(tables, ids).float()).abs().max())
    if not difference <= TOLERANCES[case.precision]:
        raise DpiframeError(f"the embeddings differ from the tables' rows by {difference:.1e}")
