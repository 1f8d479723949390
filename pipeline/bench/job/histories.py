"""A column of lists beside the fields: histories of ids, and a model that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.features.schema import FIRST_VALUE_ROW, UNSEEN_ROW
from dpiframe_core.model.fields import ListSpec
from dpiframe_core.model.modules import Concat, Embedding, Tensor, Wide
from dpiframe_core.program.tensor_ops import Operand, Reduce
from pipeline.data.quantile_tables import zipf_table
from pipeline.data.synth_values import permute_ranks

HISTORY = "history"
SHORTER_OF = 4  # one list of so many has fewer ids than there are places
ZIPF_EXPONENT = 1.05  # of the ids, as of those of `dpiframe synth`


def history_column(
    rows: int, length: int, table_rows: int, seed: Sequence[int]
) -> pa.LargeListArray:
    """Lists [rows] of int32 ids: three of four have `length`, the others 0 to `length` - 1."""
    generator = np.random.Generator(np.random.SFC64(seed))
    sizes = np.full(rows, length)
    shorter = generator.integers(0, SHORTER_OF, rows) == 0
    sizes[shorter] = generator.integers(0, length, int(shorter.sum()))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = table_rows - FIRST_VALUE_ROW
    words = generator.integers(0, 2**64, offsets[-1], dtype=np.uint64)
    ids = permute_ranks(zipf_table(values, ZIPF_EXPONENT).draw(words), values)
    return pa.LargeListArray.from_arrays(offsets, ids + np.int32(FIRST_VALUE_ROW))


def with_history(spec: ModelSpec, length: int, table_rows: int) -> ModelSpec:
    """A built-in model without dense features, whose x0 has the mean of a list's embedding rows
    [length, D] as one more field.
    """
    lookup, *others = spec.modules
    names = tuple(field.name for field in spec.fields)
    places = tuple(f"{HISTORY}_{place}" for place in range(length))
    dim = spec.fields[0].dim
    fields = [
        FieldSpec(name=name, rows=table_rows, dim=dim, table=HISTORY, oov_row=UNSEEN_ROW)
        for name in places
    ]
    modules = [
        Embedding(name="fields", fields=names),
        Embedding(name=HISTORY, fields=places),
        Tensor(
            name="history_mean",
            inputs=(HISTORY,),
            compute=Reduce("mean", (0,)),
            operands=(Operand.whole(length, dim),),
        ),
        Concat(name=lookup.name, inputs=("fields", "history_mean")),
        *(m.model_copy(update={"fields": names}) if isinstance(m, Wide) else m for m in others),
    ]
    return ModelSpec(
        name=spec.name,
        fields=(*spec.fields, *fields),
        lists=(ListSpec(name=HISTORY, features=places),),
        modules=tuple(modules),
        output=spec.output,
    )
