"""The steps of a program: each a kernel-level operation over views, declared once.

A step states its formula three times, side by side: in words, as `run` with plain torch operations
on the CPU (what the interpreter and the CPU backend compute, and what every pass and kernel is held
to), and as `bound`, the largest magnitude that it can write. torch is imported when a step first
runs: a GPU engine never needs it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from dpiframe_core.program.expression import Expression, evaluate
from dpiframe_core.program.tensor_ops import LayerNorm, Operand, Take, TensorOp
from dpiframe_core.program.views import Bounds, State, View, Weight

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Array = TypeVar("Array", "Tensor", np.ndarray)
PRODUCTS_IN_TURN = 8  # columns that a thread of a compiled epilogue has


@dataclass(frozen=True)
class Step:
    """One operation. The views it writes are its fields `out`, `fm_out`, `wide_out`, `head_out`.

    `kernel`: the row of the table in csrc/kernels/elementwise/steps.cu that computes the step on a
    GPU from the views it reads, its weights and its sizes, each in the order of the fields; empty
    for steps that a device program adds in a way of their own.
    """

    kernel: ClassVar[str] = ""

    name: str

    def run(self, state: State) -> None:
        """Compute the step with torch, in the type of the weights."""
        raise NotImplementedError

    def bound(self, bounds: Bounds) -> None:
        """Bound what the step writes; where a step does not say, its bounds stay infinite."""

    def leaves(self) -> tuple[Step, ...]:
        """The steps that it is made of: itself, but for a group."""
        return (self,)

    def writes(self) -> list[View]:
        """Views written, in the order of the fields."""
        return self._found(View, outputs=True)

    def reads(self) -> list[View]:
        """Views read, in the order of the fields."""
        return self._found(View, outputs=False)

    def weight_names(self) -> list[Weight]:
        """Names of the weights read, in the order of the fields."""
        return self._found(Weight, outputs=False)

    def sizes(self) -> list[int]:
        """Integers among the fields, in their order."""
        return self._found(int, outputs=False)

    def map_views(self, change: Callable[[View], View]) -> Self:
        """The same step over changed views."""
        parts = {f.name: _map(getattr(self, f.name), change) for f in fields(self)}
        return replace(self, **parts)

    def _found(self, kind: type[T], outputs: bool) -> list[T]:
        named = [f.name for f in fields(self) if f.name.endswith("out") is outputs]
        return [value for name in named for value in _inside(getattr(self, name), kind)]


@dataclass(frozen=True)
class StepGroup(Step):
    """Steps that one kernel runs; computed, they are run in order."""

    parts: tuple[Step, ...]

    def leaves(self) -> tuple[Step, ...]:
        return self.parts

    def run(self, state: State) -> None:
        for step in self.parts:
            step.run(state)

    def bound(self, bounds: Bounds) -> None:
        for step in self.parts:
            step.bound(bounds)

    def weight_names(self) -> list[Weight]:
        return [name for step in self.parts for name in step.weight_names()]


@dataclass(frozen=True)
class Slot:
    """One field's part in a lookup: which ids, which table, and the column its embedding row goes
    to.
    """

    field: int
    table: Weight | None
    dim: int
    column: int
    in_fm: bool = False
    wide: Weight | None = None


@dataclass(frozen=True)
class DenseSlot:
    """Dense features' part in a lookup: their place in `dense_out` gets x weight + shift, both [N],
    or D columns of each where the weight is [N, D]; the wide sum gets x . wide.
    """

    x: View
    weight: Weight | None = None
    shift: Weight | None = None
    wide: Weight | None = None
    in_fm: bool = False


@dataclass(frozen=True)
class Lookup(Step):
    """out[:, column..] = table[ids[field]] for each slot; fm_out [B, 1] the second-order FM of the
    slots in it; wide_out [B, 1] the sum of the slots' wide weights; dense_out what each of `dense`
    makes of dense features. All in one pass.
    """

    slots: tuple[Slot, ...]
    out: View | None
    fm_out: View | None = None
    wide_out: View | None = None
    dense: tuple[DenseSlot, ...] = ()
    dense_out: tuple[View | None, ...] = ()

    def run(self, state: State) -> None:
        import torch

        in_fm = []
        for slot in self.slots:
            if slot.table is not None and self.out is not None:
                ids, table = state.ids[slot.field], state.weights[slot.table]
                values = torch.nn.functional.embedding(ids, table)
                state[self.out.columns(slot.column, slot.dim)].copy_(values)
                in_fm += [values] if slot.in_fm else []
        wide = [state.weights[s.wide][state.ids[s.field]] for s in self.slots if s.wide]
        for dense, out in zip(self.dense, self.dense_out, strict=True):
            x = state[dense.x]
            if out is not None:
                values = _scaled(x, dense, state)
                state[out].copy_(values.flatten(1))
                in_fm += values.unbind(1) if dense.in_fm else []
            if dense.wide is not None:
                wide.append((x @ state.weights[dense.wide]).unsqueeze(1))
        if self.fm_out is not None:
            _fm(in_fm, state[self.fm_out])
        if self.wide_out is not None:
            torch.sum(torch.stack(wide), dim=0, out=state[self.wide_out])

    def bound(self, bounds: Bounds) -> None:
        fm: dict[int, float] = {}
        wide = sum(bounds.largest[s.wide] for s in self.slots if s.wide)
        for slot in self.slots:
            if slot.table is None or self.out is None:
                continue
            bounds[self.out.columns(slot.column, slot.dim)] = bounds.largest[slot.table]
            if slot.in_fm:
                fm[slot.dim] = fm.get(slot.dim, 0.0) + bounds.largest[slot.table]
        for dense, out in zip(self.dense, self.dense_out, strict=True):
            x = bounds[dense.x]
            if out is not None:
                scale = bounds.size(dense.weight) if dense.weight else np.ones(len(x))
                values = scale * (x[:, None] if scale.ndim == 2 else x) + bounds.size(dense.shift)
                bounds[out] = values.ravel()
                if dense.in_fm:
                    dim = values.shape[1]
                    fm[dim] = fm.get(dim, 0.0) + float(values.max(axis=1).sum())
            if dense.wide:
                wide += float(x @ bounds.size(dense.wide))
        if self.fm_out:
            bounds[self.fm_out] = sum(0.5 * dim * total**2 for dim, total in fm.items())
        if self.wide_out:
            bounds[self.wide_out] = wide


@dataclass(frozen=True)
class LoadDense(Step):
    """out = x, the batch's dense features, which a GPU is given as columns [N, B]."""

    x: View
    out: View

    def run(self, state: State) -> None:
        state[self.out].copy_(state[self.x])

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = bounds[self.x]


