"""Feature schemas: how the raw columns of a data set become ids and dense features.

Row numbering of every categorical field: row 0 is for a missing value (null or empty string), row 1
for a value that the encoding does not know, and the known values have the rows from 2 on. Row 1
is used by vocabularies only: the other encodings know every value, and keep the row so that all
fields are numbered alike. A vocabulary of a model that was trained elsewhere may number its rows
otherwise (`Numbering`).

A column of lists feeds several fields or dense features, one an element (`Elements`).

A schema is plain data and goes through JSON (`model_dump_json`, `model_validate_json`) unchanged.
"""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Annotated, Literal, Self

import pyarrow as pa
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    model_validator,
)

from dpiframe_core.features.errors import SchemaError
from dpiframe_core.features.lists import Shape, is_list
from dpiframe_core.features.numbers import is_number

MISSING_ROW = 0
UNSEEN_ROW = 1
FIRST_VALUE_ROW = 2
# log_bucket: the integers up to 2 have a bucket each, and those from -3 down share the first.
NUM_SMALL_BUCKETS = 6

ValueKind = Literal["string", "integer"]
# The names that a model spec accepts for its fields and dense features.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$", max_length=128)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HashEncoding(_Frozen):
    """id = 2 + XXH64(value; seed) mod modulus, over utf-8 bytes or 8 little-endian bytes."""

    kind: Literal["hash"] = "hash"
    modulus: int = Field(ge=1, le=2**31 - 3)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @property
    def rows(self) -> int:
        """Rows of the field's table."""
        return FIRST_VALUE_ROW + self.modulus


class Numbering(_Frozen):
    """The rows of a table that are not numbered in the usual way.

    The row of each value stands beside it in the vocabulary; `rows` of the table in all. An empty
    string is missing only where the vocabulary does not hold it.
    """

    rows: int = Field(ge=1, le=2**31 - 1)
    missing_row: int
    unseen_row: int

    @model_validator(mode="after")
    def _inside(self) -> Self:
        for name, row in (("missing_row", self.missing_row), ("unseen_row", self.unseen_row)):
            if not 0 <= row < self.rows:
                raise ValueError(f"{name} must be in 0..{self.rows - 1}, got {row}")
        return self


class VocabularyEncoding(_Frozen):
    """id = 2 + position in the vocabulary of values that were seen at least `min_count` times.

    `size` is the length of the vocabulary; None until `fit_schema` has counted the values. With a
    `numbering` the vocabulary gives each value's id.
    """

    kind: Literal["vocabulary"] = "vocabulary"
    min_count: int = Field(default=1, ge=1)
    size: int | None = Field(default=None, ge=0, le=2**31 - 3)
    numbering: Numbering | None = None

    @property
    def rows(self) -> int:
        """Rows of the field's table; SchemaError before fitting."""
        if self.size is None:
            raise SchemaError("the vocabulary is not fitted yet: run fit_schema first")
        return self.numbering.rows if self.numbering else FIRST_VALUE_ROW + self.size

    @model_validator(mode="after")
    def _numbered_values_are_given(self) -> Self:
        if self.numbering and self.size is None:
            raise ValueError("a vocabulary with a numbering is given, not fitted: it needs a size")
        return self


class LogBucketEncoding(_Frozen):
    """Integers in logarithmic buckets; negative ones have buckets too.

    bucket(x) = 0 for x <= -3, x + 3 for -2 <= x <= 2 (so 0 has bucket 3, and 2 bucket 5), and
    5 + floor(ln(x)^2) for x >= 3; buckets above 5 + max_bucket are joined to that last one.
    id = 2 + bucket(x). The squared logarithm is that of the Criteo 2014 winners.
    """

    kind: Literal["log_bucket"] = "log_bucket"
    max_bucket: int = Field(default=300, ge=1, le=2000)

    @property
    def rows(self) -> int:
        """Rows of the field's table."""
        return FIRST_VALUE_ROW + NUM_SMALL_BUCKETS + self.max_bucket


