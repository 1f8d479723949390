"""Host memory of somebody else, registered: the GPU reads columns in it where they lie."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_cases import HAS_GPU, cuda_engine, even_model, logits
from model_zoo import random_inputs
from odd_models import Shape

from dpiframe_core import _core
from dpiframe_core.cuda_engine import CudaEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")]

BATCH = 20_000  # a column of int32 takes more than the 16 KiB that are worth a copy of their own
SPEC = Shape("wdl", 7, (8,), (40, 24), None, 1, "parallel").spec()
NO_DENSE = np.empty((0, BATCH), np.float32)
PAGE = mmap.PAGESIZE


@pytest.fixture(scope="module")
def engine() -> Iterator[CudaEngine]:
    made = cuda_engine(even_model(SPEC), max_batch=BATCH)
    yield made
    made.close()


def mapped(columns: list[np.ndarray], folder: Path, gap: int) -> list[np.ndarray]:
    """The columns in a file in shared memory that may not be written, `gap` bytes between them."""
    path = folder / "columns"
    with path.open("wb") as file:
        for column in columns:
            file.write(column.tobytes() + bytes(gap))
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    step = columns[0].nbytes + gap
    return [
        np.frombuffer(memory, column.dtype, len(column), number * step)
        for number, column in enumerate(columns)
    ]


def place(columns: list[np.ndarray]) -> tuple[int, int]:
    """Address and bytes of the columns and what lies between them."""
    first, last = columns[0].ctypes.data, columns[-1].ctypes.data
    return first, last + columns[-1].nbytes - first


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("gap", [0, 64, 4096])
def test_columns_of_a_read_only_mapping(engine, folder, dtype, gap):
    ids, _ = random_inputs(SPEC, BATCH)
    expected = logits(engine, ids, NO_DENSE)
    columns = mapped(list(ids.astype(dtype)), folder, gap)
    held = _core.RegisteredHostMemory(*place(columns))
    out = np.empty(BATCH, np.float32)
    for _ in range(5):  # more than are in flight
        engine.run(columns, NO_DENSE, False, out)
        np.testing.assert_array_equal(out, expected)
    held.close()
    held.close()
    engine.run(columns, NO_DENSE, False, out)  # packed again
    np.testing.assert_array_equal(out, expected)


def test_columns_of_which_some_are_registered_are_packed(engine):
    """First and last are page-locked, and what lies between them is not."""
    ids, _ = random_inputs(SPEC, BATCH)
    rows = -(-BATCH * 8 // PAGE) * PAGE // 8
    memory = np.frombuffer(mmap.mmap(-1, 7 * rows * 8), np.int64).reshape(7, rows)
    columns = [column[:BATCH] for column in memory]
    for column, values in zip(columns, ids, strict=True):
        column[:] = values
    held = [_core.RegisteredHostMemory(*place([columns[f]])) for f in (0, 6)]
    assert _core.one_array(columns)
    out = np.empty(BATCH, np.float32)
    engine.run(columns, NO_DENSE, False, out)
    np.testing.assert_array_equal(out, logits(engine, ids, NO_DENSE))
    for one in held:
        one.close()


def test_what_cannot_be_registered_is_named():
    memory = np.frombuffer(mmap.mmap(-1, 4 * PAGE), np.uint8)
    address = memory.ctypes.data
    with pytest.raises(ValueError, match="must not be empty, got 0 bytes"):
        _core.RegisteredHostMemory(address, 0)
    held = _core.RegisteredHostMemory(address, 2 * PAGE)
    text = rf"cannot page-lock {2 * PAGE} bytes of host memory at address {address}: cudaError"
    with pytest.raises(RuntimeError, match=text):
        _core.RegisteredHostMemory(address, 2 * PAGE)
    assert torch.zeros(3, device="cuda").sum() == 0  # no error is left behind
    held.close()
    _core.RegisteredHostMemory(address, 2 * PAGE).close()