@dataclass(frozen=True)
class Linear(Step):
    """out = x weight^T + bias (weight [H, W]), then ReLU on the column ranges `relu` of out."""

    x: View
    weight: Weight
    bias: Weight | None
    out: View
    relu: tuple[tuple[int, int], ...] = ()

    def run(self, state: State) -> None:
        import torch

        x, weight, out = state[self.x], state.weights[self.weight], state[self.out]
        if self.bias:
            torch.addmm(state.weights[self.bias], x, weight.T, out=out)
        else:
            torch.mm(x, weight.T, out=out)
        for start, stop in self.relu:
            out[:, start:stop].relu_()

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = bounds.size(self.weight) @ bounds[self.x] + bounds.size(self.bias)


@dataclass(frozen=True)
class FusedLinear(Step):
    """A product with the epilogue that a GPU has for it.

    y = x weight^T + bias, ReLU on the column ranges `relu`, then y = x0 * y + xl on the columns
    from `cross_start` on (as many as x0 has); out = y unless None; head_out [B, 1] = the columns of
    y from `head_start` on . head (float32 whatever the type of y).
    """

    x: View
    weight: Weight
    bias: Weight | None
    out: View | None
    relu: tuple[tuple[int, int], ...] = ()
    cross_start: int = 0
    x0: View | None = None
    xl: View | None = None
    head_start: int = 0
    head: Weight | None = None
    head_out: View | None = None

    def run(self, state: State) -> None:
        import torch

        y = state[self.x] @ state.weights[self.weight].T
        if self.bias:
            y += state.weights[self.bias]
        for start, stop in self.relu:
            y[:, start:stop].relu_()
        if self.x0 and self.xl:
            part = y[:, self.cross_start :][:, : self.x0.width]
            torch.addcmul(state[self.xl], state[self.x0], part.clone(), out=part)
        if self.out:
            state[self.out].copy_(y)
        if self.head and self.head_out:
            head = state.weights[self.head]
            state[self.head_out][:, 0] = y[:, self.head_start :][:, : len(head)] @ head

    def bound(self, bounds: Bounds) -> None:
        y = bounds.size(self.weight) @ bounds[self.x] + bounds.size(self.bias)
        if self.x0 and self.xl:
            part = y[self.cross_start :][: self.x0.width]
            part[:] = bounds[self.x0] * part + bounds[self.xl]
        if self.head and self.head_out:
            head = bounds.size(self.head)
            bounds[self.head_out] = y[self.head_start :][: len(head)] @ head
        if self.out:
            bounds[self.out] = y


