"""A bundle's weights as arrays mapped from its file: neither copied nor read before they are used.

The format (safetensors): 8 bytes that give the length of a header; the header, JSON with each
weight's type, shape and range of bytes; the weights one behind the other.
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path

import numpy as np
from safetensors import safe_open

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def map_arrays(file: Path) -> dict[str, np.ndarray]:
    """The weights by name, float32 or float64. Who writes into one changes neither the file nor
    what others see. The file must be a checked one.
    """
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    begin = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:begin])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        kind, shape = entry["dtype"], entry["shape"]
        if kind not in STORED:
            arrays[name] = _widened_by_torch(file, name)
            continue
        start = begin + entry["data_offsets"][0]
        stored = np.frombuffer(mapped, STORED[kind], math.prod(shape), start).reshape(shape)
        arrays[name] = _widened(kind, np.require(stored, requirements="A"))
    return arrays


def _widened(kind: str, stored: np.ndarray) -> np.ndarray:
    """Half types as float32."""
    if kind == "F16":
        return stored.astype(np.float32)
    if kind == "BF16":  # the upper half of a float32
        bits = stored.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return stored


def _widened_by_torch(file: Path, name: str) -> np.ndarray:
    """A weight of a type that numpy lacks, such as those of 8 bits."""
    with safe_open(file, framework="pt") as opened:
        widened: np.ndarray = opened.get_tensor(name).float().numpy()
    return widened
