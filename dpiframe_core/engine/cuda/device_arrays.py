"""Batches in the memory of the engine's GPU: the checks that protect memory, and addresses.

A batch of a few thousand rows takes the GPU some tens of microseconds, so a torch tensor is asked
no more than is needed, and in the cheapest way that torch has. Only who scores such batches waits
for torch, which takes seconds to import: the engine imports this file with the first of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpiframe_core import _core
from dpiframe_core.engine.host_inputs import on_device

# Address, stride from one feature to the next in numbers, bytes of a number.
Matrix = tuple[int, int, int]
NOTHING: Matrix = (0, 0, 0)

# Bytes of a number by torch's type, and by the name of __cuda_array_interface__.
Types = dict[Any, int]
IDS: Types = {torch.int32: 4, torch.int64: 8, "<i4": 4, "<i8": 8}
DENSE: Types = {torch.float32: 4, "<f4": 4}

# torch.cuda.current_stream makes an object first, which is ten times slower.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def device_array(value: Any) -> Any:
    """A tensor, or an array with `__cuda_array_interface__`; its device is not checked."""
    if value is None or isinstance(value, Tensor) or hasattr(value, "__cuda_array_interface__"):
        return value
    return torch.utils.dlpack.from_dlpack(value) if on_device(value) else value


def matrix_at(
    array: Any, name: str, num_features: int, types: Types, device: int
) -> tuple[Matrix, int]:
    """The matrix of an array [num_features, B], and B. ValueError where it is of another type,
    shape, layout or device.
    """
    kind: Any
    shape: tuple[int, ...]
    if isinstance(array, Tensor):
        kind, found, address = array.dtype, array.get_device(), array.data_ptr()
        shape, strides = array.shape, array.stride()
    else:
        kind, found, address, shape, strides = _described(array, name, device)
    if found != device:
        where = "as the other input is" if found < 0 else f"where the engine is, got cuda:{found}"
        raise ValueError(f"{name} must be an array on cuda:{device}, {where}")
    if len(shape) != 2 or shape[0] != num_features:
        raise ValueError(f"{name} must have shape [{num_features}, B], got {list(shape)}")
    if kind not in types:
        known = " or ".join(t for t in types if isinstance(t, str))
        raise ValueError(f"{name} must be of type {known}, got {kind}")
    if strides[1] != 1 and shape[1] > 1:
        raise ValueError(f"{name} must be contiguous along the batch, got strides {list(strides)}")
    return (address, strides[0], types[kind]), shape[1]


def _described(
    array: Any, name: str, device: int
) -> tuple[str, int, int, tuple[int, ...], tuple[int, ...]]:
    """Type, device, address, shape and strides (in numbers) of another library's array."""
    view = getattr(array, "__cuda_array_interface__", None)
    if view is None:
        raise ValueError(f"{name} must be an array on cuda:{device}, as the other input is")
    where = getattr(array, "__dlpack_device__", None)
    found = device if where is None else int(where()[1])
    shape, each = tuple(view["shape"]), int(view["typestr"][2:])
    strides = view.get("strides") or (*(each * n for n in shape[1:]), each)
    if any(stride % each for stride in strides):
        raise ValueError(f"{name} must have strides of whole numbers, got {strides} bytes")
    numbers = tuple(stride // each for stride in strides)
    return view["typestr"], found, view["data"][0], shape, numbers


class DeviceArrays:
    """A model's inputs on one GPU, checked, and memory for its scores."""

    array = staticmethod(device_array)

    def __init__(self, num_fields: int, num_dense: int, device: int) -> None:
        self.num_fields, self.num_dense, self.device = num_fields, num_dense, device
        self.tensors = _core.DeviceTensors(Tensor, num_fields, num_dense, device)
        self._prototype: Tensor | None = None  # scores are allocated like it

    def matrices(self, ids: Any, dense: Any) -> tuple[Matrix, Matrix, int]:
        """The matrices of ids [F, B] and dense [N, B], and B; an input that the model lacks is
        ignored.

        ValueError as `matrix_at`.
        """
        i, d, batch, rows = NOTHING, NOTHING, 0, 0
        if self.num_fields:
            i, batch = matrix_at(ids, "ids", self.num_fields, IDS, self.device)
        if self.num_dense:
            d, rows = matrix_at(dense, "dense", self.num_dense, DENSE, self.device)
            if rows != batch and self.num_fields:
                raise ValueError(f"ids and dense must have one batch, got {sorted((rows, batch))}")
        return i, d, batch or rows

    def scores(self, batch: int) -> tuple[Any, int]:
        """An uninitialised float32 [batch] and its address: a torch tensor where torch has CUDA,
        else a plain array with `__cuda_array_interface__`.
        """
        if self._prototype is None:
            if not torch.cuda.is_available():
                vector = _core.CudaVector(batch, self.device)
                return vector, vector.__cuda_array_interface__["data"][0]
            self._prototype = torch.empty(0, dtype=torch.float32, device=f"cuda:{self.device}")
        made = self._prototype.new_empty(batch)  # takes less time than torch.empty
        return made, made.data_ptr()

    def stream(self, array: Any) -> int:
        """The stream that the caller's work on the array is on."""
        if not isinstance(array, Tensor):
            return int(array.__cuda_array_interface__.get("stream") or 0)
        if _raw_stream is None:
            return int(torch.cuda.current_stream(self.device).cuda_stream)
        return int(_raw_stream(self.device))
