"""Types of configuration values: each refuses a wrong value in a sentence that names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from pipeline.config.dates import time_zone
from pipeline.config.where import parse_where
from pipeline.lakehouse.addresses import is_table, parse_table
from pipeline.redaction import hide
from pipeline.storage.address import check_address, is_registered, is_remote


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


@dataclass(frozen=True)
class AutoOr:
    """Validator: "auto" (also said by giving no value), or a whole number, low <= value <= high."""

    low: int
    high: int

    def __call__(self, value: object) -> int | Literal["auto"]:
        value = _whole(value)
        if value is None or value == "auto":
            return "auto"
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be auto or a whole number, got {value!r}")
        if not self.low <= value <= self.high:
            raise ValueError(f"must be auto or from {self.low} to {self.high}, got {value!r}")
        return value


def _model_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", value):
        raise ValueError(f"a name of bundles is of letters, digits and _, got {value!r}")
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


def _bundle(value: str) -> str:
    if is_registered(value) and not re.fullmatch(r"models:/[^/@]+(/[1-9]\d*|@[^/@]+)", value):
        raise ValueError(f"must be models:/NAME@alias or models:/NAME/version, got {value!r}")
    return value if is_registered(value) else _location(value)


def _location(value: str) -> str:
    if not is_remote(value):
        return _local_path(value)
    try:
        return check_address(value)
    except ValueError as error:
        text = str(error)
        if text.startswith("must be a path"):
            text += "; mount another store (or copy from it) and give the mounted path"
        raise ValueError(text) from None


def secret_address(value: str) -> str:
    """An address that no text of this process may hold from now on."""
    hide(value)
    if not re.match(r"^https?://[^/\s]+", value):
        raise ValueError("must be an http or https address (it is a secret and not shown)")
    return value


def _text_or_list(value: object) -> object:
    """A list of locations is as good as one; anything else is refused in one sentence."""
    items: list[object] = value if isinstance(value, list) else [value]
    paths = [item for item in items if isinstance(item, str)]
    if not paths or len(paths) < len(items):
        raise ValueError(f"must be a path or address, or a list of these, got {value!r}")
    for path in paths:
        if is_table(path):
            parse_table(path)
        else:
            _location(path)
    return value


def _table(value: str) -> str:
    if parse_table(value).version is not None:
        raise ValueError(f"must be a table without a snapshot or version, got {value!r}")
    return value


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(duration: str) -> int:
    """The seconds of a duration such as 90s, 10m, 2h or 1d; ValueError."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", duration)
    if not found:
        raise ValueError(f"must be a duration such as 90s, 10m, 2h or 1d, got {duration!r}")
    return int(found[1]) * _SECONDS[found[2]]


def _duration(value: str) -> str:
    seconds_of(value)
    return value


def quiet_seconds(wait_for: str) -> int | None:
    """The seconds of `quiet 10m`, None for `success`; ValueError for anything else."""
    if wait_for == "success":
        return None
    if not wait_for.startswith("quiet "):
        raise ValueError(f"must be success, or quiet and a duration (quiet 10m), got {wait_for!r}")
    return seconds_of(wait_for.removeprefix("quiet ").strip())


def _wait_for(value: str) -> str:
    quiet_seconds(value)
    return value


def _where(value: str) -> str:
    parse_where(value)
    return value


def _zone_name(value: str) -> str:
    return time_zone(value).key


# A path, or an address of an object store.
Location = Annotated[str, AfterValidator(_location)]
# The same, or a model of a registry.
BundleLocation = Annotated[str, AfterValidator(_bundle)]
LocalPath = Annotated[str, AfterValidator(_local_path)]
Table = Annotated[str, AfterValidator(_table)]
Duration = Annotated[str, AfterValidator(_duration)]
WaitFor = Annotated[str, AfterValidator(_wait_for)]
Where = Annotated[str, AfterValidator(_where)]
TimeZone = Annotated[str, AfterValidator(_zone_name)]
Column = Annotated[str, AfterValidator(_column_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Flag = Annotated[bool, Field(strict=True)]
AutoCount = Annotated[int | Literal["auto"], PlainValidator(AutoOr(1, 1024))]
AutoScorers = Annotated[int | Literal["auto"], PlainValidator(AutoOr(1, 65536))]
AutoRows = Annotated[int | Literal["auto"], PlainValidator(AutoOr(1, 10**9))]
AutoBatch = Annotated[int | Literal["auto"], PlainValidator(AutoOr(1, 2**24))]
AutoSeconds = Annotated[int | Literal["auto"], PlainValidator(AutoOr(0, 3600))]
AutoBytes = Annotated[int | Literal["auto"], PlainValidator(AutoOr(10**8, 2**50))]
Paths = Annotated[str | list[str], BeforeValidator(_text_or_list)]
