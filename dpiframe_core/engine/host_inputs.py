"""What the engine takes from host memory: checks of ids and dense features.

Tensors are told from other arrays without importing torch, which takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpiframe_core import _core
from dpiframe_core.model.spec import ModelSpec

Ids = Any  # [F, B] array of int32/int64 (numpy, torch, DLPack), or F columns [B]
FieldIds = tuple[int, int, int, int]  # rows, period, least and last id
Columns = np.ndarray | list[np.ndarray]  # a matrix [F, B] of columns [B], or a list of them

CUDA = 2  # the device type of DLPack

ID_TYPES = frozenset((np.dtype(np.int32), np.dtype(np.int64)))


def on_device(value: Any) -> bool:
    """Whether the array is on a CUDA device."""
    is_cuda = getattr(value, "is_cuda", None)  # of tensors; quicker than to ask for the type
    if is_cuda is not None:
        return bool(is_cuda)
    if value is None or isinstance(value, (np.ndarray, list, tuple)):
        return False
    if hasattr(value, "__dlpack_device__"):
        return bool(value.__dlpack_device__()[0] == CUDA)
    return hasattr(value, "__cuda_array_interface__")


def checked_inputs(spec: ModelSpec, ids: Ids, dense: Any) -> tuple[Columns, Columns, int]:
    """Ids [F, B], dense [N, B] and B, without a copy; ValueError says what does not fit."""
    id_columns = _columns(ids)
    batch = _check_ids(spec, id_columns)
    dense_columns = [] if dense is None else _columns(dense)
    batch = _check_dense(spec, dense_columns, batch)
    return id_columns, dense_columns if spec.dense else [], batch or 0


def in_tables(columns: Columns, field_ids: Sequence[FieldIds]) -> Columns:
    """Ids [F, B], or the rows that they stand for where some repeat; `field_ids` of `ModelSpec`."""
    return _core.rows_of_ids(columns, field_ids) if len(field_ids) else columns


def cut(columns: Columns, samples: slice) -> Columns:
    """Some samples of each column."""
    return [c[samples] for c in columns] if isinstance(columns, list) else columns[:, samples]


def _check_ids(spec: ModelSpec, columns: Columns) -> int | None:
    """B, None where the model has no fields."""
    if len(columns) != len(spec.fields):
        raise ValueError(f"ids must have {len(spec.fields)} rows, one a field, got {len(columns)}")
    batch = None
    for field, column in zip(spec.fields, _distinct(columns), strict=False):
        batch = column.size if batch is None else batch
        if column.shape != (batch,):
            found = list(column.shape)
            raise ValueError(f"ids of field {field.name} must have shape [{batch}], got {found}")
        if column.dtype not in ID_TYPES:
            raise ValueError(
                f"ids of field {field.name} must be int32 or int64, got {column.dtype}"
            )
    return batch


def _check_dense(spec: ModelSpec, columns: Columns, batch: int | None) -> int | None:
    wanted, distinct = len(spec.dense), _distinct(columns)
    if wanted and not len(columns):
        raise ValueError(f"the model has {wanted} dense features, got none")
    if not wanted and all(column.size == 0 for column in distinct):
        return batch
    if batch is None:
        batch = distinct[0].size
    for column in distinct:
        if len(columns) != wanted or column.shape != (batch,):
            found = [len(columns), *column.shape]
            raise ValueError(f"dense must have shape [{wanted}, {batch}], got {found}")
        if column.dtype != np.float32:
            raise ValueError(f"dense must be float32, got {column.dtype}")
    return batch


def _distinct(columns: Columns) -> list[np.ndarray]:
    """The columns that may differ in length and type: a matrix has one length and type for all."""
    return columns if isinstance(columns, list) else list(columns[:1])


def _columns(value: Any) -> Columns:
    return [_host_array(c) for c in value] if isinstance(value, (list, tuple)) else _matrix(value)


def _matrix(value: Any) -> np.ndarray:
    array = _host_array(value)
    if array.ndim != 2:
        raise ValueError(f"expected 2 dimensions, one row a feature, got shape {array.shape}")
    return array


def _host_array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())  # without torch nothing is a tensor
    try:
        if isinstance(value, tensor):  # a third of what DLPack takes
            array: np.ndarray = value.numpy()
            return array
        return np.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        kind = type(value).__name__
        raise ValueError(f"expected arrays in CPU memory, got {kind}: {error}") from None
