"""The implementations that are timed on a case: the engine and its peers, on the CPU or a GPU.

A peer that cannot be built, or fails, is reported as failed; the others are still timed.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dpiframe_core import CTRModel, ModelSpec
from dpiframe_core.engine.cpu import CpuBackend
from dpiframe_core.lowering import lower
from pipeline.bench.engine.cases import Batch, EngineCase
from pipeline.bench.engine.cuda_engine import on_device, open_engine
from pipeline.bench.engine.peers import DTYPES, Dense, OneTable, Peer, PerField, Tbe, Weights
from pipeline.bench.engine.random_data import TABLE_MARK, flat_table
from pipeline.bench.engine.user_module import load_user_module
from pipeline.bench.timing import capture
from pipeline.errors import DpiframeError

OURS, EAGER = "dpiframe", "eager"
SCORES_AGREE = 1e-5  # of arrays on the host and on the device
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Prepared = Sequence[tuple[Tensor, ...]]  # the inputs of a peer, by batch


class Implementation(NamedTuple):
    """`run(i)` scores input i and returns when the scores are there; `logits(i)` are [B] float."""

    run: Callable[[int], object]
    logits: Callable[[int], np.ndarray]
    close: Callable[[], None] = lambda: None


Factories = dict[str, Callable[[], Implementation]]  # by name; ours is the first


class BundleModel(nn.Module):
    """The model of a user's bundle in plain torch, called as the peers are."""

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


def build_all(factories: Factories) -> tuple[dict[str, Implementation], dict[str, str]]:
    """Build and run each once; returns what works, and why the others failed. Ours must work."""
    made: dict[str, Implementation] = {}
    failed: dict[str, str] = {}
    for name, make in factories.items():
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


def close_all(made: Mapping[str, Implementation]) -> None:
    """Free what the implementations hold beyond Python's reach."""
    for implementation in made.values():
        implementation.close()


def cpu_implementations(spec: ModelSpec, weights: Weights, case: EngineCase) -> Factories:
    """The engine, torch eager, torch.compile on the CPU; ids in host memory."""
    batches = case.draw(spec)
    inputs = [(torch.from_numpy(b.dense.T), torch.from_numpy(b.ids)) for b in batches]

    def ours() -> Implementation:
        engine = CpuBackend(lower(spec, weights, case.passes()), case.batch, case.threads)

        def run(i: int) -> np.ndarray:
            logits = np.empty(case.batch, np.float32)
            engine.run(list(batches[i].ids), batches[i].dense, False, logits)
            return logits

        return Implementation(run, run)

    def peer(compiled: bool) -> Implementation:
        if case.module:
            return _user_peer(batches, case, compile_module if compiled else None)
        model = BundleModel(spec, weights) if case.bundle else _host_peer(spec, weights)
        module = compile_module(model, None) if compiled else model.eval()

        @torch.no_grad()
        def run(i: int) -> np.ndarray:
            logits: np.ndarray = module(*inputs[i]).numpy()
            return logits

        return Implementation(run, run)

    factories: Factories = {OURS: ours, EAGER: partial(peer, False), "compile": partial(peer, True)}
    chosen = {"all": 3, "plain": 2, "none": 1}[case.peers]
    return dict(list(factories.items())[:chosen])


def _user_peer(
    batches: Sequence[Batch],
    case: EngineCase,
    change: Callable[[nn.Module, str | None], nn.Module] | None,
) -> Implementation:
    """A user's own module, called as it is or compiled; on a GPU compiled with CUDA graphs."""
    user = load_user_module(case.module or "")
    on_gpu = case.device == "cuda"
    dtype = DTYPES[case.precision] if on_gpu else torch.float32
    inputs = [user.arguments(b.ids, b.dense, case.device, dtype) for b in batches]
    module = copy.deepcopy(user.module).to(case.device, dtype)
    if change is not None:
        module = change(module, "reduce-overhead" if on_gpu else None)

    @torch.no_grad()
    def run(i: int) -> object:
        args, kwargs = inputs[i]
        if on_gpu:
            torch.compiler.cudagraph_mark_step_begin()
        found = module(*args, **kwargs)
        if on_gpu:
            torch.cuda.synchronize()
        return found

    return Implementation(run, lambda i: user.imported.logits(run(i)))


def _host_peer(spec: ModelSpec, weights: Weights) -> nn.Module:
    """A built-in model in plain torch on the CPU; shares the tables' memory."""
    names = {m: [f"{m}{TABLE_MARK}{f.table}" for f in spec.fields] for m in ("embedding", "wide")}
    tables, wide = ([weights[n] for n in names[m] if n in weights] for m in names)
    return Peer(PerField(tables, wide), Dense(spec, weights)).eval()


