"""What a row costs: its bytes once read, and the model's work and memory for it."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from dpiframe_core.model.spec import ModelSpec
from pipeline.planning.columns import Columns, element_type
from pipeline.planning.inputs import InputFile

TEXT_BYTES = 32  # a guess for a published text
FLOAT_BYTES = 4


class ModelCost(BaseModel):
    """The size of a model: `table_values` numbers in its tables; for each row `operations` (a
    multiply-add counts two) and `values` between its steps, if no buffer is reused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: int
    dense: int
    table_values: int
    operations: int
    values: int


def model_cost(spec: ModelSpec) -> ModelCost:
    """Count from the shapes of a model's weights."""
    tables = operations = values = 0
    for name, parameter in spec.parameters().items():
        shape = parameter.shape
        if "/tables/" in name:
            tables += shape[0] * shape[1]
            values += shape[1]
        elif len(shape) == 2:
            operations, values = operations + 2 * shape[0] * shape[1], values + shape[0]
    return ModelCost(
        fields=len(spec.fields),
        dense=len(spec.dense),
        table_values=tables,
        operations=operations,
        values=values,
    )


def row_bytes(files: Iterable[InputFile], columns: Columns, ids: int, dense: int) -> int:
    """About the bytes of a row once read: so many ids, float32 features, published columns.

    If files differ, their widest types count. A function of the input alone.
    """
    schemas: dict[int, pa.Schema] = {id(f.arrow_schema): f.arrow_schema for f in files if f.rows}
    copied = columns.published
    return max(
        (_row_bytes(schema, copied, columns, ids, dense) for schema in schemas.values()), default=1
    )


def _row_bytes(
    schema: pa.Schema, copied: tuple[str, ...], columns: Columns, ids: int, dense: int
) -> int:
    size = FLOAT_BYTES * dense
    size += sum(_copied_bytes(schema.field(name).type) for name in copied)
    if columns.form == "raw":  # encoded to int32
        return size + 4 * ids
    kinds = (element_type(schema.field(name).type) for name in columns.id_columns)
    return size + sum(map(_id_bytes, kinds))


def _id_bytes(kind: pa.DataType) -> int:
    if pa.types.is_null(kind):  # of lists that have no element
        return 4
    fits_int32 = kind.bit_width < 32 or pa.types.is_int32(kind)
    return 4 if fits_int32 else 8


def _copied_bytes(kind: pa.DataType) -> int:
    if pa.types.is_dictionary(kind):
        return _copied_bytes(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # no fixed width
        return TEXT_BYTES
