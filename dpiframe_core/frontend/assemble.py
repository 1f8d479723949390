"""A draft as a model spec with its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.frontend.draft import Compute, Draft, Lookup
from dpiframe_core.frontend.patterns.logit import WideRows
from dpiframe_core.frontend.values import Column
from dpiframe_core.model.fields import FieldSpec
from dpiframe_core.model.modules import Embedding, Module
from dpiframe_core.model.modules import Tensor as TensorModule
from dpiframe_core.model.spec import ModelSpec


@dataclass(frozen=True)
class Features:
    """The features of a model: each id column's field name and rows, in order, and the dense
    features' names, in order.
    """

    fields: Mapping[Column, tuple[str, int]]
    dense: tuple[str, ...]


def assembled(
    draft: Draft, features: Features, name: str, dtype: torch.dtype = torch.float32
) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The spec and its weights, which bundles hold in float32."""
    weights: dict[str, Tensor] = {}
    modules: list[Module] = []
    fields = _fields(draft, features)
    for module in draft.modules:
        if isinstance(module, Compute):
            constants = tuple(tuple(c.shape) or (1,) for c in module.constants)
            found = {str(i): c.reshape(constants[i]) for i, c in enumerate(module.constants)}
            made: Module = TensorModule(
                name=module.name, inputs=tuple(module.inputs), compute=module.op,
                operands=tuple(module.operands), constants=constants,
            )  # fmt: skip
        elif isinstance(module, Lookup):
            dims = [draft.tables[key].weight.shape[1] for key in module.tables]
            chosen, found = _rows(draft, fields, _looked_up(module))
            own = [fields[column].dim for column in module.columns]
            made = Embedding(name=module.name, dims=() if own == dims else tuple(dims), **chosen)
        elif isinstance(module, WideRows):
            chosen, found = _rows(draft, fields, _in_order(module.rows, fields))
            if chosen["fields"] == tuple(f.name for f in fields.values()):
                chosen["fields"] = ()
            made, found = module.module.model_copy(update=chosen), found | module.weights
        else:
            made, found = module.module, module.weights
        modules.append(made)
        weights |= {
            f"{module.name}/{part}": w.detach().to(dtype).contiguous() for part, w in found.items()
        }
    spec = ModelSpec(
        name=name, fields=tuple(fields.values()), dense=features.dense, modules=tuple(modules),
        output=draft.output,
    )  # fmt: skip
    return spec, weights


def _looked_up(module: Lookup | WideRows) -> list[tuple[Column, str]]:
    """Columns, each with its table's key."""
    if isinstance(module, WideRows):
        return module.rows
    return list(zip(module.columns, module.tables, strict=True))


def _in_order(
    rows: list[tuple[Column, str]], fields: Mapping[Column, FieldSpec]
) -> list[tuple[Column, str]]:
    order = list(fields)
    return sorted(rows, key=lambda row: order.index(row[0]))


def _fields(draft: Draft, features: Features) -> dict[Column, FieldSpec]:
    """Each id column's field: as wide as what it is first looked up in, the widest first, and with
    that table, named for the first field that it serves.
    """
    lookups = [m for m in draft.modules if isinstance(m, (Lookup, WideRows))]
    widest = sorted(
        (entry for m in lookups for entry in _looked_up(m)),
        key=lambda entry: -draft.tables[entry[1]].weight.shape[1],
    )
    first: dict[Column, str] = {}
    for column, key in widest:
        first.setdefault(column, key)
    owner: dict[str, str] = {}
    found = {}
    for column, (name, rows) in features.fields.items():
        if column not in first:  # of a list, and nothing looks it up
            found[column] = FieldSpec(name=name, rows=rows, dim=1)
            continue
        key = first[column]
        table = owner.setdefault(key, name)
        dim = draft.tables[key].weight.shape[1]
        found[column] = FieldSpec(name=name, rows=rows, dim=dim, table=table)
    return found


def _rows(
    draft: Draft, fields: Mapping[Column, FieldSpec], looked_up: list[tuple[Column, str]]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A lookup's fields and, where they are not the fields' own, tables; the tables' weights."""
    names: dict[str, str] = {}
    for column, key in looked_up:
        names.setdefault(key, fields[column].table)
    if len(set(names.values())) < len(names):  # two tables of one name
        names = {}
        for column, key in looked_up:
            name, number = fields[column].name, 1
            while key not in names:
                text = name if number == 1 else f"{name}_{number}"
                if text not in names.values():
                    names[key] = text
                number += 1
    tables = tuple(names[key] for _, key in looked_up)
    own = tuple(fields[column].table for column, _ in looked_up)
    weights = {
        f"tables/{names[key]}": draft.tables[key].weight[: fields[column].rows]
        for column, key in looked_up
    }
    chosen = {
        "fields": tuple(fields[column].name for column, _ in looked_up),
        "tables": () if tables == own else tables,
    }
    return chosen, weights


def legal_name(text: str) -> str:
    """The text as a name that a spec accepts."""
    found = re.sub(r"[^A-Za-z0-9_\-]", "_", text)
    return found if re.match(r"[A-Za-z_]", found) else f"_{found}"
