"""Operations that pick places by an index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.frontend.building import MIXES, Building, CannotConvertError, of_ids
from dpiframe_core.frontend.operations.embeddings import embedding
from dpiframe_core.frontend.operations.moving import expand, permute, unsqueeze
from dpiframe_core.frontend.operations.table import Table, as_value, axis
from dpiframe_core.frontend.values import (
    BATCH,
    BATCH_SIZE,
    Columns,
    Fixed,
    Samples,
    Value,
    numbers_of,
    size,
)

TABLE = Table()
MOST_SEARCHED = 2**16  # ids, for one that a mask means
FAR = torch.tensor([2.0**31 - 1, 2.0**40])  # ids that no table has

DEPENDS = (
    "places that depend on the data are picked; only fixed ones can be picked so, or one place of "
    "each sample by x[torch.arange(B), place] or torch.gather"
)


@TABLE.of("index_select")
def index_select(build: Building, x: Any, dim: int, index: Any) -> Value:
    """Fixed places of a dimension."""
    x, index = as_value(x), fixed(index)
    if axis(x, dim) == 0 and (mask := mask_of(index, x)) is not None:
        return rows_of_mask(build, x, mask)
    if isinstance(index, Value) and isinstance(index.source, Samples) and axis(x, dim) == 0:
        return _own_row(build, x, index)
    if isinstance(index, Value):
        if isinstance(x.source, Fixed) and axis(x, dim) == 0:
            return _row(build, x, [index])
        raise CannotConvertError(DEPENDS)
    return _taken(build, x, axis(x, dim), index)


def fixed(index: Any) -> Any:
    """An index that is the same for every sample as a tensor, where it has no batch."""
    if not isinstance(index, Value) or not isinstance(index.source, Fixed):
        return index
    if any(BATCH in dim for dim in index.dims):
        return index
    return numbers_of(index).reshape(index.sizes)


def _taken(build: Building, x: Value, dim: int, index: Tensor) -> Value:
    length = x.sizes[dim]
    return build.taken(x, dim, [int(i) % length for i in index.reshape(-1)])


@dataclass(frozen=True)
class Indices:
    """An index of some dimensions: `parts` by dimension, truths turned into places."""

    parts: dict[int, Any]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Indices:
        """The index as PyTorch gives it: None for a whole dimension."""
        parts: dict[int, Any] = {}
        dim = 0
        for part in map(fixed, given):
            if isinstance(part, Tensor) and part.dtype == torch.bool:
                for places in part.nonzero(as_tuple=True):
                    parts[dim] = places
                    dim += 1
                continue
            if part is not None:
                parts[dim] = part
            dim += 1
        return cls(parts)

    @property
    def is_fixed(self) -> bool:
        """Whether every part is the same for every sample."""
        return all(isinstance(part, Tensor) for part in self.parts.values())

    @property
    def dims(self) -> list[int]:
        """The dimensions that are indexed."""
        return list(self.parts)

    def flat(self, sizes: Sequence[int]) -> Tensor:
        """The places in the indexed dimensions taken as one."""
        tensors = torch.broadcast_tensors(*self.parts.values())
        found = torch.zeros_like(tensors[0])
        for part, dim in zip(tensors, self.dims, strict=True):
            found = found * sizes[dim] + part % sizes[dim]
        return found


@TABLE.of("index", "_unsafe_index")
def index(build: Building, x: Any, indices: Sequence[Any]) -> Value:
    """x[indices]: fixed places, rows of a table, or one place of each sample."""
    x, chosen = as_value(x), Indices.of(indices)
    if not chosen.is_fixed:
        return _by_data(build, x, chosen)
    dims = chosen.dims
    if dims != list(range(dims[0], dims[0] + len(dims))):  # the picked places come first then
        rest = [d for d in range(len(x.dims)) if d not in dims]
        x = permute(build, x, [*dims, *rest])
        chosen = Indices(dict(enumerate(chosen.parts.values())))
        dims = chosen.dims
    places = chosen.flat(x.sizes)
    count = math.prod(x.sizes[d] for d in dims)
    merged = build.view(x, [*x.sizes[: dims[0]], count, *x.sizes[dims[-1] + 1 :]])
    found = _taken(build, merged, dims[0], places)
    sizes = [*found.sizes[: dims[0]], *places.shape, *found.sizes[dims[0] + 1 :]]
    return build.view(found, sizes)


def _by_data(build: Building, x: Value, chosen: Indices) -> Value:
    dims = chosen.dims
    if dims == [0] and (mask := mask_of(chosen.parts[0], x)) is not None:
        return rows_of_mask(build, x, mask)
    if isinstance(x.source, Fixed) and dims == list(range(len(dims))):
        return _row(build, x, [as_value(part) for part in chosen.parts.values()])
    first = chosen.parts.get(0)
    if isinstance(first, Value) and isinstance(first.source, Samples) and not first.source.only:
        if dims == [0, 1] and first.source.added is None:
            return _own_place(build, x, as_value(chosen.parts[1]))
        if dims == [0]:
            return _own_row(build, x, first)
    raise CannotConvertError(DEPENDS)


def mask_of(index: Any, x: Value) -> Value | None:
    """The truths [B, ..] that say which of the first dimensions' places of x an index means: these
    themselves, or the samples that they pick.
    """
    if not isinstance(index, Value) or not index.dims or index.dims[0] != (BATCH,):
        return None
    if isinstance(index.source, Samples):
        return index.source.only if len(index.dims) == 1 and x.dims[0] == (BATCH,) else None
    is_mask = index.is_truth and index.sizes == x.sizes[: len(index.dims)]
    return index if is_mask else None


def rows_of_mask(build: Building, x: Value, mask: Value) -> Value:
    """x[mask], of all places: [B * .., rest]. What is computed of a row is written to the places of
    the mask again, or refused, so those outside it are not seen.
    """
    count = len(mask.dims)
    x = _with_ids_inside(build, x, mask)
    return build.view(x, [math.prod(x.sizes[:count]), *x.sizes[count:]])


def _with_ids_inside(build: Building, x: Value, mask: Value) -> Value:
    """x, where ids of which the mask is not true are the first one of which it is: so no table is
    asked for them, nor limits them.
    """
    if not isinstance(x.source, Columns) or not isinstance(mask.source, Columns) or x.is_truth:
        return x
    ids = {scalar.expression for scalar in x.source.scalars}
    masks = {scalar.expression for scalar in mask.source.scalars}
    if len(ids) > 1 or len(masks) > 1:
        return x
    with suppress(CannotConvertError):  # above 2^53
        is_inside = masks.pop()
        inside = of_ids(is_inside, MOST_SEARCHED).expand(MOST_SEARCHED) != 0
        given = of_ids(ids.pop(), MOST_SEARCHED).expand(MOST_SEARCHED)
        # A mask of pads alone, which are rows of tables, keeps none out.
        keeps = (of_ids(is_inside, FAR) == 0).any() or (given[~inside] < 0).any()
        if keeps and inside.any():
            return _where_inside(build, x, mask, float(given[inside][0]))
    return x


def _where_inside(build: Building, x: Value, mask: Value, else_id: float) -> Value:
    truths = mask
    for _ in x.dims[len(mask.dims) :]:
        truths = unsqueeze(build, truths, -1)
    return build.as_columns(("where", "x1", "x0", else_id), [x, truths]) or x


def _own_row(build: Building, x: Value, rows: Value) -> Value:
    """x[i * N + place[i]] of each sample i: x [B * N, ...], of which each sample has N rows."""
    assert isinstance(rows.source, Samples)
    step, added = rows.source.step, rows.source.added
    if x.sizes[0] != BATCH_SIZE * step or added is None or not added.sizes:
        raise CannotConvertError(DEPENDS)
    shown = [n for n in rows.sizes if n != 1]
    if shown not in ([n for n in added.sizes if n != 1], [math.prod(added.sizes)]):
        raise CannotConvertError(DEPENDS)  # only some of them, or in another order
    of_samples = build.view(x, [BATCH_SIZE, step, *x.sizes[1:]])
    places = build.view(added, [BATCH_SIZE, math.prod(added.sizes) // BATCH_SIZE])
    found = _own_place(build, of_samples, places)
    return build.view(found, [*rows.sizes, *x.sizes[1:]])


def _row(build: Building, x: Value, parts: list[Value]) -> Value:
    """Rows of a constant that ids name, by one index or several."""
    sizes, rest = x.sizes[: len(parts)], x.sizes[len(parts) :]
    ids = parts[0]
    for part, length in zip(parts[1:], sizes[1:], strict=True):
        flat = build.mapped(("add", ("mul", "x0", float(length)), "x1"), [ids, part])
        ids = replace(flat, is_integer=True)
    table = numbers_of(x).reshape(math.prod(sizes), math.prod(rest))
    found = embedding(build, table, ids)
    return build.view(found, [*found.sizes[:-1], *rest])


def _own_place(build: Building, x: Value, place: Value) -> Value:
    """x[i, place[i]] of each sample i: x [B, N, ...] and places [B] or [B, ...]."""
    if x.dims[0] != (BATCH,):
        raise CannotConvertError(MIXES)
    lead = place.sizes if place.sizes and place.dims[0] == (BATCH,) else (BATCH_SIZE, *place.sizes)
    place = build.mapped(("where", ("lt", "x0", 0.0), ("add", "x0", float(x.sizes[1])), "x0"),
                         [expand(build, place, lead)])  # fmt: skip
    picked = build.view(place, [BATCH_SIZE, math.prod(lead[1:])])
    for _ in x.sizes[2:]:
        picked = unsqueeze(build, picked, -1)
    picked = expand(build, picked, [*picked.sizes[:2], *x.sizes[2:]])
    found = build.taken_along(x, 1, picked)
    return build.view(found, [*lead, *x.sizes[2:]])


@TABLE.of("masked_select")
def masked_select(build: Building, x: Value, mask: Any) -> Value:
    """The places of a mask that is the same for every sample, all samples in one row."""
    mask = as_value(mask)
    if not isinstance(mask.source, Fixed):
        raise CannotConvertError(
            "a mask that depends on the data picks a number of places that does too; multiply by "
            "the mask, or use torch.where"
        )
    x, mask = build.aligned([x, mask])
    first, *rest = x.dims
    if first != (BATCH,) or any(BATCH in d for d in rest):
        raise CannotConvertError(MIXES)
    flat = build.view(x, [BATCH_SIZE, math.prod(size(d) for d in rest)])
    picked = torch.nonzero(numbers_of(mask)).reshape(-1)
    found = build.taken(flat, 1, [int(i) for i in picked])
    return replace(found, dims=((*found.dims[0], *found.dims[1]),))


@TABLE.of("gather")
def gather(build: Building, x: Any, dim: int, index: Any, **options: Any) -> Value:
    """x[..., index[..., i], ...] along a dimension."""
    x, index = as_value(x), as_value(index)
    dim = axis(x, dim)
    if isinstance(x.source, Fixed) and dim == 0 and math.prod(x.sizes[1:]) == 1:
        weight = numbers_of(x).reshape(-1, 1)
        return build.view(embedding(build, weight, index), index.sizes)
    for i, (have, want) in enumerate(zip(x.sizes, index.sizes, strict=True)):
        if i != dim and want < have:
            x = build.sliced(x, i, 0, want)
    return build.taken_along(x, dim, index)


@TABLE.of("nonzero")
def nonzero(build: Building, x: Any) -> Value:
    """The samples that a mask [B] picks [.., 1], by which rows are picked and written."""
    x = as_value(x)
    if x.dims != ((BATCH,),):
        return data_dependent(build, x)
    mask = x if x.is_truth else build.mapped(("ne", "x0", 0.0), [x])
    return Value(Samples(1, only=mask), ((BATCH,), ()), is_integer=True)


@TABLE.of("nonzero_static", "_unique2", "unique_consecutive", "unique_dim",
          "_local_scalar_dense")  # fmt: skip
def data_dependent(build: Building, x: Any, *rest: Any, **options: Any) -> Value:
    """Refused: its size, or a number that Python sees, depends on the data."""
    raise CannotConvertError(
        "its size or a number in the program depends on the data; keep every size fixed: pad, and "
        "multiply by a mask or use torch.where"
    )
