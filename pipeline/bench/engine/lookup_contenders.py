"""Who looks embeddings up: ours, the plain gather, and the peers, on the same tables and ids."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpiframe_core import _core
from pipeline.bench.engine.contenders import OURS
from pipeline.bench.engine.data import FlatTable
from pipeline.bench.engine.peers import OneTable, PerField, Tbe
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