def cuda_implementations(spec: ModelSpec, weights: Weights, case: EngineCase) -> Factories:
    """The engine and every peer that the case asks for on a GPU; inputs in GPU memory."""
    batches = case.draw(spec)
    return {
        OURS: lambda: _cuda_ours(spec, weights, batches, case),
        **_cuda_peers(spec, weights, batches, case),
    }


def _cuda_ours(
    spec: ModelSpec, weights: Weights, batches: Sequence[Batch], case: EngineCase
) -> Implementation:
    """The CUDA engine with the case's options; its scores of host and device arrays must agree."""
    engine, _ = open_engine(spec, weights, case)
    inputs = on_device(batches)

    def logits(i: int) -> np.ndarray:
        found = engine.logits(list(batches[i].ids), batches[i].dense)
        scores = engine.score(*inputs[i]).cpu().numpy()
        difference = np.abs(scores - 1 / (1 + np.exp(-found.astype(np.float64)))).max()
        if not difference <= SCORES_AGREE:
            raise DpiframeError(f"scores of arrays on host and device differ by {difference:.1e}")
        return found

    return Implementation(lambda i: engine.score(*inputs[i]), logits, engine.close)


def _cuda_peers(
    spec: ModelSpec, weights: Weights, batches: Sequence[Batch], case: EngineCase
) -> Factories:
    """Peers on the GPU; each gets its ids in the layout that it likes best."""
    if case.peers == "none":
        return {}
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    ids = [torch.from_numpy(b.ids).cuda() for b in batches]
    dense = [_dense_input(b, case) for b in batches]

    def prepared(kind: type[PerField | OneTable | Tbe]) -> Prepared:
        return [(d, *kind.prepare(i)) for d, i in zip(dense, ids, strict=True)]

    if case.module:
        user: Factories = {
            EAGER: lambda: _user_peer(batches, case, None),
            "compile, graphs": lambda: _user_peer(batches, case, compile_module),
        }
        return user if case.peers == "all" else {EAGER: user[EAGER]}
    if case.bundle:
        model = _typed(BundleModel(spec, weights), case)
        return {
            EAGER: lambda: _launched(model, prepared(PerField)),
            "eager, graph": lambda: _captured(model, prepared(PerField)),
        }
    dense_part = _typed(Dense(spec, weights), case)
    cuda_peer = partial(_cuda_peer, case, spec)
    per_field = partial(cuda_peer, PerField, dense_part)
    plain: Factories = {
        EAGER: lambda: _launched(per_field(), prepared(PerField)),
        "one-table, graph": lambda: _captured(cuda_peer(OneTable, dense_part), prepared(OneTable)),
    }
    if case.peers == "plain":
        return plain
    mode = "max-autotune-no-cudagraphs" if case.precision == "fp16" else "default"
    return {
        **plain,
        "compile": lambda: _launched(
            compile_module(per_field(), "reduce-overhead"), prepared(PerField)
        ),
        "TBE, graph": lambda: _captured(cuda_peer(Tbe, dense_part), prepared(Tbe)),
        "TBE + Inductor, graph": lambda: _captured(
            cuda_peer(Tbe, compile_module(dense_part, mode)), prepared(Tbe)
        ),
    }


def _cuda_peer(
    case: EngineCase, spec: ModelSpec, kind: type[PerField | OneTable | Tbe], dense_part: nn.Module
) -> Peer:
    """A built-in model in torch on the GPU; all peers share the tables."""
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
    return Peer(lookup.cuda(), dense_part).eval()


def _dense_input(batch: Batch, case: EngineCase) -> Tensor:
    dense = torch.from_numpy(batch.dense.T)
    return dense.to("cuda", DTYPES[case.precision]).contiguous()


def _typed(module: AnyModule, case: EngineCase) -> AnyModule:
    """The module on the GPU in the case's dtype."""
    return module.to("cuda", DTYPES[case.precision]).eval()


def _launched(module: nn.Module, prepared: Prepared) -> Implementation:
    """The module called as it is, then synchronised."""

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

    return Implementation(run, logits)


def _captured(module: nn.Module, prepared: Prepared) -> Implementation:
    """A CUDA graph for each input, so that no input has to be copied; replayed, synchronised."""
    graphs, outputs = [], []
    kept = (module, prepared)  # a graph holds no reference to the memory that it reads

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

    return Implementation(run, read)