@dataclass(frozen=True)
class Moments:
    """The sums and the sums of squares [B, 1] of rows of `width` numbers, of which come a row's
    mean and 1 / sqrt(variance + eps).
    """

    sums: View
    squares: View
    width: int
    eps: float

    def of(self, state: State) -> tuple[Tensor, Tensor]:
        """Both [B, 1]."""
        mean = state[self.sums] / self.width
        variance = (state[self.squares] / self.width - mean**2).clamp_min(0)
        return mean, (variance + self.eps).rsqrt()


@dataclass(frozen=True)
class MappedLinear(Step):
    """out = expression, element by element, of x0 = x weight^T + bias and of operands x1, x2, ...

    These are `xs` and behind them `constants`: each as wide as out, or one number a sample. Of two
    `products` x0 and x1 are the results and operands begin at x2; rows of weight and bias are those
    of the one and of the other, PRODUCTS_IN_TURN in turn, the last filled up. The last operands are
    the mean and the scale of `norm`, if any. What else is made of the result, in float32 whatever
    its type, all [B, 1]: head_out = the result . head, sums_out its sum, squares_out that of its
    squares. Where nothing else reads it, out is not `stored`.
    """

    x: View
    weight: Weight
    bias: Weight | None
    expression: Expression
    xs: tuple[View, ...]
    constants: tuple[Weight, ...]
    out: View
    products: int = 1
    head: Weight | None = None
    head_out: View | None = None
    sums_out: View | None = None
    squares_out: View | None = None
    norm: Moments | None = None
    stored: bool = True

    def run(self, state: State) -> None:
        y = state[self.x] @ state.weights[self.weight].T
        if self.bias:
            y += state.weights[self.bias]
        operands = [self.product(y.T, i).T for i in range(self.products)]
        operands += [state[x] for x in self.xs]
        operands += [state.weights[weight] for weight in self.constants]
        operands += self.norm.of(state) if self.norm else ()
        result = evaluate(self.expression, operands)
        if self.stored:
            state[self.out].copy_(result)
        if self.head and self.head_out:
            state[self.head_out][:, 0] = result @ state.weights[self.head]
        if self.sums_out and self.squares_out:
            state[self.sums_out][:, 0] = result.sum(dim=1)
            state[self.squares_out][:, 0] = (result**2).sum(dim=1)

    def writes(self) -> list[View]:
        return [view for view in super().writes() if self.stored or view != self.out]

    def product(self, rows: Array, i: int) -> Array:
        """Those of the i-th product, of rows of all: of the weight, the bias, or results."""
        if self.products == 1:
            return rows
        blocks = rows.reshape(-1, self.products, PRODUCTS_IN_TURN, *rows.shape[1:])
        return blocks[:, i].reshape(-1, *rows.shape[1:])[: self.out.width]


@dataclass(frozen=True)
class Head(Step):
    """out [B, 1] = sum x . w over dots + sum of scalars + sum a * b over products + bias."""

    dots: tuple[tuple[View, Weight], ...]
    scalars: tuple[View, ...]
    products: tuple[tuple[View, View], ...]
    bias: Weight | None
    out: View

    def run(self, state: State) -> None:
        out = state[self.out]
        out.fill_(state.weights[self.bias].item() if self.bias else 0.0)
        for x, weight in self.dots:
            out[:, 0].addmv_(state[x], state.weights[weight])
        for scalar in self.scalars:
            out.add_(state[scalar])
        for a, b in self.products:
            out.addcmul_(state[a], state[b])

    def bound(self, bounds: Bounds) -> None:
        total = float(np.sum(bounds.size(self.bias)))
        total += sum(bounds[x] @ bounds.size(weight) for x, weight in self.dots)
        total += sum(bounds[x].item() for x in self.scalars)
        bounds[self.out] = total + sum(bounds[a] @ bounds[b] for a, b in self.products)


@dataclass(frozen=True)
class BatchNorm(Step):
    """out = (x - mean) / sqrt(var + eps) * weight + bias; parts = (weight, bias, mean, var)."""

    x: View
    parts: tuple[Weight, ...]
    eps: float
    out: View

    def run(self, state: State) -> None:
        import torch

        weight, bias, mean, var = (state.weights[part] for part in self.parts)
        x = state[self.x]
        out = torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, self.eps)
        state[self.out].copy_(out)

    def bound(self, bounds: Bounds) -> None:
        weight, bias, mean, variance = (bounds.size(part) for part in self.parts)
        scale = weight / np.sqrt(variance + self.eps)
        bounds[self.out] = (bounds[self.x] + mean) * scale + bias


