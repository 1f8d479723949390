"""What a contender is: ours or a peer, made ready on a case; one that fails ends no run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dpiframe_core import CTRModel, ModelSpec
from dpiframe_core.engine.cpu import CpuEngine
from dpiframe_core.lowering import lower
from pipeline.bench.engine.cases import Batch, EngineCase
from pipeline.bench.engine.cuda_engine import on_device, open_engine
from pipeline.bench.engine.peers import Dense, OneTable, Peer, PerField, Tbe, Weights
from pipeline.bench.engine.random_data import TABLE_MARK, flat_table
from pipeline.bench.timing import capture
from pipeline.errors import DpiframeError

OURS, EAGER = "dpiframe", "eager"


class Contender(NamedTuple):
    """`run(i)` scores input i and returns when the scores are there; `logits(i)` are [B] float."""

    run: Callable[[int], object]
    logits: Callable[[int], np.ndarray]
    close: Callable[[], None] = lambda: None


Makers = dict[str, Callable[[], Contender]]


class UsersModel(nn.Module):
    """The model of a bundle in plain torch."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        super().__init__()
        self.model = CTRModel.from_weights(spec, weights)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Logits [B] of dense features [B, N] and ids [F, B]."""
        logits: Tensor = self.model(ids, dense.T)
        return logits


def compile_module(module: nn.Module, mode: str | None) -> nn.Module:
    """torch.compile for one shape."""
    compiled = torch.compile(module, mode=mode, dynamic=False)
    assert isinstance(compiled, nn.Module)
    return compiled


def make_all(makers: Makers) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders, and why those that are not there could not be made. Ours must be there."""
    made: dict[str, Contender] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
            made[name].run(0)
        except Exception as error:
            if name == OURS:
                raise
            made.pop(name, None)
            failed[name] = reason(error)
    return made, failed


def reason(error: Exception) -> str:
    """An error in one line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return first if isinstance(error, DpiframeError) else f"{type(error).__name__}: {first}"


def close_all(made: Mapping[str, Contender]) -> None:
    """Free what the contenders hold beyond Python's reach."""
    for contender in made.values():
        contender.close()


def cpu_contenders(spec: ModelSpec, weights: Weights, case: EngineCase) -> Makers:
    """What makes each contender of the case; ours is the first."""
    batches = case.draw(spec)
    inputs = [(torch.from_numpy(b.dense.T), torch.from_numpy(b.ids)) for b in batches]

    def ours() -> Contender:
        engine = CpuEngine(lower(spec, weights, case.passes()), case.batch, case.threads)

        def run(i: int) -> np.ndarray:
            logits = np.empty(case.batch, np.float32)
            engine.run(list(batches[i].ids), batches[i].dense, False, logits)
            return logits

        return Contender(run, run)

    def peer(compiled: bool) -> Contender:
        model = UsersModel(spec, weights) if case.bundle else _host_peer(spec, weights)
        module = compile_module(model, None) if compiled else model.eval()

        @torch.no_grad()
        def run(i: int) -> np.ndarray:
            logits: np.ndarray = module(*inputs[i]).numpy()
            return logits

        return Contender(run, run)

    makers: Makers = {OURS: ours, EAGER: partial(peer, False), "compile": partial(peer, True)}
    chosen = {"all": 3, "plain": 2, "none": 1}[case.peers]
    return dict(list(makers.items())[:chosen])


def _host_peer(spec: ModelSpec, weights: Weights) -> nn.Module:
    """A peer of a built-in model on the CPU, on the tables as they are."""
    names = {m: [f"{m}{TABLE_MARK}{f.table}" for f in spec.fields] for m in ("embedding", "wide")}
    tables, wide = ([weights[n] for n in names[m] if n in weights] for m in names)
    return Peer(PerField(tables, wide), Dense(spec, weights)).eval()


AnyModule = TypeVar("AnyModule", bound=nn.Module)
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
PATHS_AGREE = 1e-5  # scores of arrays on the host and on the device
Prepared = Sequence[tuple[Tensor, ...]]  # the inputs of a peer, by batch


def cuda_contenders(spec: ModelSpec, weights: Weights, case: EngineCase) -> Makers:
    """What makes each contender of the case; ours is the first."""
    batches = case.draw(spec)
    return {
        OURS: lambda: _ours(spec, weights, batches, case),
        **_peers(spec, weights, batches, case),
    }


