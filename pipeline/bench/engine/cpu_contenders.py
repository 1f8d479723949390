"""The contenders on the CPU: the engine, torch eager, torch.compile; ids in host memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from dpiframe_core import ModelSpec
from dpiframe_core.engine.cpu import CpuBackend
from dpiframe_core.lowering import lower
from pipeline.bench.engine.cases import EngineCase
from pipeline.bench.engine.contenders import (
    EAGER,
    OURS,
    Contender,
    Makers,
    UsersModel,
    compile_module,
)
from pipeline.bench.engine.data import TABLE_MARK
from pipeline.bench.engine.peers import Dense, Peer, PerField, Weights


def cpu_contenders(spec: ModelSpec, weights: Weights, case: EngineCase) -> Makers:
    """What makes each contender of the case; ours is the first."""
    batches = case.draw(spec)
    inputs = [(torch.from_numpy(b.dense.T), torch.from_numpy(b.ids)) for b in batches]

    def ours() -> Contender:
        engine = CpuBackend(lower(spec, weights, case.passes()), case.batch, case.threads)

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
