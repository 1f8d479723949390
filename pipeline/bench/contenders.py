"""The contenders of a case: ours and every peer that this machine can run, on the same weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dpiframe_core import Bundle, Engine, ModelSpec
from dpiframe_core.cpu_engine import CpuEngine
from dpiframe_core.lowering import lower
from pipeline.bench.cases import EngineCase
from pipeline.bench.peers import Dense, OneTable, Peer, PerField, Tbe, Weights

OURS = "dpiframe"
AnyModule = TypeVar("AnyModule", bound=nn.Module)
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Contender(NamedTuple):
    """`run(i)` scores input i and returns when the scores are there; `logits(i)` are [B] float."""

    run: Callable[[int], object]
    logits: Callable[[int], np.ndarray]


def cpu_contenders(spec: ModelSpec, weights: Weights, case: EngineCase) -> Contenders:
    """The engine, torch eager, torch.compile; ids in host memory."""
    engine = CpuEngine(lower(spec, weights, case.passes()), case.batch, case.threads)
    dense = np.empty((0, case.batch), np.float32)
    inputs = case.inputs(spec)
    ids = [torch.from_numpy(x) for x in inputs]
    peer = Peer(PerField(spec, weights), Dense(spec, weights))
    compiled = compile_module(peer, None)

    def ours(i: int) -> np.ndarray:
        logits = np.empty(case.batch, np.float32)
        engine.run(list(inputs[i]), dense, False, logits)
        return logits

    @torch.no_grad()
    def eager(i: int, module: nn.Module = peer) -> np.ndarray:
        logits: np.ndarray = module(ids[i]).numpy()
        return logits

    return {
        OURS: Contender(ours, ours),
        "eager": Contender(eager, eager),
        "compile": Contender(lambda i: eager(i, compiled), lambda i: eager(i, compiled)),
    }


def cuda_contenders(spec: ModelSpec, weights: Weights, case: EngineCase) -> Contenders:
    """The engine and, if asked for, the peers on the GPU; ids in its memory, in the best layout."""
    ids = [torch.from_numpy(x).cuda() for x in case.inputs(spec)]
    made = {OURS: ours_on_cuda(spec, weights, ids, case)}
    if not case.peers:
        return made
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    weights = {name: weight.cuda() for name, weight in weights.items()}
    dense, per_field = (_typed(k(spec, weights), case) for k in (Dense, PerField))
    prepared = [PerField.prepare(x) for x in ids]
    made["eager"] = _stream_peer(Peer(per_field, dense), prepared)
    compiled = compile_module(Peer(per_field, dense), "reduce-overhead")
    made["compile"] = _stream_peer(compiled, prepared)
    one_table = Peer(_typed(OneTable(spec, weights), case), dense)
    made["one-table, graph"] = _graph_peer(one_table, [OneTable.prepare(x) for x in ids])
    if importlib.util.find_spec("fbgemm_gpu") is not None and case.precision != "bf16":
        made |= _tbe_peers(spec, weights, dense, ids, case)
    return made


def _tbe_peers(
    spec: ModelSpec, weights: Weights, dense: nn.Module, ids: Sequence[Tensor], case: EngineCase
) -> Contenders:
    tbe = Tbe(spec, weights, case.precision == "fp16").cuda()
    if tbe.wide is not None:
        tbe.wide = _typed(tbe.wide, case)
    prepared = [Tbe.prepare(x) for x in ids]
    mode = "max-autotune-no-cudagraphs" if case.precision == "fp16" else "default"
    return {
        "TBE, graph": _graph_peer(Peer(tbe, dense), prepared),
        "TBE + Inductor, graph": _graph_peer(Peer(tbe, compile_module(dense, mode)), prepared),
    }


def ours_on_cuda(
    spec: ModelSpec, weights: Weights, ids: Sequence[Tensor], case: EngineCase
) -> Contender:
    """The CUDA engine with the case's options, on device arrays."""
    from dpiframe_core.cuda_engine import CudaEngine, CudaOptions

    options = CudaOptions(
        precision=case.precision,
        max_batch=case.batch,
        streams=case.streams,
        graphs=case.graphs,
        policy=case.policy,
    )
    runner = CudaEngine(lower(spec, weights, case.passes()), options)
    engine = Engine(Bundle(Path(), spec, digest=""), runner, case.precision, "fail")
    return Contender(
        lambda i: engine.score(ids[i]), lambda i: engine.logits(list(ids[i].cpu().numpy()))
    )


def compile_module(module: nn.Module, mode: str | None) -> nn.Module:
    """torch.compile for one shape."""
    compiled = torch.compile(module, mode=mode, dynamic=False)
    assert isinstance(compiled, nn.Module)
    return compiled


def _typed(module: AnyModule, case: EngineCase) -> AnyModule:
    """On the GPU, floating weights in the case's type."""
    moved = module.cuda()
    if case.precision in HALF:
        moved = moved.to(HALF[case.precision])
    return moved.eval()


def _stream_peer(module: nn.Module, prepared: Sequence[tuple[Tensor, ...]]) -> Contender:
    """Called as it is, then synchronised."""

    @torch.no_grad()
    def run(i: int) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        out: Tensor = torch.sigmoid(module(*prepared[i]).float())
        torch.cuda.synchronize()
        return out

    @torch.no_grad()
    def logits(i: int) -> np.ndarray:
        out: np.ndarray = module(*prepared[i]).float().cpu().numpy()
        return out

    return Contender(run, logits)


def _graph_peer(module: nn.Module, prepared: Sequence[tuple[Tensor, ...]]) -> Contender:
    """Captured once for each input, so that no input has to be copied; replayed, synchronised."""
    graphs, outputs = [], []
    kept = (module, prepared)  # a graph does not keep the memory that it reads
    with torch.no_grad():
        for x in prepared:
            for _ in range(3):  # warm up before capture
                module(*x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = module(*x).float()
                torch.sigmoid(logits)
            graphs.append(graph)
            outputs.append(logits)

    def run(i: int) -> None:
        graphs[i].replay()
        torch.cuda.synchronize()

    def read(i: int, _kept: object = kept) -> np.ndarray:
        run(i)
        out: np.ndarray = outputs[i].cpu().numpy()
        return out

    return Contender(run, read)


Contenders = dict[str, Contender]
