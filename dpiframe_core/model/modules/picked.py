"""Which fields a module looks up, and in which tables."""

from __future__ import annotations

from collections.abc import Sequence

from dpiframe_core.errors import SpecError
from dpiframe_core.model.fields import FieldSpec


def picked_fields(
    module: str,
    fields: tuple[FieldSpec, ...],
    names: Sequence[str],
    tables: Sequence[str],
    dims: Sequence[int],
) -> list[tuple[int, FieldSpec]]:
    """The fields of these names (default: all), each with its position among the spec's ids, as the
    module looks them up: in `tables`, `dims` wide, where these are given.
    """
    index = {field.name: i for i, field in enumerate(fields)}
    names = names or tuple(index)
    for name in names:
        if name not in index:
            raise SpecError(f"module {module}: there is no field {name!r}")
    found = [fields[index[name]] for name in names]
    for key, given in (("table", tables), ("dim", dims)):
        if given and len(given) != len(names):
            raise SpecError(f"module {module} has {len(names)} fields, but {len(given)} {key}s")
        changes = [{key: value} for value in given] or [{}] * len(names)
        found = [f.model_copy(update=c) for f, c in zip(found, changes, strict=True)]
    shapes: dict[str, tuple[int, int]] = {}
    for field in found:
        shape = shapes.setdefault(field.table, (field.rows, field.dim))
        if shape != (field.rows, field.dim):
            raise SpecError(
                f"module {module}: the fields of table {field.table} differ in rows or width"
            )
    return [(index[name], field) for name, field in zip(names, found, strict=True)]
