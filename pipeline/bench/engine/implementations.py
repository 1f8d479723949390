"""The implementations that are timed on a case: the engine and its peers, on the CPU or a GPU.

A peer that cannot be built, or fails, is reported as failed; the others are still timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dpiframe_core import ModelSpec
from dpiframe_core.engine.cpu import CpuBackend
from dpiframe_core.lowering import lower
from pipeline.bench.cases.engine_case import Batch, EngineCase
from pipeline.bench.engine.cuda_engine import on_device, open_engine
from pipeline.bench.engine.peers import Weights
from pipeline.bench.engine.torch_models import Called, TorchModel, torch_model
from pipeline.bench.timing import capture
from pipeline.errors import DpiframeError

OURS, EAGER = "dpiframe", "eager"
SCORES_AGREE = 1e-5  # of arrays on the host and on the device


class Implementation(NamedTuple):
    """`run(i)` scores input i and returns when the scores are there; `logits(i)` are [B] float;
    `note`: what is to be said of how it runs; `untied(i)`: whose logits [B] do not depend on the
    order of equal numbers; `first(i)`: logits where the first of them are taken.
    """

    run: Callable[[int], object]
    logits: Callable[[int], np.ndarray]
    close: Callable[[], None] = lambda: None
    note: str = ""
    untied: Callable[[int], np.ndarray] | None = None
    first: Callable[[int], np.ndarray] | None = None


Factories = dict[str, Callable[[], Implementation]]  # by name; ours is the first


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


def implementations(spec: ModelSpec, weights: Weights, case: EngineCase) -> Factories:
    """The engine and every peer that the case asks for; on a GPU with inputs in its memory."""
    batches = case.draw(spec)
    ours = _ours_on_gpu if case.device == "cuda" else _ours_on_cpu
    factories: Factories = {OURS: lambda: ours(spec, weights, batches, case)}
    if case.peers == "none":
        return factories
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    model = torch_model(case, batches, spec, weights)
    if case.device == "cuda":
        return factories | _peers_on_gpu(model, case)
    factories |= {
        EAGER: lambda: _launched(model.per_field(), False),
        "one-table": lambda: _launched(model.one_table(), False),
    }
    if case.peers == "all":
        factories |= {
            "compile": lambda: _launched(_compiled(model.per_field(), None), False),
            "one-table, compile": lambda: _launched(_compiled(model.one_table(), None), False),
        }
    return factories


def _peers_on_gpu(model: TorchModel, case: EngineCase) -> Factories:
    graphs = "reduce-overhead"
    tuned = case.tuned and case.precision == "fp16"
    mode = "max-autotune-no-cudagraphs" if tuned else "default"
    factories: Factories = {
        EAGER: lambda: _launched(model.per_field(), True),
        "one-table, graph": lambda: _captured(model.one_table()),
    }
    if case.peers == "all":
        factories |= {
            "compile": lambda: _launched(_compiled(model.per_field(), graphs), True),
            "one-table, compile": lambda: _launched(_compiled(model.one_table(), graphs), True),
        }
    if case.peers == "all" and model.has_tbe:
        behind = partial(_compile, mode=mode)
        factories |= {
            "TBE, graph": lambda: _captured(model.tbe(lambda behind: behind)),
            "TBE + Inductor, graph": lambda: _captured(model.tbe(behind)),
        }
    return factories


def _compile(module: nn.Module, mode: str | None) -> nn.Module:
    """torch.compile for one shape."""
    compiled = torch.compile(module, mode=mode, dynamic=False)
    assert isinstance(compiled, nn.Module)
    return compiled


def _compiled(called: Called, mode: str | None) -> Called:
    return called._replace(module=_compile(called.module, mode))


def _ours_on_cpu(
    spec: ModelSpec, weights: Weights, batches: Sequence[Batch], case: EngineCase
) -> Implementation:
    """The engine's CPU backend; ids in host memory."""
    engine = CpuBackend(lower(spec, weights, case.passes()), case.batch, case.threads)

    def run(i: int) -> np.ndarray:
        logits = np.empty(case.batch, np.float32)
        engine.run(list(batches[i].ids), batches[i].dense, False, logits)
        return logits

    return Implementation(run, run)


def _ours_on_gpu(
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


def _launched(called: Called, on_gpu: bool) -> Implementation:
    """The module called as it is, on a GPU then synchronised."""

    @torch.no_grad()
    def run(i: int) -> Any:
        args, kwargs = called.inputs[i]
        if not on_gpu:
            return called.module(*args, **kwargs)
        torch.compiler.cudagraph_mark_step_begin()
        out = called.module(*args, **kwargs)
        torch.cuda.synchronize()
        return out

    return Implementation(
        run,
        lambda i: called.logits(run(i)),
        note=called.note,
        untied=called.untied,
        first=called.first,
    )


def _captured(called: Called) -> Implementation:
    """A CUDA graph for each input, so that no input has to be copied; replayed, synchronised."""
    graphs: list[torch.cuda.CUDAGraph] = []
    outputs = []
    with torch.no_grad():
        for args, kwargs in called.inputs:
            graph, output = capture(
                partial(called.module, *args, **kwargs), shared=graphs[0] if graphs else None
            )
            graphs.append(graph)
            outputs.append(output)

    def run(i: int) -> None:
        graphs[i].replay()
        torch.cuda.synchronize()

    # `called` is kept: a graph holds no reference to the memory that it reads.
    def logits(i: int) -> np.ndarray:
        run(i)
        return called.logits(outputs[i])

    return Implementation(run, logits, note=called.note)