class ModuloEncoding(_Frozen):
    """id = 2 + x mod modulus, never negative. Avazu's YYMMDDHH modulo 100 is the hour of day."""

    kind: Literal["modulo"] = "modulo"
    modulus: int = Field(ge=1, le=2**31 - 3)

    @property
    def rows(self) -> int:
        """Rows of the field's table."""
        return FIRST_VALUE_ROW + self.modulus


Encoding = Annotated[
    HashEncoding | VocabularyEncoding | LogBucketEncoding | ModuloEncoding,
    Field(discriminator="kind"),
]


class Elements(_Frozen):
    """What the elements of a column of lists are: fields, or dense features, named `features`.

    `pad` (an id, or a dense feature's value), `side` and `keep` are those of the model's
    `ListSpec`. With `split_at` the column may hold texts instead, which are split at it.
    """

    features: tuple[Name, ...] = Field(min_length=1, max_length=65536)
    pad: int = 0
    side: Literal["behind", "before"] = "behind"
    keep: Literal["first", "last"] = "first"
    split_at: str | None = Field(default=None, min_length=1)

    @property
    def shape(self) -> Shape:
        """How lists are padded."""
        return Shape(len(self.features), self.side, self.keep)


class CategoricalFeature(_Frozen):
    """One id field, encoded from one raw column; with `elements`, one field an element of the
    column's lists, all of one table and of one vocabulary, which is the feature's.
    """

    name: Name
    column: str = Field(min_length=1)
    values: ValueKind = "string"
    encoding: Encoding
    elements: Elements | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its fields."""
        return self.elements.features if self.elements else (self.name,)

    @property
    def missing_row(self) -> int:
        """The id of a missing value."""
        numbering = self._numbering
        return numbering.missing_row if numbering else MISSING_ROW

    @property
    def unseen_row(self) -> int:
        """The id of a value that the encoding does not know."""
        numbering = self._numbering
        return numbering.unseen_row if numbering else UNSEEN_ROW

    @property
    def _numbering(self) -> Numbering | None:
        return self.encoding.numbering if isinstance(self.encoding, VocabularyEncoding) else None

    @property
    def rows(self) -> int:
        """Rows of the field's table, with those for missing and unseen values."""
        try:
            return self.encoding.rows
        except SchemaError as error:
            raise SchemaError(f"field {self.name}: {error}") from None

    @model_validator(mode="after")
    def _numbers_need_integers(self) -> Self:
        if self.encoding.kind in ("log_bucket", "modulo") and self.values != "integer":
            raise ValueError(f"field {self.name}: {self.encoding.kind} needs values: integer")
        if self.elements and self.elements.split_at and self.values != "string":
            raise ValueError(f"field {self.name}: split_at needs values: string")
        return self


class DenseFeature(_Frozen):
    """One dense feature: (t(x) - mean) / std with t(x) = x or sign(x) ln(1 + |x|).

    A missing value (null or NaN) becomes `fill`, which is counted after standardising: 0 is the
    mean. With `elements`, one feature an element of the column's lists, all standardised alike.
    """

    name: Name
    column: str = Field(min_length=1)
    transform: Literal["none", "log1p"] = "log1p"
    mean: FiniteFloat = 0.0
    std: FiniteFloat = Field(default=1.0, gt=0)
    fill: FiniteFloat = 0.0
    elements: Elements | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its dense features."""
        return self.elements.features if self.elements else (self.name,)

    @model_validator(mode="after")
    def _texts_hold_no_numbers(self) -> Self:
        if self.elements and self.elements.split_at:
            raise ValueError(f"dense feature {self.name}: split_at is for strings")
        return self


class FeatureSchema(_Frozen):
    """The raw columns of a data set, and how each becomes a field or a dense feature.

    The order of `fields` and `dense` is the order of the model spec.
    """

    dataset: str = Field(min_length=1)
    key_columns: tuple[str, ...] = ()
    label_column: str | None = None
    fields: tuple[CategoricalFeature, ...] = ()
    dense: tuple[DenseFeature, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = Counter(name for feature in self.features for name in feature.names)
        names += Counter(f.name for f in self.features if f.elements and f.name not in f.names)
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            raise ValueError(f"feature names must differ, repeated: {', '.join(repeated)}")
        if not names:
            raise ValueError("a schema needs at least one field or dense feature")
        return self

    @property
    def features(self) -> tuple[CategoricalFeature | DenseFeature, ...]:
        """All features, dense ones first."""
        return (*self.dense, *self.fields)

    @property
    def field_features(self) -> tuple[tuple[str, CategoricalFeature], ...]:
        """Each field of the model by name, and the feature that it belongs to."""
        return tuple((name, feature) for feature in self.fields for name in feature.names)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """The dense features of the model."""
        return tuple(name for feature in self.dense for name in feature.names)

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The raw columns that encoding reads, each once, in order of first use."""
        return tuple(dict.fromkeys(f.column for f in self.features))

    @property
    def is_fitted(self) -> bool:
        """True when no vocabulary waits for `fit_schema`."""
        encodings = (f.encoding for f in self.fields)
        return not any(isinstance(e, VocabularyEncoding) and e.size is None for e in encodings)

    def check(self, arrow_schema: pa.Schema) -> list[str]:
        """What stops columns of these types from being encoded; empty when nothing does."""
        problems = []
        for feature in self.features:
            found = arrow_schema.get_all_field_indices(feature.column)
            if len(found) != 1:
                problems.append(_absent(feature.column, len(found), arrow_schema.names))
            elif not accepts(feature, arrow_schema.field(found[0]).type):
                kind = arrow_schema.field(found[0]).type
                problems.append(
                    f"column {feature.column}: type is {kind}, expected {expected_type(feature)}"
                )
        return list(dict.fromkeys(problems))