def _ours(
    spec: ModelSpec, weights: Weights, batches: Sequence[Batch], case: EngineCase
) -> Contender:
    """The CUDA engine with the case's options, on device arrays."""
    engine, _ = open_engine(spec, weights, case)
    inputs = on_device(batches)

    def logits(i: int) -> np.ndarray:
        found = engine.logits(list(batches[i].ids), batches[i].dense)
        scores = engine.score(*inputs[i]).cpu().numpy()
        apart = np.abs(scores - 1 / (1 + np.exp(-found.astype(np.float64)))).max()
        if not apart <= PATHS_AGREE:
            raise DpiframeError(f"scores of arrays on host and device differ by {apart:.1e}")
        return found

    return Contender(lambda i: engine.score(*inputs[i]), logits, engine.close)


def _peers(spec: ModelSpec, weights: Weights, batches: Sequence[Batch], case: EngineCase) -> Makers:
    """Peers on the GPU; ids in its memory, in the best layout of each."""
    if case.peers == "none":
        return {}
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    ids = [torch.from_numpy(b.ids).cuda() for b in batches]
    dense = [_dense_input(b, case) for b in batches]

    def prepared(kind: type[PerField | OneTable | Tbe]) -> Prepared:
        return [(d, *kind.prepare(i)) for d, i in zip(dense, ids, strict=True)]

    if case.bundle:
        users = _typed(UsersModel(spec, weights), case)
        return {
            EAGER: lambda: _stream_peer(users, prepared(PerField)),
            "eager, graph": lambda: _graph_peer(users, prepared(PerField)),
        }
    tail = _typed(Dense(spec, weights), case)
    device_peer = partial(_device_peer, case, spec)
    per_field = partial(device_peer, PerField, tail)
    plain: Makers = {
        EAGER: lambda: _stream_peer(per_field(), prepared(PerField)),
        "one-table, graph": lambda: _graph_peer(device_peer(OneTable, tail), prepared(OneTable)),
    }
    if case.peers == "plain":
        return plain
    mode = "max-autotune-no-cudagraphs" if case.precision == "fp16" else "default"
    return {
        **plain,
        "compile": lambda: _stream_peer(
            compile_module(per_field(), "reduce-overhead"), prepared(PerField)
        ),
        "TBE, graph": lambda: _graph_peer(device_peer(Tbe, tail), prepared(Tbe)),
        "TBE + Inductor, graph": lambda: _graph_peer(
            device_peer(Tbe, compile_module(tail, mode)), prepared(Tbe)
        ),
    }


def _device_peer(
    case: EngineCase, spec: ModelSpec, kind: type[PerField | OneTable | Tbe], tail: nn.Module
) -> Peer:
    """A peer of a built-in model on the GPU, on tables that it shares with the others."""
    if kind is Tbe:
        if importlib.util.find_spec("fbgemm_gpu") is None:
            raise DpiframeError("fbgemm_gpu is not installed")
        if case.precision == "bf16":
            raise DpiframeError("its lookup has no bf16")
    tables, wide = (
        flat_table(spec, module, case.seed, DTYPES[case.precision], "cuda")
        for module in ("embedding", "wide")
    )
    assert tables is not None
    if kind is PerField:
        lookup: nn.Module = PerField(tables.tables(), wide.tables() if wide else [])
    else:
        lookup = OneTable(tables, wide) if kind is OneTable else Tbe(tables, wide)
    return Peer(lookup.cuda(), tail).eval()


def _dense_input(batch: Batch, case: EngineCase) -> Tensor:
    dense = torch.from_numpy(batch.dense.T)
    return dense.to("cuda", DTYPES[case.precision]).contiguous()


def _typed(module: AnyModule, case: EngineCase) -> AnyModule:
    """On the GPU, floating weights in the case's type."""
    return module.to("cuda", DTYPES[case.precision]).eval()


def _stream_peer(module: nn.Module, prepared: Prepared) -> Contender:
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


def _graph_peer(module: nn.Module, prepared: Prepared) -> Contender:
    """Captured once for each input, so that no input has to be copied; replayed, synchronised."""
    graphs, outputs = [], []
    kept = (module, prepared)  # a graph does not keep the memory that it reads

    def launch(inputs: tuple[Tensor, ...]) -> Tensor:
        logits: Tensor = module(*inputs).float()
        torch.sigmoid(logits)
        return logits

    with torch.no_grad():
        for inputs in prepared:
            graph, logits = capture(partial(launch, inputs))
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
