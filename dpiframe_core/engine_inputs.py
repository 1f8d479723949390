"""What the engine takes: checks of ids and dense features, in host memory and on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpiframe_core import _core
from dpiframe_core.spec import ModelSpec

Ids = Any  # [F, B] array of int32/int64 (numpy, torch, DLPack), or F columns [B]

CUDA = 2  # the device type of DLPack
TYPES = {torch.int32: "<i4", torch.int64: "<i8", torch.float32: "<f4"}


def checked_inputs(spec: ModelSpec, ids: Ids, dense: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """Columns [B] of each field and dense [N, B] float32; ValueError says what does not fit."""
    columns, batch = _id_columns(spec, ids)
    return columns, _dense(spec, dense, batch if columns else None)


def _id_columns(spec: ModelSpec, ids: Ids) -> tuple[list[np.ndarray], int]:
    names = [field.name for field in spec.fields]
    columns = [_column(c) for c in ids] if isinstance(ids, (list, tuple)) else list(_array(ids))
    if len(columns) != len(names):
        raise ValueError(f"ids must have {len(names)} rows, one a field, got {len(columns)}")
    for name, column in zip(names, columns, strict=True):
        if column.ndim != 1 or len(column) != len(columns[0]):
            raise ValueError(
                f"ids of field {name} must have shape [{len(columns[0])}], got {list(column.shape)}"
            )
        if column.dtype not in (np.int32, np.int64):
            raise ValueError(f"ids of field {name} must be int32 or int64, got {column.dtype}")
    return columns, len(columns[0]) if columns else 0


def _dense(spec: ModelSpec, dense: Any, batch: int | None) -> np.ndarray:
    wanted = len(spec.dense)
    if dense is None:
        if wanted:
            raise ValueError(f"the model has {wanted} dense features, got none")
        return np.empty((0, batch or 0), np.float32)
    rows = [_column(c) for c in dense] if isinstance(dense, (list, tuple)) else _array(dense)
    values = np.stack(rows) if isinstance(rows, list) and rows else np.asarray(rows)
    if values.size == 0 and wanted == 0:
        return np.empty((0, batch or 0), np.float32)
    if values.ndim != 2 or len(values) != wanted or batch not in (None, values.shape[1]):
        expected = f"[{wanted}, {'B' if batch is None else batch}]"
        raise ValueError(f"dense must have shape {expected}, got {list(values.shape)}")
    if values.dtype != np.float32:
        raise ValueError(f"dense must be float32, got {values.dtype}")
    return values


def _array(value: Any) -> np.ndarray:
    array = value if isinstance(value, np.ndarray) else np.from_dlpack(value)
    if array.ndim != 2:
        raise ValueError(f"expected 2 dimensions, one row a feature, got shape {array.shape}")
    return array


def _column(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.from_dlpack(value)


def on_device(value: Any) -> bool:
    """Whether the array lies on a CUDA device."""
    if isinstance(value, (np.ndarray, list, tuple)) or value is None:
        return False
    if hasattr(value, "__dlpack_device__"):
        return bool(value.__dlpack_device__()[0] == CUDA)
    return hasattr(value, "__cuda_array_interface__")


def checked_device_inputs(
    spec: ModelSpec, ids: Any, dense: Any, device: int
) -> tuple[Any, Any, int]:
    """ids [F, B], dense [N, B] or None, and B, as torch tensors or arrays with
    `__cuda_array_interface__`."""
    arrays: list[Any] = []
    for name, value, rows in (("ids", ids, len(spec.fields)), ("dense", dense, len(spec.dense))):
        if rows == 0:
            arrays.append(None)
            continue
        if not on_device(value):
            raise ValueError(f"{name} must be an array on cuda:{device}, as the other input is")
        array = _device_array(value, name, device)
        if len(array.shape) != 2 or array.shape[0] != rows:
            raise ValueError(f"{name} must have shape [{rows}, B], got {list(array.shape)}")
        arrays.append(array)
    batches = {int(array.shape[1]) for array in arrays if array is not None}
    if len(batches) > 1:
        raise ValueError(f"ids and dense must have one batch, got {sorted(batches)}")
    return arrays[0], arrays[1], batches.pop() if batches else 0


def _device_array(value: Any, name: str, device: int) -> Any:
    if hasattr(value, "__dlpack_device__"):
        found = int(value.__dlpack_device__()[1])
        if found != device:
            raise ValueError(f"{name} must be on cuda:{device}, where the engine is, got {found}")
    if hasattr(value, "__cuda_array_interface__"):
        return value
    return torch.utils.dlpack.from_dlpack(value)


def device_matrix(array: Any, name: str, types: tuple[str, ...]) -> _core.DeviceMatrix:
    """Where a matrix lies; `types` in numpy's notation. ValueError: another type or layout."""
    if isinstance(array, torch.Tensor):  # ten times faster than the interface below
        kind, bytes_each = TYPES.get(array.dtype, str(array.dtype)), array.element_size()
        address, strides = array.data_ptr(), [bytes_each * s for s in array.stride()]
    else:
        view = array.__cuda_array_interface__
        kind, address, bytes_each = view["typestr"], view["data"][0], int(view["typestr"][2:])
        strides = view.get("strides") or [bytes_each * array.shape[1], bytes_each]
    if kind not in types:
        raise ValueError(f"{name} must be of type {' or '.join(types)}, got {kind}")
    if array.shape[1] > 1 and strides[1] != bytes_each:
        raise ValueError(f"{name} must be contiguous along the batch, got strides {list(strides)}")
    return _core.DeviceMatrix(address, strides[0] // bytes_each, kind == "<i8")


def address_of(array: Any) -> int:
    """The address of a vector's first number."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr()
    return int(array.__cuda_array_interface__["data"][0])


def empty_on_device(batch: int, device: int) -> Any:
    """An uninitialised float32 [B]: a torch tensor where torch has CUDA, else a plain array with
    `__cuda_array_interface__`."""
    if torch.cuda.is_available():
        return torch.empty(batch, dtype=torch.float32, device=f"cuda:{device}")
    return _core.CudaVector(batch, device)


def current_stream(array: Any, device: int) -> int:
    """The stream that the caller's work on the array is on."""
    if isinstance(array, torch.Tensor):
        return int(torch.cuda.current_stream(device).cuda_stream)
    return int(array.__cuda_array_interface__.get("stream") or 0)
