"""Random graphs of generic tensor operations, among layers of the other kinds.

Numbers stay near 1 and functions are smooth, so that a bound on the logit says something: where a
choice depends on a comparison, a rounding could change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import model_zoo
import numpy as np

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.model.modules import MLP, Add, Concat, Embedding, Linear, Tensor
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.tensor_ops import (
    Join,
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
    TakeAlong,
    TensorOp,
    TopK,
)

EXPRESSIONS = (
    ("tanh", ("add", "x0", "x1")),
    ("mul", "x0", ("sigmoid", "x1")),
    ("div", ("sub", "x0", "x1"), ("add", 1.0, ("abs", "x1"))),
    ("max", "x0", ("mul", 0.5, "x1")),
    ("mul", 0.5, ("mul", "x0", ("add", 1.0, ("erf", ("mul", "x1", 0.7))))),
    ("add", ("relu", "x0"), ("min", "x1", 0.3)),
    ("sqrt", ("add", 0.5, ("pow", ("mul", 0.3, ("add", "x0", "x1")), 2.0))),
)


class Graph:
    """Modules so far, and the shapes of their values."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.modules: list[Tensor | Embedding | Linear | MLP | Concat | Add] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def add(
        self,
        op: TensorOp,
        inputs: Sequence[tuple[str, Operand]],
        constants: Sequence[Operand] = (),
    ) -> str:
        """A module of the operation; constants are as large as their operands ask."""
        name = f"m{len(self.modules)}"
        operands = (*(operand for _, operand in inputs), *constants)
        sizes = tuple((o.end,) for o in constants)
        names = tuple(source for source, _ in inputs)
        self.modules.append(
            Tensor(name=name, inputs=names, compute=op, operands=operands, constants=sizes)
        )
        self.shapes[name] = op.shape(operands)
        return name

    def layer(self, module: Linear | MLP | Concat | Add, width: int) -> str:
        """A module of another kind."""
        self.modules.append(module)
        self.shapes[module.name] = (width,)
        return module.name

    def pick(self, least: int = 0) -> str:
        """A value of at least so many axes."""
        names = [name for name, shape in self.shapes.items() if len(shape) >= least]
        return str(self.rng.choice(names[-8:]))

    def whole(self, name: str) -> tuple[str, Operand]:
        return name, Operand.whole(*self.shapes[name])

    def seen(self, name: str) -> tuple[str, Operand]:
        """The value, perhaps with axes in another order, or with a part of one."""
        operand = Operand.whole(*self.shapes[name])
        shape, strides, offset = list(operand.shape), list(operand.strides), 0
        if shape and self.rng.random() < 0.3:
            order = self.rng.permutation(len(shape))
            shape, strides = [shape[i] for i in order], [strides[i] for i in order]
        if shape and self.rng.random() < 0.3:
            axis = int(self.rng.integers(len(shape)))
            first = int(self.rng.integers(shape[axis]))
            offset, shape[axis] = first * strides[axis], shape[axis] - first
        return name, Operand(tuple(shape), tuple(strides), offset)

    def grow(self) -> None:
        """Append one operation."""
        rng = self.rng
        kind = rng.choice(
            ["map", "map", "reduce", "softmax", "norm", "rows", "rows", "product", "join", "take",
             "top", "along", "layer", "concat"]
        )  # fmt: skip
        x, operand = self.seen(self.pick(0 if kind in ("map", "join", "layer", "concat") else 1))
        shape = operand.shape
        if kind == "map":
            self._map(x, operand)
        elif kind == "reduce":
            count = int(rng.integers(1, len(shape) + 1))
            axes = tuple(int(a) for a in rng.permutation(len(shape))[:count])
            self.add(Reduce(str(rng.choice(["mean", "max", "min"])), axes), [(x, operand)])
        elif kind == "softmax":
            self.add(Softmax((int(rng.integers(len(shape))),)), [(x, operand)])
        elif kind == "norm":
            part = Operand.whole(shape[-1])
            self.add(LayerNorm(1, 0.1), [(x, operand)], (part,) * int(rng.integers(0, 3)))
        elif kind == "rows":
            columns = int(rng.choice([1, 5, 8, 16, 24]))
            op = MatMul(0, len(shape) - 1, 1)
            self._scaled(self.add(op, [(x, operand)], [Operand.whole(shape[-1], columns)]), 1)
        elif kind == "product":
            self._product()
        elif kind == "join":
            names = [self.pick() for _ in range(int(rng.integers(1, 6)))]
            self.add(Join(1), [self.seen(name) for name in names])
        elif kind == "take":
            behind = int(rng.integers(0, len(shape)))
            places = shape[len(shape) - 1 - behind]
            index = tuple(int(i) for i in rng.integers(0, places, rng.integers(1, 9)))
            self.add(Take(index, behind), [(x, operand)])
        elif kind in ("top", "along"):
            k, largest = int(rng.integers(1, shape[-1] + 1)), bool(rng.random() < 0.5)
            if kind == "top":
                self.add(TopK(k, largest), [(x, operand)])
            else:  # sorted through places
                places = self.add(TopK(k, largest, places=True), [(x, operand)])
                where = self.whole(places)
                del self.shapes[places]
                first = bool(rng.random() < 0.5)
                read = [(x, operand), where]
                self.add(TakeAlong(places_first=first), read[::-1] if first else read)
        elif kind == "layer":
            units = int(rng.choice([1, 7, 16]))
            name, bias = f"m{len(self.modules)}", bool(rng.random() < 0.5)
            if rng.random() < 0.5:
                self.layer(Linear(name=name, inputs=(x,), units=units, bias=bias), units)
            else:
                self.layer(MLP(name=name, inputs=(x,), hidden=(24, units)), units)
        else:
            names = [self.pick() for _ in range(2)]
            width = sum(math.prod(self.shapes[name]) for name in names)
            self.layer(Concat(name=f"m{len(self.modules)}", inputs=tuple(names)), width)

    def _map(self, x: str, operand: Operand) -> None:
        """With another value of the shape, a repeated scalar of one, or a constant."""
        rng, shape = self.rng, operand.shape
        op = Map(EXPRESSIONS[int(rng.integers(len(EXPRESSIONS)))])
        alike = [name for name, other in self.shapes.items() if other == shape]
        choice = rng.random()
        if choice < 0.4 and alike:
            self.add(op, [(x, operand), self.whole(str(rng.choice(alike)))])
        elif choice < 0.7:
            self.add(op, [(x, operand), (self.pick(), Operand(shape, (0,) * len(shape)))])
        else:
            strides = tuple(int(i == len(shape) - 1) for i in range(len(shape)))
            self.add(op, [(x, operand)], [Operand(shape, strides)])

    def _product(self) -> None:
        """x x^T of the rows of a value: [.., n, k] x [.., k, n]."""
        name = self.pick(2) if any(len(s) >= 2 for s in self.shapes.values()) else None
        if name is None:
            return
        shape, whole = self.shapes[name], Operand.whole(*self.shapes[name])
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        turned = Operand(tuple(shape[i] for i in order), tuple(whole.strides[i] for i in order))
        made = self.add(MatMul(len(shape) - 2, 1, 1), [(name, whole), (name, turned)])
        self._scaled(made, shape[-1])

    def _scaled(self, name: str, inner: int) -> None:
        self.add(Map(("tanh", ("mul", "x0", inner**-0.5))), [self.whole(name)])
        del self.shapes[name]


