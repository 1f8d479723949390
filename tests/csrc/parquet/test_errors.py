"""What the parquet reader says of wrong arguments, and of files that are none of parquet."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from parquet_files import guarded, read, write

from dpiframe_core import _core

ROWS = 500


@pytest.fixture
def two_groups(tmp_path) -> Path:
    random = np.random.default_rng(1)
    kinds = ("i4", "i8", "f4", "f8")
    tables = [
        pa.table({k: random.integers(0, 99, ROWS).astype(k) for k in kinds}) for _ in range(2)
    ]
    return write(tmp_path / "two_groups.parquet", tables)


@pytest.mark.parametrize("groups", [(0, 3), (2, 3), (1, 0), (0, 1 << 40), (-1, 1), (-(1 << 63), 0)])
def test_row_groups_that_do_not_exist(two_groups, groups):
    file = _core.ParquetFile(str(two_groups))
    fault = TypeError if groups[0] < 0 else ValueError
    with pytest.raises(fault):
        file.number_type("i4", *groups)
    with pytest.raises(fault):
        file.read(["i4"], *groups, [np.zeros(ROWS, "i4")])


ARRAYS = {
    "short": np.zeros(ROWS - 1, "i4"),
    "long": np.zeros(ROWS + 1, "i4"),
    "empty": np.zeros(0, "i4"),
    "unsigned": np.zeros(ROWS, "u4"),
    "wide": np.zeros(ROWS, "i8"),
    "float": np.zeros(ROWS, "f4"),
    "other_bytes_first": np.zeros(ROWS, ">i4"),
    "matrix": np.zeros((ROWS, 1), "i4"),
    "row": np.zeros((1, ROWS), "i4"),
    "scalar": np.zeros((), "i4"),
    "every_other": np.zeros(ROWS * 2, "i4")[::2],
    "reversed": np.zeros(ROWS, "i4")[::-1],
    "one_repeated": np.broadcast_to(np.zeros(1, "i4"), ROWS),
    "unaligned": np.zeros(ROWS * 4 + 1, np.uint8)[1:].view("i4"),
    "read_only": np.frombuffer(bytes(ROWS * 4), "i4"),
    "list": [0] * ROWS,
    "none": None,
    "bytes": bytearray(ROWS * 4),
}


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_that_cannot_be_filled(two_groups, array):
    file = _core.ParquetFile(str(two_groups))
    good, memory = guarded("i8", ROWS)
    with pytest.raises((ValueError, TypeError)):
        file.read(["i8", "i4"], 0, 1, [good, ARRAYS[array]])
    assert (memory == 0xA5).all()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_arrays_as_names(two_groups, count):
    with pytest.raises(ValueError):
        outs = [np.zeros(ROWS, "i4") for _ in range(count)]
        _core.ParquetFile(str(two_groups)).read(["i4", "i4"], 0, 1, outs)


def test_a_file_that_is_not_there(tmp_path):
    path = str(tmp_path / "ünï.parquet")
    with pytest.raises(FileNotFoundError) as error:
        _core.ParquetFile(path)
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, path)


def test_a_folder(tmp_path):
    with pytest.raises(OSError) as error:
        _core.ParquetFile(str(tmp_path))
    assert (error.value.errno, error.value.filename) == (errno.EISDIR, str(tmp_path))


def test_a_path_that_holds_a_zero(two_groups):
    with pytest.raises((ValueError, OSError)):
        _core.ParquetFile(f"{two_groups}\0.parquet")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(two_groups):
    two_groups.chmod(0)
    with pytest.raises(PermissionError):
        _core.ParquetFile(str(two_groups))


CONTENTS = {
    "nothing": lambda data: b"",
    "one_byte": lambda data: b"P",
    "magic": lambda data: b"PAR1",
    "magics": lambda data: b"PAR1PAR1",
    "no_footer": lambda data: b"PAR1\0\0\0\0PAR1",
    "text": lambda data: b"label,C1,C2\n" * 100,
    "no_magic_at_the_end": lambda data: data[:-1] + b"2",
    "encrypted_footer": lambda data: b"PARE" + data[4:-4] + b"PARE",
    "long_footer": lambda data: data[:-8] + len(data).to_bytes(4, "little") + b"PAR1",
    "longest_footer": lambda data: data[:-8] + b"\xff\xff\xff\xffPAR1",
    "short_footer": lambda data: data[:-8] + b"\x05\0\0\0PAR1",
    "zeros": lambda data: b"PAR1" + bytes(len(data)) + data[-8:],
}


@pytest.mark.parametrize("content", CONTENTS)
def test_files_of_another_kind(two_groups, content):
    two_groups.write_bytes(CONTENTS[content](two_groups.read_bytes()))
    with pytest.raises(ValueError):
        _core.ParquetFile(str(two_groups))


def test_files_cut_off(two_groups):
    data = two_groups.read_bytes()
    for size in [*range(20), *range(20, len(data), 97), *range(len(data) - 20, len(data))]:
        two_groups.write_bytes(data[:size])
        with pytest.raises(ValueError):
            _core.ParquetFile(str(two_groups))


def test_a_file_that_loses_its_end_after_it_was_opened(two_groups):
    file = _core.ParquetFile(str(two_groups))
    os.truncate(two_groups, 100)
    with pytest.raises((ValueError, OSError)):
        file.read(["f8"], 1, 2, [np.zeros(ROWS)])


def test_a_file_that_is_removed_after_it_was_opened(two_groups):
    file = _core.ParquetFile(str(two_groups))
    wanted = read(file, ["f8"], 1, 2)[0]
    two_groups.unlink()
    try:
        assert read(file, ["f8"], 1, 2)[0].tobytes() == wanted.tobytes()
    except OSError as error:
        assert (error.errno, error.filename) == (errno.ENOENT, str(two_groups))
