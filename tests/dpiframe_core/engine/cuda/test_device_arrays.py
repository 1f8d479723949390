"""Where device batches lie, and what is refused; tensors on the CPU stand in for those on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core import _core
from dpiframe_core.engine.cuda.device_arrays import (
    DENSE,
    IDS,
    NOTHING,
    DeviceArrays,
    matrix_at,
    on_device,
)

HERE = -1  # what torch calls the device of a CPU tensor


class OtherArray:
    """An array of another library, as it describes itself."""

    def __init__(self, shape, typestr="<i8", strides=None, device=None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "data": (4096, True),
            "stream": 7,
        }
        if device is not None:
            self.__dlpack_device__ = lambda: (2, device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_tensor_lies_where_torch_says(dtype):
    ids = torch.zeros(7, 111, dtype=dtype)
    each = ids.element_size()
    assert matrix_at(ids, "ids", 7, IDS, HERE) == ((ids.data_ptr(), 111, each), 111)
    part = ids[2:5, 19:50]
    assert matrix_at(part, "ids", 3, IDS, HERE) == ((part.data_ptr(), 111, each), 31)
    assert (
        matrix_at(ids.T[:1].T, "ids", 7, IDS, HERE)[1] == 1
    )  # one row: any stride along the batch
    assert matrix_at(ids[:, :0], "ids", 7, IDS, HERE)[1] == 0


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(3, 5, dtype=torch.int64), r"shape \[7, B\], got \[3, 5\]"),
        (torch.zeros(7, dtype=torch.int64), r"shape \[7, B\], got \[7\]"),
        (torch.zeros((), dtype=torch.int64), r"shape \[7, B\], got \[\]"),
        (torch.zeros(7, 5), "type <i4 or <i8, got torch.float32"),
        (torch.zeros(5, 7, dtype=torch.int64).T, r"contiguous along the batch, got strides \[1, 7"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tensor, message):
    with pytest.raises(ValueError, match=f"ids must .*{message}"):
        matrix_at(tensor, "ids", 7, IDS, HERE)


def test_an_array_of_another_library_lies_where_it_says():
    assert matrix_at(OtherArray((7, 19)), "ids", 7, IDS, 0) == ((4096, 19, 8), 19)
    rows = OtherArray((7, 19), "<i4", (400, 4), device=0)
    assert matrix_at(rows, "ids", 7, IDS, 0) == ((4096, 100, 4), 19)
    assert DeviceArrays(7, 0, 0).stream(rows) == 7


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (OtherArray((7, 19), "<f8"), "type <f4, got <f8"),
        (OtherArray((7, 19), "<f4", (4, 28)), "contiguous along the batch"),
        (OtherArray((7, 19), "<f4", (90, 4)), "strides of whole numbers"),
        (OtherArray((19,), "<f4"), r"shape \[7, B\]"),
        (OtherArray((7, 19), "<f4", device=1), "on cuda:0, where the engine is, got cuda:1"),
        (torch.zeros(7, 19), "on cuda:0, as the other input is"),
        (None, "on cuda:0, as the other input is"),
        ([1, 2], "on cuda:0, as the other input is"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array, message):
    with pytest.raises(ValueError, match=f"dense must .*{message}"):
        matrix_at(array, "dense", 7, DENSE, 0)


def test_what_the_model_has_not_is_not_looked_at():
    ids, dense = torch.zeros(7, 19, dtype=torch.int32), torch.zeros(3, 19)
    i, d = (ids.data_ptr(), 19, 4), (dense.data_ptr(), 19, 4)
    assert DeviceArrays(7, 3, HERE).matrices(ids, dense) == (i, d, 19)
    assert DeviceArrays(7, 0, HERE).matrices(ids, None) == (i, NOTHING, 19)
    assert DeviceArrays(0, 3, HERE).matrices(None, dense) == (NOTHING, d, 19)
    with pytest.raises(ValueError, match=r"ids and dense must have one batch, got \[5, 19\]"):
        DeviceArrays(7, 3, HERE).matrices(ids, dense[:, :5])
    with pytest.raises(ValueError, match=r"got \[0, 19\]"):
        DeviceArrays(7, 3, HERE).matrices(ids, dense[:, :0])


def test_arrays_on_the_cpu_are_not_on_a_device():
    for value in (torch.zeros(2), [torch.zeros(2)], None, "text"):
        assert not on_device(value)
    assert on_device(OtherArray((7, 19))) and on_device(OtherArray((7, 19), device=0))


needs_exchange = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="this torch has no such functions",
)


@needs_exchange
def test_tensors_are_found_where_python_finds_them():
    ids, dense = torch.zeros(9, 111, dtype=torch.int32), torch.zeros(5, 111)
    for i in (ids[2:9], ids.long()[:7], ids[1:8, 3:40], ids[:7, :1], ids[:7, :0], ids[::3][:1]):
        for d in (dense[:3, : i.shape[1]], dense[1:4, : i.shape[1]].requires_grad_()):
            for num_fields, num_dense in ((len(i), 3), (len(i), 0), (0, 3)):
                inputs = DeviceArrays(num_fields, num_dense, HERE)
                expected, found = inputs.matrices(i, d), inputs.tensors.matrices(i, d)
                assert found is not None and found[2] == expected[2]
                for (place, stride, each), wanted in zip(found[:2], expected[:2], strict=True):
                    assert (place, each) == (wanted[0], wanted[2]) or expected[2] == 0
                    assert stride == wanted[1] or min(num_fields or 3, expected[2]) <= 1


@needs_exchange
@pytest.mark.parametrize(
    ("ids", "dense"),
    [
        (torch.zeros(6, 5, dtype=torch.int64), torch.zeros(3, 5)),
        (torch.zeros(7, dtype=torch.int64), torch.zeros(3, 5)),
        (torch.zeros((), dtype=torch.int64), torch.zeros(3, 5)),
        (torch.zeros(7, 5), torch.zeros(3, 5)),
        (torch.zeros(7, 5, dtype=torch.int16), torch.zeros(3, 5)),
        (torch.zeros(7, 5, dtype=torch.uint8).bool(), torch.zeros(3, 5)),
        (torch.zeros(5, 7, dtype=torch.int64).T, torch.zeros(3, 5)),
        (torch.zeros(7, 5, dtype=torch.int64), torch.zeros(3, 5).double()),
        (torch.zeros(7, 5, dtype=torch.int64), torch.zeros(3, 5).int()),
        (torch.zeros(7, 5, dtype=torch.int64), torch.zeros(3, 4)),
        (torch.zeros(7, 5, dtype=torch.int64), None),
        (torch.zeros(7, 5, dtype=torch.int64).to_sparse(), torch.zeros(3, 5)),
        (torch.zeros(7, 5, dtype=torch.int64, device="meta"), torch.zeros(3, 5)),
        (np.zeros((7, 5), np.int64), torch.zeros(3, 5)),
        (OtherArray((7, 5)), torch.zeros(3, 5)),
        (None, None),
    ],
)
def test_what_does_not_fit_is_not_found_and_no_error(ids, dense):
    assert DeviceArrays(7, 3, HERE).tensors.matrices(ids, dense) is None


def test_tensors_of_a_library_without_the_functions_are_not_found():
    class Tensor:
        __dlpack_c_exchange_api__ = "no capsule"

    for kind in (Tensor, object):
        assert _core.DeviceTensors(kind, 7, 0, HERE).matrices(kind(), None) is None
