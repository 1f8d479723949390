"""Types of configuration values: each refuses a wrong value in a sentence that names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field


@dataclass(frozen=True)
class Between:
    """Validator: low <= value <= high, with both in the message."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        if not self.low <= value <= self.high:
            raise ValueError(f"must be from {self.low} to {self.high}, got {value!r}")
        return value


def _whole(value: object) -> object:
    """Take 1e6 for a whole number, but neither True nor 1.5."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _column_name(value: str) -> str:
    if not value:
        raise ValueError("a column name must not be empty")
    return value


def _local_path(value: str) -> str:
    if re.match(r"^[A-Za-z][A-Za-z0-9+.-]*://", value):
        raise ValueError(
            f"must be a path in a local or shared file system, got {value!r}; "
            "mount that store (or copy from it) and give the mounted path"
        )
    if not value.strip():
        raise ValueError("must not be empty")
    if "\0" in value:
        raise ValueError(f"must not hold a null character, got {value!r}")
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"names a home folder that nobody has, got {value!r}") from None
    return value


def _text_or_list(value: object) -> object:
    """A list of paths is as good as one; anything else is refused in one sentence."""
    items: list[object] = value if isinstance(value, list) else [value]
    paths = [item for item in items if isinstance(item, str)]
    if not paths or len(paths) < len(items):
        raise ValueError(f"must be a path or a list of paths, got {value!r}")
    for path in paths:
        _local_path(path)
    return value


LocalPath = Annotated[str, AfterValidator(_local_path)]
Column = Annotated[str, AfterValidator(_column_name)]
Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[Whole, AfterValidator(Between(1, 1024))]
Paths = Annotated[str | list[str], BeforeValidator(_text_or_list)]
