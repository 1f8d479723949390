"""The sum that makes the logit: its terms as modules, the linear part of ids and numbers as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpiframe_core.frontend.draft import AnyModule, Compute, Draft, Known, Lookup
from dpiframe_core.frontend.patterns.tidy import is_flat_join
from dpiframe_core.frontend.values import Column
from dpiframe_core.model.modules import Add, Concat, Linear, Wide
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce
from dpiframe_core.program.views import DENSE


@dataclass
class _Sum:
    """Terms of the logit: rows of tables of one column, weights of the dense features, numbers, and
    outputs of width 1.
    """

    rows: list[tuple[Column, str]] = field(default_factory=list)
    dense: dict[int, Tensor] = field(default_factory=dict)
    bias: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    outputs: list[str] = field(default_factory=list)


class _NoSumError(Exception):
    """A term that is none of these."""


def find_logit_sum(draft: Draft) -> None:
    """Make the logit, where it is a sum, an `Add` of its terms, the linear part one `Wide`."""
    terms = _Sum()
    try:
        _collect(draft, draft.output, 0, terms)
    except _NoSumError:
        return
    if not terms.rows and not terms.dense and len(terms.outputs) < 2:
        return
    if len({column for column, _ in terms.rows}) != len(terms.rows):
        return
    names = list(terms.outputs)
    if terms.rows or terms.dense:
        names.insert(0, _add_wide(draft, terms))
    elif bool(terms.bias != 0):
        return
    if len(names) == 1:
        draft.output = names[0]
        return
    logit = Add(name=draft.name("logit"), inputs=tuple(names))
    draft.modules.append(Known(logit, {}, 1))
    draft.output = logit.name


def _add_wide(draft: Draft, terms: _Sum) -> str:
    has_bias = bool(terms.bias != 0)
    weights: dict[str, Tensor] = {}
    if has_bias:
        weights["bias"] = terms.bias.reshape(1)
    inputs: tuple[str, ...] = ()
    if terms.dense:
        row = torch.zeros(1, draft.num_dense, dtype=torch.float64)
        for i, weight in terms.dense.items():
            row[0, i] = weight
        weights["dense"] = row
        inputs = (DENSE,)
    name = draft.name("wide")
    if not terms.rows:
        weights["weight"] = weights.pop("dense")
        linear = Linear(name=name, inputs=inputs, units=1, bias=has_bias)
        draft.modules.append(Known(linear, weights, 1))
        return name
    wide = WideRows(Wide(name=name, inputs=inputs, bias=has_bias), weights, 1, list(terms.rows))
    draft.modules.append(wide)
    return name


@dataclass(eq=False)
class WideRows(Known):
    """A wide part, whose fields and tables are told when the spec is assembled."""

    rows: list[tuple[Column, str]]


def _collect(draft: Draft, name: str, place: int, terms: _Sum) -> None:
    """Add column `place` of an output to the terms."""
    module = draft.module(name)
    if name == DENSE:
        _add_dense(terms, place, torch.ones((), dtype=torch.float64))
    elif isinstance(module, Lookup):
        dims = [draft.tables[key].weight.shape[1] for key in module.tables]
        if set(dims) != {1}:
            raise _NoSumError
        terms.rows.append((module.columns[place], module.tables[place]))
    elif isinstance(module, Known):
        _collect_known(draft, module, place, terms)
    elif isinstance(module, Compute):
        _collect_computed(draft, module, place, terms)


def _collect_known(draft: Draft, module: Known, place: int, terms: _Sum) -> None:
    spec = module.module
    if isinstance(spec, Concat):
        for part in spec.inputs:
            if place < draft.width(part):
                return _collect(draft, part, place, terms)
            place -= draft.width(part)
    if isinstance(spec, Linear) and spec.inputs == (DENSE,) and module.width == 1:
        for i, weight in enumerate(module.weights["weight"][0].double()):
            _add_dense(terms, i, weight)
        if "bias" in module.weights:
            terms.bias = terms.bias + module.weights["bias"].double().reshape(())
    elif module.width == 1:
        terms.outputs.append(module.name)
    else:
        raise _NoSumError
    return None


def _collect_computed(draft: Draft, module: Compute, place: int, terms: _Sum) -> None:
    is_sum = isinstance(module.op, Reduce) and module.op.function == "sum" and module.inputs
    if is_sum and draft.width(
        module.name
    ) == 1 and _only_rows(draft, module.inputs[0], module.operands[0]):  # fmt: skip
        for column in _columns(module.operands[0]):
            _collect(draft, module.inputs[0], column, terms)
    elif is_flat_join(module):
        for part, operand in zip(module.inputs, module.operands, strict=True):
            if place < operand.size:
                return _collect(draft, part, operand.offset + place, terms)
            place -= operand.size
    elif isinstance(module.op, Map) and draft.width(module.name) == 1:
        _collect_map(draft, module, terms)
    elif isinstance(module.op, MatMul) and _is_dense_product(module):
        x, w = module.operands
        numbers = module.constants[0].reshape(-1).double()
        for i, column in enumerate(_columns(x)):
            _add_dense(terms, column, numbers[w.offset + i])
    elif draft.width(module.name) == 1:
        terms.outputs.append(module.name)
    else:
        raise _NoSumError
    return None


def _is_dense_product(module: Compute) -> bool:
    return (
        module.inputs == [DENSE]
        and len(module.constants) == 1
        and module.op.shape(module.operands) in ((), (1,))
        and module.operands[1].is_whole
    )


def _collect_map(draft: Draft, module: Compute, terms: _Sum) -> None:
    """A sum of operands and numbers; a number times a dense feature."""
    assert isinstance(module.op, Map)
    count = len(module.inputs)
    for part in list(_summands(module.op.expression)):
        if isinstance(part, float):
            terms.bias = terms.bias + part
        elif isinstance(part, str):
            i = int(part[1:])
            if i < count:
                _collect(draft, module.inputs[i], module.operands[i].offset, terms)
            else:
                terms.bias = terms.bias + _constant(module, i)
        else:
            _collect_product(module, part, terms)


def _collect_product(module: Compute, part: Expression, terms: _Sum) -> None:
    """A fixed number times a dense feature; any other map is a term as it is, if it is all."""
    assert isinstance(part, tuple) and isinstance(module.op, Map)
    names = part[1:]
    count = len(module.inputs)
    if part[0] == "mul" and all(isinstance(n, str) for n in names):
        places = sorted(int(str(n)[1:]) for n in names)
        if places[0] < count <= places[1] and module.inputs[places[0]] == DENSE:
            _add_dense(terms, module.operands[places[0]].offset, _constant(module, places[1]))
            return
    if part == module.op.expression:
        terms.outputs.append(module.name)
        return
    raise _NoSumError


def _constant(module: Compute, i: int) -> Tensor:
    numbers = module.constants[i - len(module.inputs)].reshape(-1).double()
    return numbers[module.operands[i].offset]


def _summands(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, tuple) and expression[0] == "add":
        yield from _summands(expression[1])
        yield from _summands(expression[2])
    else:
        yield expression


def _only_rows(draft: Draft, name: str, operand: Operand) -> bool:
    """Whether all columns read are rows of tables, dense features or outputs of width 1."""
    module: AnyModule | None = draft.module(name)
    if isinstance(module, Lookup):
        return all(draft.tables[key].weight.shape[1] == 1 for key in module.tables)
    if isinstance(module, Known) and isinstance(module.module, Concat):
        return all(_scalars(draft, part) for part in module.module.inputs)
    if isinstance(module, Compute) and is_flat_join(module):
        return all(_scalars(draft, part) for part in module.inputs)
    return False


def _scalars(draft: Draft, name: str) -> bool:
    module = draft.module(name)
    if isinstance(module, Lookup):
        return all(draft.tables[key].weight.shape[1] == 1 for key in module.tables)
    return name == DENSE or draft.width(name) == 1


def _columns(operand: Operand) -> list[int]:
    found = [operand.offset]
    for n, s in zip(operand.shape, operand.strides, strict=True):
        found = [at + i * s for at in found for i in range(n)]
    return found


def _add_dense(terms: _Sum, feature: int, weight: Tensor) -> None:
    terms.dense[feature] = terms.dense.get(feature, torch.zeros((), dtype=torch.float64)) + weight
