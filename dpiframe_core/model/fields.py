"""The leaf of the spec: what all its parts are made of, and the fields that modules look up."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from dpiframe_core.errors import SpecError
from dpiframe_core.features.schema import FeatureSchema

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_\-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=128)]


class SpecPart(BaseModel):
    """Plain data of a spec: frozen, no unknown keys. SpecError says what does not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(problems(error)) from None


def problems(error: ValidationError) -> str:
    """What pydantic found, in one line: `place: what is wrong; place: ...`."""
    lines = []
    for found in error.errors():
        place = ".".join(map(str, found["loc"]))
        text = found["msg"].removeprefix("Value error, ")
        lines.append(f"{place}: {text}" if place else text)
    return "; ".join(lines)


class FieldSpec(SpecPart):
    """One one-hot feature: ids 0 .. rows-1 into a table of `rows` x `dim` weights.

    `table` names the table (default: the field's own name); fields of one table name share it.
    `oov_row` is the embedding row that scores an id outside the table under the policy `oov`.
    With a `period` (the hashing trick) an id from `rows` on stands for the one of the last `period`
    rows whose distance is a multiple of it; where `period` is `rows`, that is id mod rows, of
    negative ids too. `last`: the largest id that has one, and its negative the least.
    """

    name: Name
    rows: int = Field(ge=1, lt=2**40)
    dim: int = Field(ge=1, le=4096)
    table: Name = ""
    oov_row: int | None = None
    period: int | None = Field(default=None, ge=1)
    last: int | None = Field(default=None, ge=0, lt=2**63)

    @model_serializer(mode="wrap")
    def _without_defaults(self, given: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys that older releases do not know, where they say nothing."""
        found: dict[str, Any] = given(self)
        return {k: v for k, v in found.items() if v is not None or k not in ("period", "last")}

    @property
    def takes_any(self) -> bool:
        """Whether every whole number is an id."""
        return self.period == self.rows and self.last is None

    @property
    def end(self) -> int:
        """One more than the largest id."""
        if self.period is None:
            return self.rows
        return 2**63 if self.last is None else self.last + 1

    @property
    def least(self) -> int:
        """The least id."""
        if self.period != self.rows:
            return 0
        return -(2**63) if self.last is None else -self.last

    @property
    def id_range(self) -> tuple[int, int, int, int]:
        """Rows, period (0: no id repeats), least and last id."""
        return self.rows, self.period or 0, self.least, self.end - 1

    def in_table(self, ids: Any) -> Any:
        """Of ids in an array or tensor of int64 those that they stand for; -1 for what is no id."""
        if self.period is None:
            return ids
        if self.period == self.rows:
            found = ids % self.rows
            is_id = None if self.last is None else (ids <= self.last) & (ids >= -self.last)
        else:
            first = self.rows - self.period
            is_inside = ids < self.rows
            found = ids * is_inside + (first + (ids - first) % self.period) * ~is_inside
            is_id = None if self.last is None else ids <= self.last
        return found if is_id is None else found * is_id - 1 * ~is_id

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.period is not None and self.period > self.rows:
            raise SpecError(
                f"field {self.name}: period must be at most its rows ({self.rows}), got "
                f"{self.period}"
            )
        if not self.table:
            object.__setattr__(self, "table", self.name)
        if self.oov_row is not None and not 0 <= self.oov_row < self.rows:
            raise SpecError(
                f"field {self.name}: oov_row must be in 0..{self.rows - 1}, got {self.oov_row}"
            )
        return self


class ListSpec(SpecPart):
    """A column of lists that feeds several features: element i of a row's list is the id of field
    `features[i]`, or the value of that dense feature.

    A row's list that is shorter has `pad` for the missing elements, `side` says where: behind
    its own or before them; of a longer one the `keep` elements count. A null is an empty list.
    """

    name: Name
    features: tuple[Name, ...] = Field(min_length=1, max_length=65536)
    pad: int = 0
    side: Literal["behind", "before"] = "behind"
    keep: Literal["first", "last"] = "first"

    @classmethod
    def of_schema(cls, schema: FeatureSchema) -> tuple[ListSpec, ...]:
        """The lists that a feature schema makes."""
        return tuple(
            cls(name=feature.name, **feature.elements.model_dump(exclude={"split_at"}))
            for feature in schema.features
            if feature.elements
        )
