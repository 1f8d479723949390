"""A caller's fault is a ValueError that holds the values, CUDA's a RuntimeError."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpiframe_core import _core
from dpiframe_core.errors import DeviceMemoryError

CSRC = Path(__file__).resolve().parents[3] / "csrc"
TABLE = np.zeros((7, 16), np.float32)
IDS = np.zeros(19, np.int32)
OUT = np.zeros((19, 16), np.float32)
ONE = _core.MultiTableLookup([_core.LookupField(TABLE, 0, oov_row=1)], 1)


def two_fields(first: dict[str, object], second: dict[str, object]) -> None:
    fields = [
        _core.LookupField(np.zeros((3, kwargs.pop("dim", 4)), np.float32), 0, **kwargs)
        for kwargs in (first, second)
    ]
    _core.MultiTableLookup(fields, 1)


def graph() -> _core.Graph:
    result = _core.Graph()
    result.add_buffer("x", 100, external=True)
    result.add_buffer("y", 100)
    return result


FAULTS: dict[str, Callable[[], object]] = {
    "a lookup needs at least one field": lambda: _core.MultiTableLookup([], 1),
    "table must be contiguous float32 with 2 dimension(s), got float64 [3, 4]": (
        lambda: _core.LookupField(np.zeros((3, 4)), 0)
    ),
    "wide must have length 7, got 3": (
        lambda: _core.LookupField(TABLE, 0, wide=np.zeros(3, np.float32))
    ),
    "oov_row must be -1 or in [0, 3), got 3 (field 1)": lambda: two_fields({}, {"oov_row": 3}),
    "fields in FM must have equal dims, got 4 and 5 (field 1)": (
        lambda: two_fields({"in_fm": True}, {"in_fm": True, "dim": 5})
    ),
    "dim must be in [1, 4096], got 4097 (field 0)": lambda: two_fields({"dim": 4097}, {}),
    "expected ids of 1 fields, got 2": lambda: ONE.run([IDS, IDS], OUT),
    "ids must be int32 or int64 with one dimension, got float64 [19] (field 0)": (
        lambda: ONE.run([np.zeros(19)], OUT)
    ),
    "out must be writable float32 [19, W], got float32 [18, 16]": (
        lambda: ONE.run([IDS], OUT[:18])
    ),
    "out must have at least 16 columns, got 15 (field 0)": lambda: ONE.run([IDS], OUT[:, :15]),
    "fm was asked for and no field is in FM": (
        lambda: ONE.run([IDS], OUT, fm=np.zeros(19, np.float32))
    ),
    "wide must have length 19, got 1": (lambda: ONE.run([IDS], OUT, wide=np.zeros(1, np.float32))),
    "expected rows of 1 fields, got 2": lambda: _core.find_bad_ids([IDS], [1, 2]),
    "bytes must not be negative, got -1 (buffer z)": lambda: graph().add_buffer("z", -1),
    "a view must lie within its 100 bytes, got offset 60 and 50 bytes (buffer y)": (
        lambda: graph().add_view(1, 60, 50)
    ),
    "step names buffer 2, the graph has 2": lambda: graph().add_step("step", [2], [1]),
    "step s reads buffer y, which no earlier step writes": (
        lambda: graph().add_step("s", [1], [0])
    ),
    "cost must be finite and not negative, got nan (step s)": (
        lambda: graph().add_step("s", [0], [1], float("nan"))
    ),
    "num_streams must be in [1, 64], got 0": lambda: _core.plan(graph(), 0, "serial"),
    "policy must be serial, depth_first or breadth_first, got deep": (
        lambda: _core.plan(graph(), 1, "deep")  # type: ignore[arg-type]
    ),
    "alignment must be a power of two, got 100": (
        lambda: _core.plan_buffers(graph(), _core.plan(graph(), 1, "serial"), 100)
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_fault_of_the_caller(message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        FAULTS[message]()


def test_too_little_memory_is_a_runtime_error_that_travels() -> None:
    error = pickle.loads(pickle.dumps(DeviceMemoryError("the GPU gave no 7 bytes")))
    assert type(error) is DeviceMemoryError and isinstance(error, RuntimeError)
    assert str(error) == "the GPU gave no 7 bytes"


def test_build_info() -> None:
    info = _core.build_info()
    assert info["version"] == "0.1.0"
    assert bool(info["cuda_archs"]) == info["cuda"]
    assert _core.cuda_device_count() >= 0


def test_import_needs_no_gpu_library() -> None:
    linked = subprocess.run(
        ["ldd", _core.__file__], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert not re.search(r"libcuda|libcudart|libnvidia|not found", linked)


PROGRAM = """
#include <iostream>
#include "cuda/cuda_check.h"
struct Owner { ~Owner() { DPIF_CUDA_WARN(cudaErrorInvalidValue); } };
int main() {
  { const Owner owner; }
  try { DPIF_CUDA_CHECK(cudaErrorMemoryAllocation); }
  catch (const dpiframe::DeviceMemoryError& error) { std::cout << error.what() << '\\n'; }
  try { DPIF_CUDA_CHECK(cudaErrorInvalidValue); }
  catch (const dpiframe::DeviceMemoryError& error) { return 1; }
  catch (const std::runtime_error& error) { std::cout << error.what() << '\\n'; }
  dpiframe::failure_loses_device = true;
  dpiframe::calls_until_failure = 2;
  DPIF_CUDA_CHECK(cudaSuccess);
  for (int call = 0; call < 2; ++call) {
    try { DPIF_CUDA_CHECK(cudaSuccess); return 1; }
    catch (const dpiframe::DeviceLostError& error) { std::cout << error.what() << '\\n'; }
  }
  return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("nvcc") is None, reason="needs nvcc")
def test_cuda_faults_name_expression_place_and_text(tmp_path: Path) -> None:
    source, program = tmp_path / "program.cu", tmp_path / "program"
    source.write_text(PROGRAM.lstrip())
    command = ["nvcc", "-std=c++20", f"-I{CSRC}", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=200)
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60)
    assert re.match(
        r"cudaErrorMemoryAllocation failed at .*program.cu:6: cudaErrorMemoryAllocation, out of.*\n"
        r"cudaErrorInvalidValue failed at .*program.cu:8: cudaErrorInvalidValue, invalid argument\n"
        r"(cudaSuccess failed at .*program.cu:15: cudaErrorIllegalAddress, an illegal .*\n){2}$",
        ran.stdout,
    )
    assert re.match(r"dpiframe: cudaErrorInvalidValue failed at .*program.cu:3: ", ran.stderr)