_TEXTS = ("string", "large_string", "string_view")
_BYTES = ("binary", "large_binary", "binary_view")


def encoded_type(
    feature: CategoricalFeature | DenseFeature, arrow_type: pa.DataType
) -> pa.DataType | None:
    """The type of what is encoded of a column: its own, or that of its lists' elements. None where
    the feature needs lists, and these are none.
    """
    if feature.elements is None or pa.types.is_null(arrow_type):
        return arrow_type
    if is_list(arrow_type):
        return arrow_type.value_type
    kind = value_type(arrow_type)
    return kind if feature.elements.split_at and _may_be_text(kind) else None


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values: that of a dictionary's values, else the type itself."""
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def accepts(feature: CategoricalFeature | DenseFeature, arrow_type: pa.DataType) -> bool:
    """True when a column of this Arrow type can be encoded as this feature.

    An all-null column (type null) is accepted as missing values of any type.
    """
    encoded = encoded_type(feature, arrow_type)
    if encoded is None:
        return False
    kind = value_type(encoded)
    if pa.types.is_null(kind):
        return True
    if isinstance(feature, DenseFeature) or feature.values == "integer":
        return is_number(kind)
    return _may_be_text(kind)


def is_text(kind: pa.DataType) -> bool:
    """True for text, whatever the form of its offsets."""
    return str(kind) in _TEXTS


def _may_be_text(kind: pa.DataType) -> bool:
    """Text, or bytes, as some writers store text without saying that it is any."""
    return is_text(kind) or str(kind) in _BYTES


def expected_type(feature: CategoricalFeature | DenseFeature) -> str:
    """The accepted types, in words."""
    if feature.elements:
        element = expected_type(feature.model_copy(update={"elements": None}))
        split = feature.elements.split_at
        return f"a list of {element}" + (f", or string to split at {split!r}" if split else "")
    if isinstance(feature, DenseFeature) or feature.encoding.kind == "log_bucket":
        return "an integer, floating-point, decimal or boolean type"
    if feature.values == "integer":
        return "whole numbers, of an integer, floating-point, decimal or boolean type"
    return "string or binary, or a dictionary of these"


def nearest(column: str, names: list[str]) -> list[str]:
    """The name most like a column's, if any is: first one that has other cases, as of Spark."""
    same = [name for name in names if name.lower() == column.lower()]
    return same[:1] or difflib.get_close_matches(column, names, n=1)


def _absent(column: str, times: int, names: list[str]) -> str:
    if times:
        return f"column {column}: occurs {times} times"
    near = nearest(column, names)
    return f"column {column}: missing" + (f" (nearest is {near[0]})" if near else "")
