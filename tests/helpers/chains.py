"""Programs with chains of products, wherever these fit; what a chain's kernel does, on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from mapped_programs import GELU

from dpiframe_core.engine.cuda.chain import grouping
from dpiframe_core.engine.cuda.chain.areas import CHUNK, CHUNK_BYTES, GROUP, ROWS, SHARED, Area
from dpiframe_core.engine.cuda.chain.grouping import ProductChain
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head, Linear, LoadDense, MappedLinear, Step
from dpiframe_core.program.views import DENSE, State, View, Weight


def always(monkeypatch: pytest.MonkeyPatch, ctas: int = 1) -> None:
    """Chains, of which so many CTAs share a tile, are taken for batches of every size, whatever
    their time.
    """
    monkeypatch.setattr(grouping, "chain_rows", lambda layers, areas, rows, precision: tuple(rows))
    monkeypatch.setattr(grouping, "CLUSTERS", (ctas,))
    monkeypatch.setattr(grouping, "fits_gpu", lambda ctas, rows: True)


def mlp(*widths: int, gelu: bool = False, residual: bool = False) -> Program:
    """Dense features, products of these widths, each with ReLU or GELU, the head."""
    random = np.random.default_rng(sum(widths))
    x = View("rows", 0, widths[0])
    steps: list[Step] = [LoadDense("load", View(DENSE, 0, widths[0]), x)]
    weights: dict[str, np.ndarray] = {}
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        weights[f"w{i}"] = random.normal(size=(n, k)) / k**0.5
        weights[f"b{i}"] = random.normal(size=n)
        w, b, out = Weight(f"w{i}"), Weight(f"b{i}"), View(f"h{i}", 0, n)
        if residual and k == n:
            added = ("add", "x0", "x1")
            steps.append(MappedLinear(f"p{i}", x, w, b, added, (x,), (), out))
        elif gelu:
            steps.append(MappedLinear(f"p{i}", x, w, b, GELU, (), (), out))
        else:
            steps.append(Linear(f"p{i}", x, w, b, out, ((0, n),)))
        x = out
    weights["head"] = random.normal(size=x.width) / x.width**0.5
    logit = View("logit", 0, 1)
    steps.append(Head("head", ((x, Weight("head")),), (), (), None, logit))
    buffers = {v.buffer: v.width for s in steps for v in (*s.reads(), *s.writes())}
    return Program((), (), (), widths[0], buffers, tuple(steps), weights, logit).changed()


def chains_of(program: Program) -> list[ProductChain]:
    """The program's chains."""
    return [step for step in program.steps if isinstance(step, ProductChain)]


class ChainInMemory(ProductChain):
    """Runs a tile of samples as the kernel does: everything in one memory, where the areas are."""

    def run(self, state: State) -> None:
        memory = np.full((SHARED // 2, ROWS), np.nan)  # two bytes of each of 64 rows
        for area in self.areas.inputs:
            write(memory, area, 0, state[area.view].T.numpy())
        for layer in self.layers:
            own = State(dict(state.buffers), state.weights, state.ids)
            views = [(layer.x, self.areas.read(layer.x))]
            views += [(o.view, self.areas.read(o.view, epilogue=True)) for o in layer.operands]
            for view, area in views:
                own.buffers[view.buffer] = own.buffers[view.buffer].clone()
                rows = len(own[view])
                own[view].copy_(torch.from_numpy(read(memory, area, view).T[:rows]))
            layer.step.run(own)
            for view in layer.step.writes():
                state[view].copy_(own[view])
            if layer.out:
                area = self.areas.written(layer.out)
                write(memory, area, layer.out.start, state[layer.out].T.numpy())


def in_memory(program: Program) -> Program:
    """The program with its chains run as their kernels do."""
    steps = [
        ChainInMemory(**{field.name: getattr(s, field.name) for field in fields(s)})
        if isinstance(s, ProductChain)
        else s
        for s in program.steps
    ]
    return replace(program, steps=tuple(steps))


def place(area: Area, column: int) -> int:
    """Of the area's column in memory."""
    chunk, inside = divmod(column, CHUNK)
    return (area.offset + chunk * CHUNK_BYTES) // 128 + inside


def write(memory: np.ndarray, area: Area, start: int, values: np.ndarray) -> None:
    """[columns, rows], and zeros to a whole group of columns."""
    columns = np.pad(values, ((0, -len(values) % GROUP), (0, ROWS - values.shape[1])))
    for i, column in enumerate(columns):
        memory[place(area, start + i)] = column


def read(memory: np.ndarray, area: Area, view: View) -> np.ndarray:
    """[columns, rows]; behind the last column are numbers."""
    start = view.start - area.view.start
    found = np.stack([memory[place(area, start + i)] for i in range(view.width)])
    assert np.isfinite(found).all(), f"{view} is not there"
    return found