@dataclass(frozen=True)
class Copy(Step):
    """out = x."""

    kernel: ClassVar[str] = "copy"

    x: View
    out: View

    def run(self, state: State) -> None:
        state[self.out].copy_(state[self.x])

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = bounds[self.x]


@dataclass(frozen=True)
class Relu(Step):
    """out = max(x, 0)."""

    kernel: ClassVar[str] = "relu"

    x: View
    out: View

    def run(self, state: State) -> None:
        import torch

        torch.clamp_min(state[self.x], 0, out=state[self.out])

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = bounds[self.x]


@dataclass(frozen=True)
class Outer(Step):
    """out[:, n*D:(n+1)*D] = x[:, n] * weight[n] (weight [N, D])."""

    kernel: ClassVar[str] = "outer"

    x: View
    weight: Weight
    out: View

    def run(self, state: State) -> None:
        import torch

        weight = state.weights[self.weight]
        out = state[self.out].unflatten(1, weight.shape)
        torch.mul(state[self.x].unsqueeze(2), weight, out=out)

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = (bounds.size(self.weight) * bounds[self.x][:, None]).ravel()


@dataclass(frozen=True)
class Affine(Step):
    """out = x * scale + shift, both [W]."""

    kernel: ClassVar[str] = "affine"

    x: View
    scale: Weight
    shift: Weight
    out: View

    def run(self, state: State) -> None:
        import torch

        scale, shift = state.weights[self.scale], state.weights[self.shift]
        torch.addcmul(shift, state[self.x], scale, out=state[self.out])

    def bound(self, bounds: Bounds) -> None:
        scale, shift = bounds.size(self.scale), bounds.size(self.shift)
        bounds[self.out] = bounds[self.x] * scale + shift


@dataclass(frozen=True)
class Add(Step):
    """out = sum of xs + bias."""

    kernel: ClassVar[str] = "add"

    xs: tuple[View, ...]
    bias: Weight | None
    out: View

    def run(self, state: State) -> None:
        total = state[self.xs[0]]
        for x in self.xs[1:]:
            total = total + state[x]
        state[self.out].copy_(total + state.weights[self.bias] if self.bias else total)

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = sum(bounds[x] for x in self.xs) + bounds.size(self.bias)


@dataclass(frozen=True)
class FM(Step):
    """out [B, 1] = 1/2 sum_d ((sum_f v)^2 - sum_f v^2) over all fields, `dim` wide, of xs."""

    kernel: ClassVar[str] = "fm"

    xs: tuple[View, ...]
    dim: int
    out: View

    def run(self, state: State) -> None:
        found = [v for x in self.xs for v in state[x].unflatten(1, (-1, self.dim)).unbind(1)]
        _fm(found, state[self.out])

    def bound(self, bounds: Bounds) -> None:
        total = sum(bounds[x].reshape(-1, self.dim).sum(0) for x in self.xs)
        bounds[self.out] = 0.5 * np.square(total).sum()


@dataclass(frozen=True)
class CrossV1(Step):
    """out = x0 (xl . weight) + bias + xl."""

    kernel: ClassVar[str] = "cross_v1"

    x0: View
    xl: View
    weight: Weight
    bias: Weight
    out: View

    def run(self, state: State) -> None:
        import torch

        x0, xl = state[self.x0], state[self.xl]
        scale = xl @ state.weights[self.weight].T
        torch.addcmul(xl + state.weights[self.bias], x0, scale, out=state[self.out])

    def bound(self, bounds: Bounds) -> None:
        dot = bounds.size(self.weight) @ bounds[self.xl]
        bounds[self.out] = bounds[self.x0] * dot + bounds.size(self.bias) + bounds[self.xl]


@dataclass(frozen=True)
class CrossCombine(Step):
    """out = x0 * wx + xl."""

    kernel: ClassVar[str] = "cross_combine"

    x0: View
    wx: View
    xl: View
    out: View

    def run(self, state: State) -> None:
        import torch

        torch.addcmul(state[self.xl], state[self.x0], state[self.wx], out=state[self.out])

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = bounds[self.x0] * bounds[self.wx] + bounds[self.xl]


@dataclass(frozen=True)
class CrossScalar(Step):
    """out [B, 1] = alpha_L, with alpha_0 = 1, alpha_{l+1} = alpha_l (1 + dots_l) + shift_l."""

    kernel: ClassVar[str] = "cross_scalar"

    dots: View
    shift: Weight
    out: View

    def run(self, state: State) -> None:
        import torch

        dots, shift = state[self.dots], state.weights[self.shift]
        alpha = torch.ones_like(dots[:, :1])
        for layer in range(self.dots.width):
            alpha = alpha + alpha * dots[:, layer : layer + 1] + shift[layer]
        state[self.out].copy_(alpha)

    def bound(self, bounds: Bounds) -> None:
        alpha = 1.0
        for dot, shift in zip(bounds[self.dots], bounds.size(self.shift), strict=True):
            alpha = alpha * (1 + dot) + shift
        bounds[self.out] = alpha


