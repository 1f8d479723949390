"""Operations over tensors as the compiled part takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpiframe_core import _core
from dpiframe_core.program.expression import postfix
from dpiframe_core.program.tensor_ops import (
    FieldPairs,
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

NATIVE_OPS: dict[type[TensorOp | FieldPairs], Callable[[Any], _core.TensorOp]] = {
    Map: lambda op: _core.MapOp(list(postfix(op.expression))),
    Reduce: lambda op: _core.ReduceOp(op.function, op.axes),
    Softmax: lambda op: _core.SoftmaxOp(op.axes, op.guarded),
    LayerNorm: lambda op: _core.LayerNormOp(op.axes, op.eps),
    MatMul: lambda op: _core.MatMulOp(op.batch, op.rows, op.inner),
    Join: lambda op: _core.JoinOp(op.outer),
    Take: lambda op: _core.TakeOp(op.index, op.behind),
    TopK: lambda op: _core.TopKOp(op.k, op.largest, op.places),
    TakeAlong: lambda op: _core.TakeAlongOp(op.places_first),
    FieldPairs: lambda op: _core.FmOp(op.dim),
}


def native_op(op: TensorOp | FieldPairs) -> _core.TensorOp:
    """The operation as the compiled part takes it."""
    return NATIVE_OPS[type(op)](op)


def native_operand(operand: Operand) -> _core.TensorOperand:
    """The operand as the compiled part takes it."""
    return _core.TensorOperand(operand.shape, operand.strides, operand.offset)
