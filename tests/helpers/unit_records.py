"""A record of a unit that several tests share."""

from __future__ import annotations

from pipeline.publishing.records import UnitRecord, part_name

UNIT = "u000019-0123abcd"


def record(unit: str = UNIT, size: int = 3, **keys: object) -> UnitRecord:
    """The record of a unit whose part has `size` bytes."""
    facts = {
        "unit": unit,
        "index": 19,
        "path": "x.parquet",
        "first_row_group": 0,
        "stop_row_group": 1,
        "rows": 111,
        "scored": 111,
        "rejected": 0,
        "part": part_name(unit),
        "bytes": size,
        "sha256": "0",
    }
    return UnitRecord.model_validate(facts | keys)
