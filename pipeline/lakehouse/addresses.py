"""Addresses of tables: `iceberg://CATALOG/NAMESPACE.TABLE`, `delta:PATH`, each with `@VERSION`."""

from __future__ import annotations

from pipeline.lakehouse.delta import DeltaTable
from pipeline.lakehouse.iceberg import IcebergTable
from pipeline.lakehouse.table import Table

_KINDS: dict[str, type[IcebergTable] | type[DeltaTable]] = {
    "iceberg://": IcebergTable,
    "delta:": DeltaTable,
}


def is_table(address: str) -> bool:
    """Whether an address names a table."""
    return address.startswith(tuple(_KINDS))


def parse_table(address: str) -> Table:
    """The table of an address; ValueError says how one looks."""
    for lead, kind in _KINDS.items():
        if address.startswith(lead):
            return kind.parse(address)
    raise ValueError(
        "must be a table, iceberg://catalog/namespace.table or delta: and the path or address of "
        f"its folder, got {address!r}"
    )