@dataclass(frozen=True)
class ScaleShift(Step):
    """out = alpha * x + beta (alpha [B, 1], beta [W])."""

    kernel: ClassVar[str] = "scale_shift"

    x: View
    alpha: View
    beta: Weight
    out: View

    def run(self, state: State) -> None:
        import torch

        beta = state.weights[self.beta]
        torch.addcmul(beta, state[self.x], state[self.alpha], out=state[self.out])

    def bound(self, bounds: Bounds) -> None:
        bounds[self.out] = bounds[self.alpha] * bounds[self.x] + bounds.size(self.beta)


@dataclass(frozen=True)
class TensorStep(Step):
    """out = op of tensors, which `operands` read from `xs` and then from `constants`."""

    op: TensorOp
    xs: tuple[View, ...]
    constants: tuple[Weight, ...]
    operands: tuple[Operand, ...]
    out: View

    def run(self, state: State) -> None:
        tensors = [state[x] for x in self.xs]
        tensors += [state.weights[weight].reshape(1, -1) for weight in self.constants]
        read = [o.read(tensor) for o, tensor in zip(self.operands, tensors, strict=True)]
        out = Operand.whole(*self.op.shape(self.operands)).read(state[self.out])
        self.op.write(read, out)

    def bound(self, bounds: Bounds) -> None:
        if isinstance(self.op, Take) and self.xs:
            x = self.operands[0].numbers(bounds[self.xs[0]])
            picked = x.take(self.op.index, axis=x.ndim - 1 - self.op.behind)
            bounds[self.out] = picked.reshape(-1)
            return
        if not isinstance(self.op, LayerNorm) or len(self.xs) > 1:
            return
        count = math.prod(self.operands[0].shape[-self.op.axes :])
        factor, *added = [float(bounds.size(weight).max()) for weight in self.constants] or [1.0]
        bounds[self.out] = math.sqrt(count) * factor + sum(added)


@dataclass(frozen=True)
class LinearRows(Step):
    """out [B, rows, H] = x [B, rows, W] weight^T (weight [H, W]): one product of B rows rows.

    x begins a row every `stride` columns; out has one row after the other.
    """

    x: View
    weight: Weight
    rows: int
    stride: int
    out: View

    def run(self, state: State) -> None:
        weight = state.weights[self.weight]
        height, width = weight.shape
        x = Operand((self.rows, width), (self.stride, 1)).read(state[self.x])
        Operand.whole(self.rows, height).read(state[self.out]).copy_(x @ weight.T)

    def bound(self, bounds: Bounds) -> None:
        weight = bounds.size(self.weight)
        x = bounds[self.x]
        for row in range(self.rows):
            found = weight @ x[row * self.stride :][: weight.shape[1]]
            bounds[self.out.columns(row * len(weight), len(weight))] = found


def _fm(embeddings: list[Tensor], out: Tensor) -> None:
    """FM of embeddings [B, D], in double: it is a small difference of two large sums."""
    import torch

    v = torch.stack(embeddings).double()
    total = v.sum(0).square() - v.square().sum(0)
    out.copy_(total.sum(1, keepdim=True) * 0.5)


def _scaled(x: Tensor, dense: DenseSlot, state: State) -> Tensor:
    """[B, N] or [B, N, D]."""
    weight = state.weights[dense.weight] if dense.weight else None
    if weight is not None:
        x = x.unsqueeze(2) * weight if weight.ndim == 2 else x * weight
    return x + state.weights[dense.shift] if dense.shift else x


def _inside(value: Any, kind: type[T]) -> list[T]:
    """Every instance of `kind` inside nested tuples, slots and moments, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, tuple):
        return [x for v in value for x in _inside(v, kind)]
    if isinstance(value, (Slot, DenseSlot, Moments)):
        return [x for f in fields(value) for x in _inside(getattr(value, f.name), kind)]
    return []


def _map(value: Any, change: Callable[[View], View]) -> Any:
    """`value` with every view inside nested tuples changed."""
    if isinstance(value, View):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(v, change) for v in value)
    if isinstance(value, Moments):
        return replace(value, sums=change(value.sums), squares=change(value.squares))
    if isinstance(value, DenseSlot):
        return replace(value, x=change(value.x))
    return value