def random_tensor_model(seed: int, steps: int = 12) -> CTRModel:
    """Operations over embeddings and dense features, of either alone too."""
    graph = Graph(seed)
    rng = graph.rng
    num_fields, dim = int(rng.choice([0, 2, 5, 8])), int(rng.choice([3, 8, 16]))
    num_dense = int(rng.choice([0, 3, 13])) if num_fields else 13
    if num_fields:
        graph.modules.append(Embedding(name="embedding"))
        graph.shapes["embedding"] = (num_fields, dim)
    if num_dense:
        graph.shapes["dense"] = (num_dense,)
    for _ in range(steps):
        graph.grow()
        if math.prod(graph.shapes[next(reversed(graph.shapes))]) > 4000:
            graph.shapes.popitem()
    last = [n for n in graph.shapes if n not in ("embedding", "dense")][-3:]
    heads = []
    for name in last:
        shape = graph.shapes[name]
        if rng.random() < 0.5 and shape:
            axes = tuple(range(len(shape)))
            heads.append(graph.add(Reduce("mean", axes), [graph.whole(name)]))
        else:
            heads.append(graph.layer(Linear(name=f"head_{name}", inputs=(name,)), 1))
    if rng.random() < 0.5:  # the end is no sum
        both = [(name, Operand.whole()) for name in heads]
        expression = "x0"
        for i in range(1, len(both)):
            expression = ("add", expression, ("tanh", f"x{i}"))
        output = graph.add(Map(expression), both)
    else:
        output = graph.layer(Add(name="total", inputs=tuple(heads)), 1)
    output = graph.add(Map(("add", "x0", "x1")), [(output, Operand.whole())], [Operand.whole()])
    spec = ModelSpec(
        fields=[FieldSpec(name=f"C{i}", rows=37, dim=dim) for i in range(num_fields)],
        dense=[f"I{i}" for i in range(num_dense)],
        modules=graph.modules,
        output=output,
    )
    return model_zoo.random_model(spec, seed)
