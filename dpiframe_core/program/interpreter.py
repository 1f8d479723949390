"""Interpreter: runs any program with plain torch operations on the CPU, one function a step.

It is the semantics of a program (in float64 the yardstick of every pass) and, in float32 with the
compiled lookup in place of `lookup`, the CPU engine. Ids must be inside their tables here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpiframe_core.engine.cuda.steps import FusedLinear, LoadDense
from dpiframe_core.model.modules import DENSE
from dpiframe_core.program import steps as p
from dpiframe_core.program.steps import Program, View


class State:
    """What a running program sees: buffers [B, width], weights, ids [F, B]."""

    def __init__(
        self, buffers: dict[str, Tensor], weights: Mapping[str, Tensor], ids: Tensor
    ) -> None:
        self.buffers, self.weights, self.ids = buffers, weights, ids

    def __getitem__(self, view: View) -> Tensor:
        buffer = self.buffers[view.buffer]
        if view.width == buffer.shape[1]:
            return buffer
        return buffer[:, view.start : view.start + view.width]


def run_program(program: Program, ids: Tensor, dense: Tensor) -> Tensor:
    """Logits [B] of ids [F, B] (int64) and dense [N, B], in the type of the weights."""
    weights = {name: as_tensor(weight) for name, weight in program.weights.items()}
    dtype = next(iter(weights.values())).dtype
    batch = ids.shape[1]
    buffers = {
        name: torch.full((batch, w), torch.nan, dtype=dtype) for name, w in program.buffers.items()
    }
    buffers[DENSE] = dense.T.to(dtype)
    state = State(buffers, weights, ids)
    for step in program.steps:
        run_step(step, state)
    return state[program.output].squeeze(1)


def as_tensor(weight: np.ndarray, dtype: type[np.float32] | None = None) -> Tensor:
    """The weight as a contiguous tensor, copied only where it has to be (read-only ones have)."""
    return torch.from_numpy(np.require(weight, dtype, ["C", "W"]))


def run_step(step: p.Step, state: State) -> None:
    """Run one step."""
    STEPS[type(step)](step, state)


def lookup(step: p.Lookup, state: State) -> None:
    rows = []
    for slot in step.slots:
        if slot.table is not None and step.out is not None:
            row = torch.nn.functional.embedding(state.ids[slot.field], state.weights[slot.table])
            rows.append((slot, row))
            state[step.out.columns(slot.column, slot.dim)].copy_(row)
    if step.fm_out is not None:
        _fm([row for slot, row in rows if slot.in_fm], state[step.fm_out])
    if step.wide_out is not None:
        wide = [state.weights[s.wide][state.ids[s.field]] for s in step.slots if s.wide]
        torch.sum(torch.stack(wide), dim=0, out=state[step.wide_out])


def outer(step: p.Outer, state: State) -> None:
    weight = state.weights[step.weight]
    out = state[step.out].unflatten(1, weight.shape)
    torch.mul(state[step.x].unsqueeze(2), weight, out=out)


def copy(step: p.Copy | LoadDense, state: State) -> None:
    state[step.out].copy_(state[step.x])


def linear(step: p.Linear, state: State) -> None:
    x, weight, out = state[step.x], state.weights[step.weight], state[step.out]
    if step.bias:
        torch.addmm(state.weights[step.bias], x, weight.T, out=out)
    else:
        torch.mm(x, weight.T, out=out)
    for start, stop in step.relu:
        out[:, start:stop].relu_()


def fused_linear(step: FusedLinear, state: State) -> None:
    y = state[step.x] @ state.weights[step.weight].T
    if step.bias:
        y += state.weights[step.bias]
    for start, stop in step.relu:
        y[:, start:stop].relu_()
    if step.x0 and step.xl:
        part = y[:, step.cross_start :][:, : step.x0.width]
        torch.addcmul(state[step.xl], state[step.x0], part.clone(), out=part)
    if step.out:
        state[step.out].copy_(y)
    if step.head and step.head_out:
        head = state.weights[step.head]
        state[step.head_out][:, 0] = y[:, step.head_start :][:, : len(head)] @ head


def batch_norm(step: p.BatchNorm, state: State) -> None:
    weight, bias, mean, var = (state.weights[part] for part in step.parts)
    x = state[step.x]
    out = torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, step.eps)
    state[step.out].copy_(out)


def relu(step: p.Relu, state: State) -> None:
    torch.clamp_min(state[step.x], 0, out=state[step.out])


def fm(step: p.FM, state: State) -> None:
    rows = [row for x in step.xs for row in state[x].unflatten(1, (-1, step.dim)).unbind(1)]
    _fm(rows, state[step.out])


def _fm(rows: list[Tensor], out: Tensor) -> None:
    v = torch.stack(rows).double()  # FM is a small difference of two large sums
    total = v.sum(0).square() - v.square().sum(0)
    out.copy_(total.sum(1, keepdim=True) * 0.5)


def cross_v1(step: p.CrossV1, state: State) -> None:
    x0, xl = state[step.x0], state[step.xl]
    scale = xl @ state.weights[step.weight].T
    torch.addcmul(xl + state.weights[step.bias], x0, scale, out=state[step.out])


def cross_combine(step: p.CrossCombine, state: State) -> None:
    torch.addcmul(state[step.xl], state[step.x0], state[step.wx], out=state[step.out])


def cross_scalar(step: p.CrossScalar, state: State) -> None:
    dots, shift = state[step.dots], state.weights[step.shift]
    alpha = torch.ones_like(dots[:, :1])
    for layer in range(step.dots.width):
        alpha = alpha + alpha * dots[:, layer : layer + 1] + shift[layer]
    state[step.out].copy_(alpha)


def scale_shift(step: p.ScaleShift, state: State) -> None:
    beta = state.weights[step.beta]
    torch.addcmul(beta, state[step.x], state[step.alpha], out=state[step.out])


def add(step: p.Add, state: State) -> None:
    total = state[step.xs[0]]
    for x in step.xs[1:]:
        total = total + state[x]
    state[step.out].copy_(total + state.weights[step.bias] if step.bias else total)


def head(step: p.Head, state: State) -> None:
    out = state[step.out]
    out.fill_(state.weights[step.bias].item() if step.bias else 0.0)
    for x, weight in step.dots:
        out[:, 0].addmv_(state[x], state.weights[weight])
    for scalar in step.scalars:
        out.add_(state[scalar])
    for a, b in step.products:
        out.addcmul_(state[a], state[b])


STEPS: dict[type[p.Step], Callable[[Any, State], None]] = {
    p.Lookup: lookup,
    p.Outer: outer,
    p.Copy: copy,
    p.Linear: linear,
    FusedLinear: fused_linear,
    LoadDense: copy,
    p.BatchNorm: batch_norm,
    p.Relu: relu,
    p.FM: fm,
    p.CrossV1: cross_v1,
    p.CrossCombine: cross_combine,
    p.CrossScalar: cross_scalar,
    p.ScaleShift: scale_shift,
    p.Add: add,
    p.Head: head,
}
