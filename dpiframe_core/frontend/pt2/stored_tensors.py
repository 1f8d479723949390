"""Weights of a .pt2 archive: views of the mapped file, as torch.export.save described them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2.export_schema import Payload, SymInt, TensorMeta
from dpiframe_core.frontend.pt2.stored_zip import StoredZip

_DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
_OTHER_DTYPES = {
    9: "complex32",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
_STRIDED = 7
_OTHER_LAYOUTS = {
    1: "sparse_coo",
    2: "sparse_csr",
    3: "sparse_csc",
    4: "sparse_bsr",
    5: "sparse_bsc",
    6: "mkldnn",
}
# An expanded view is larger than its bytes, and copying it must not fill the memory.
_MOST_EXPANDED_BYTES = 64 << 20


def dtype_of(number: int) -> torch.dtype:
    """The type of that number in the export schema; ModelImportError for one that is not read."""
    if number not in _DTYPES:
        name = _OTHER_DTYPES.get(number, f"of number {number}")
        raise ModelImportError(
            f"type {name} is not supported; convert it, say to float32, before exporting"
        )
    return _DTYPES[number]


def check_layout(number: int) -> None:
    """ModelImportError unless the layout of that number in the export schema is strided."""
    if number != _STRIDED:
        name = _OTHER_LAYOUTS.get(number, f"of number {number}")
        raise ModelImportError(
            f"layout {name} is not supported; call to_dense() on the tensor before exporting"
        )


def stored_tensors(
    archive: StoredZip, folder: str, payloads: Mapping[str, Payload]
) -> dict[str, torch.Tensor]:
    """The tensors of a config file by name; those that share bytes in the file share memory."""
    files: dict[str, memoryview] = {}
    found = {}
    for name, payload in payloads.items():
        try:
            if payload.use_pickle or payload.tensor_meta is None:
                raise ModelImportError(
                    "is pickled (a tensor subclass or a custom object), and a pickle is never "
                    "read; replace it by a plain tensor before exporting"
                )
            file = f"{folder}/{payload.path_name}"
            if file not in files:
                files[file] = archive.data(file)
            found[name] = _tensor(files[file], payload.tensor_meta)
        except ModelImportError as error:
            raise ModelImportError(f"weight {name}: {error}") from None
    return found


def _tensor(data: memoryview, meta: TensorMeta) -> torch.Tensor:
    """The tensor of that description in a storage of these bytes."""
    check_layout(meta.layout)
    dtype = dtype_of(meta.dtype)
    sizes, strides = _lengths(meta.sizes), _lengths(meta.strides)
    (offset,) = _lengths([meta.storage_offset])
    if len(sizes) != len(strides):
        raise ModelImportError(f"has {len(sizes)} dimensions and {len(strides)} strides")
    if 0 in sizes:
        return torch.empty(sizes, dtype=dtype)
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    wanted = (last + 1) * dtype.itemsize
    if wanted > len(data):
        absent = "; export with real weights, not fake ones" if len(data) == 0 else ""
        raise ModelImportError(
            f"sizes {sizes}, strides {strides} and offset {offset} of {dtype} need {wanted} "
            f"bytes, its file has {len(data)}{absent}"
        )
    expanded = math.prod(sizes) * dtype.itemsize
    if expanded > max(len(data), _MOST_EXPANDED_BYTES):
        raise ModelImportError(
            f"is a view of {len(data)} bytes expanded to {expanded}; call contiguous() on it "
            "before exporting"
        )
    return _flat(data, dtype).as_strided(sizes, strides, offset)


def _flat(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """All of the bytes as one vector: not copied, unless a repacked archive misaligned them."""
    count = len(data) // dtype.itemsize
    flat = torch.frombuffer(data, dtype=dtype, count=count)
    return flat.clone() if flat.data_ptr() % dtype.itemsize else flat


def _lengths(sizes: list[SymInt]) -> list[int]:
    found = [size.as_int for size in sizes]
    known = [length for length in found if length is not None and length >= 0]
    if len(known) != len(found):
        raise ModelImportError(f"a size, stride or offset of {found} is no number of at least 0")
    return known
