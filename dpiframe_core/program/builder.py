"""ProgramBuilder: what modules call to append their steps; the first, plain form of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpiframe_core.model.modules import DENSE, BaseModule
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program import steps as p
from dpiframe_core.program.steps import Program, View, Weight


class ProgramBuilder:
    """Collects steps and buffers; every method appends one step and returns its output."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, np.ndarray]) -> None:
        self.spec = spec
        self._weights = weights
        self._steps: list[p.Step] = []
        self._buffers = {DENSE: len(spec.dense)}

    def build(self) -> Program:
        """Lower every module in order; the unoptimised program."""
        views = {DENSE: View(DENSE, 0, len(self.spec.dense))}
        for module in self.spec.modules:
            views[module.name] = module.lower(self, [views[name] for name in module.inputs])
        program = Program(
            field_names=tuple(f.name for f in self.spec.fields),
            field_rows=tuple(f.rows for f in self.spec.fields),
            oov_rows=tuple(-1 if f.oov_row is None else f.oov_row for f in self.spec.fields),
            num_dense=len(self.spec.dense),
            buffers=self._buffers,
            steps=tuple(self._steps),
            weights=self._weights,
            output=views[self.spec.output],
        )
        return p.changed(program)

    def weight_name(self, module: BaseModule, part: str) -> Weight:
        """The program's name of a module's weight."""
        return Weight(f"{module.name}/{part}")

    def lookup(self, name: str, rows: Sequence[tuple[int, Weight, int]]) -> View:
        """Rows of tables side by side; `rows`: (field, table, dim) in output order."""
        slots, column = [], 0
        for field, table, dim in rows:
            slots.append(p.Slot(field, table, dim, column))
            column += dim
        out = self._buffer(name, column)
        self._steps.append(p.Lookup(name, tuple(slots), out))
        return out

    def wide_lookup(self, name: str, tables: Sequence[tuple[int, Weight]]) -> View:
        """The sum of one weight a field; `tables`: (field, table [rows, 1])."""
        slots = tuple(p.Slot(field, None, 0, 0, wide=table) for field, table in tables)
        out = self._buffer(name, 1)
        self._steps.append(p.Lookup(name, slots, None, wide_out=out))
        return out

    def outer(self, name: str, x: View, weight: Weight) -> View:
        """Each column of x times its row of the weight [N, D]."""
        out = self._buffer(name, x.width * self._weights[weight].shape[1])
        self._steps.append(p.Outer(name, x, weight, out))
        return out

    def concat(self, name: str, xs: Sequence[View]) -> View:
        """Views side by side: one Copy each."""
        out, column = self._buffer(name, sum(x.width for x in xs)), 0
        for i, x in enumerate(xs):
            if x.width:
                self._steps.append(p.Copy(f"{name}.{i}", x, out.columns(column, x.width)))
            column += x.width
        return out

    def linear(self, name: str, x: View, weight: Weight, bias: Weight | None) -> View:
        """x weight^T + bias."""
        out = self._buffer(name, self._weights[weight].shape[0])
        self._steps.append(p.Linear(name, x, weight, bias, out))
        return out

    def batch_norm(self, name: str, x: View, parts: Sequence[Weight], eps: float) -> View:
        """Normalisation with stored statistics; parts: weight, bias, mean, var."""
        out = self._buffer(name, x.width)
        self._steps.append(p.BatchNorm(name, x, tuple(parts), eps, out))
        return out

    def relu(self, name: str, x: View) -> View:
        """max(x, 0)."""
        out = self._buffer(name, x.width)
        self._steps.append(p.Relu(name, x, out))
        return out

    def fm(self, name: str, xs: Sequence[View], dim: int) -> View:
        """Second-order factorisation machine over all fields of xs."""
        out = self._buffer(name, 1)
        self._steps.append(p.FM(name, tuple(xs), dim, out))
        return out

    def cross_v1(self, name: str, x0: View, xl: View, weight: Weight, bias: Weight) -> View:
        """One layer of DCN's cross network."""
        out = self._buffer(name, x0.width)
        self._steps.append(p.CrossV1(name, x0, xl, weight, bias, out))
        return out

    def cross_combine(self, name: str, x0: View, wx: View, xl: View) -> View:
        """x0 * wx + xl."""
        out = self._buffer(name, x0.width)
        self._steps.append(p.CrossCombine(name, x0, wx, xl, out))
        return out

    def add(self, name: str, xs: Sequence[View], bias: Weight | None) -> View:
        """Sum of views of one width."""
        out = self._buffer(name, xs[0].width)
        self._steps.append(p.Add(name, tuple(xs), bias, out))
        return out

    def _buffer(self, name: str, width: int) -> View:
        assert name not in self._buffers, f"two steps are named {name}"
        self._buffers[name] = width
        return View(name, 0, width)
