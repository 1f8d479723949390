from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_by_hand import I64, PLAIN, v1
from parquet_by_hand import write as write_by_hand
from plan_jobs import encoded_table, job, write

from pipeline.errors import ContractError
from pipeline.planning import footers
from pipeline.planning.footers import (
    CorruptFileError,
    FooterReader,
    StatisticsProblem,
    Unreadable,
    read_footers,
)
from pipeline.planning.inputs import scan_inputs

ROOT = Path(__file__).resolve().parents[3]
LIMITS = {"C1": (0, 5), "I1": (-0.5, 0.5), "row_id": None, "absent": None}


def of_another_type(path: Path) -> Path:
    """A parquet file with one wrong byte: the type of column C1's chunk is BOOLEAN, not INT32."""
    content = bytearray(write(path, encoded_table(111)).read_bytes())
    name = content.rindex(b"\x19\x18\x02C1")  # a list of one text: the path of the column
    content[content.rindex(b"\x15\x02\x19", 0, name) + 1] = 0  # the type before it
    path.write_bytes(content)
    return path


def test_many_footers_are_those_that_single_reads_give(tmp_path: Path) -> None:
    tables = [encoded_table(rows) for rows in (1, 19, 111)]
    tables.append(encoded_table(19, C1=pa.array(range(19), pa.int8())))
    tables.append(encoded_table(19, C1=pa.array(["x"] * 19).dictionary_encode()))
    tables.append(encoded_table(19, label=pa.array([[1, 2]] * 19)))
    paths = []
    for i in range(119):
        path = tmp_path / f"{i:05d}.parquet"
        if i < len(tables):
            write(path, tables[i])
        else:
            path.write_bytes(Path(paths[i - len(tables)]).read_bytes())
        paths.append(str(path))
    footers = read_footers(paths, LIMITS)
    reader = FooterReader(LIMITS)
    assert not footers.bad
    for path in paths:
        assert footers.good[path] == reader.read(path)
    assert len({id(footer.schema) for footer in footers.good.values()}) == 4
    assert any(footer.problems for footer in footers.good.values())


def test_no_files_have_no_footers() -> None:
    assert read_footers([], {}) == ({}, {})


def test_a_column_chunk_of_another_type_is_corrupt(tmp_path: Path) -> None:
    good = [str(write(tmp_path / f"input/{i}.parquet", encoded_table(19))) for i in (1, 3)]
    bad = of_another_type(tmp_path / "input/2.parquet")
    limits = {"C1": (0, 5)}
    reason = "its footer cannot be read: row group 5, column C1: a column chunk has type 0"
    with pytest.raises(ContractError, match=rf"{bad}: {reason}"):
        scan_inputs(job(tmp_path), limits)
    scan = scan_inputs(job(tmp_path, on_corrupt_file="quarantine"), limits)
    assert [file.path for file in scan.files] == good
    assert [entry.path for entry in scan.quarantined] == [str(bad)]


def test_flipped_bytes_never_end_this_process(tmp_path: Path) -> None:
    """Whatever a byte of the statistics' column becomes, the file is read or told."""
    content = write(tmp_path / "whole.parquet", encoded_table(19)).read_bytes()
    name = content.rindex(b"\x19\x18\x02C1")
    paths = []
    for i, position in enumerate(range(name - 19, name + 5, 3)):
        path = tmp_path / f"{i}.parquet"
        flipped = content[position] ^ (1 << i % 8)
        path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
        paths.append(str(path))
    footers = read_footers(paths, LIMITS)
    assert {*footers.good, *footers.bad} == set(paths)
    assert all(file.corrupt for file in footers.bad.values())


def test_a_negative_number_of_rows_is_corrupt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", encoded_table(19))
    content = bytearray(path.read_bytes())
    # RowGroup: total_byte_size, then num_rows (field 3, zigzag 38), then file_offset
    place = content.rindex(b"\x16\x26\x26")
    content[place + 1] = 37
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="a row group of -19 rows"):
        FooterReader().read(str(path))


def test_a_path_that_holds_a_zero_is_no_corrupt_file() -> None:
    assert read_footers(["a\0b"], {}).bad == {"a\0b": Unreadable("Invalid argument", False)}


def test_a_fault_of_the_reader_itself_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RuntimeError(path)

    monkeypatch.setattr(footers, "_open", fail)
    with pytest.raises(RuntimeError, match="a"):
        read_footers(["a", "aa"], {})


def test_a_file_that_needs_too_much_memory_is_not_called_corrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: str) -> None:
        raise MemoryError

    monkeypatch.setattr(footers, "_open", fail)
    assert not read_footers(["a"], {}).bad["a"].corrupt


def test_files_are_waited_for_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(path: str) -> None:
        time.sleep(0.5)
        raise CorruptFileError(path)

    monkeypatch.setattr(footers, "_open", slow)
    start = time.monotonic()
    assert len(read_footers([str(i) for i in range(footers.THREADS)], {}).bad) == footers.THREADS
    assert time.monotonic() - start < 0.5 * footers.THREADS / 2


# What a writer says of a column of int32, and what is made of it.
SMALL, LARGE = bytes([3, 0, 0, 0]), bytes([70, 0, 0, 0])
ORDERED, UNORDERED = {6: SMALL, 5: LARGE}, {2: SMALL, 1: LARGE}
KNOWN = [{1: {}}]  # an order that the type defines
UNSIGNED = {6: 13}  # converted type UINT_32
RANGE, NULL = ("x", "range", 0, 70, 1), ("x", "null", 0, 2, 1)


@pytest.mark.parametrize(
    ("statistics", "orders", "writer", "element", "found"),
    [
        (ORDERED, KNOWN, "parquet-mr version 1.13.1 (build 1)", {}, [RANGE]),
        (UNORDERED, KNOWN, "parquet-mr version 1.13.1 (build 1)", {}, []),
        (ORDERED, None, "any", {}, []),
        (UNORDERED, None, "any", {}, [RANGE]),
        (UNORDERED, None, "any", UNSIGNED, []),
        (ORDERED, [{2: {}}], "any", {}, []),  # an order that nobody knows yet
        (ORDERED | {3: I64(2)}, KNOWN, None, UNSIGNED, [NULL, RANGE]),
        (ORDERED | {3: I64(2)}, KNOWN, "parquet-mr version 1.9.0 (build 1)", UNSIGNED, []),
        (ORDERED | {3: I64(2)}, KNOWN, "parquet-mr version 1.9.0 (build 1)", {}, [NULL, RANGE]),
        (ORDERED | {3: I64(2)}, KNOWN, "parquet-cpp version 1.2.9", UNSIGNED, []),
        (ORDERED | {3: I64(2)}, KNOWN, "parquet-cpp version 1.3.0", UNSIGNED, [NULL, RANGE]),
        ({5: LARGE, 6: LARGE}, KNOWN, "parquet-mr version 1.9.0", UNSIGNED, [RANGE]),
        ({3: I64(2)}, KNOWN, "any", {}, [NULL]),
        ({5: LARGE}, KNOWN, "any", {}, []),
        ({}, KNOWN, "any", {}, []),
    ],
)
def test_statistics_are_trusted_as_arrow_trusts_them(
    tmp_path: Path,
    statistics: dict[int, object],
    orders: object,
    writer: str | None,
    element: dict[int, int],
    found: list[tuple[object, ...]],
) -> None:
    path = write_by_hand(
        tmp_path / "a.parquet",
        [v1(bytes(80), 20, PLAIN)],
        20,
        chunk={12: statistics},
        element=element,
        footer={6: writer, 7: orders},
    )
    problems = FooterReader({"x": (0, 60)}).read(str(path)).problems
    assert problems == tuple(StatisticsProblem(*problem) for problem in found)
    told = pq.read_metadata(path).row_group(0).column(0).statistics
    assert bool(told and told.has_min_max) == (RANGE in found)
    assert bool(told and told.null_count) == (NULL in found)


def test_statistics_too_short_for_their_type_are_corrupt(tmp_path: Path) -> None:
    chunk = {12: {5: b"abc", 6: b"abc"}}
    path = write_by_hand(
        tmp_path / "a.parquet", [v1(bytes(80), 20)], 20, chunk=chunk, footer={7: KNOWN}
    )
    with pytest.raises(CorruptFileError, match="values of 3 and 3 bytes, their type has 4"):
        FooterReader({"x": (0, 60)}).read(str(path))


def test_a_schema_that_nests_deeper_than_arrow_can_follow_is_corrupt(tmp_path: Path) -> None:
    levels = [{4: "x", 5: 1, 3: 0} for _ in range(100_000)]
    footer = {2: [*levels, {1: 1, 3: 0, 4: "x"}]}
    path = write_by_hand(tmp_path / "a.parquet", [v1(bytes(80), 20)], 20, footer=footer)
    with pytest.raises(CorruptFileError, match="the schema nests deeper"):
        FooterReader().read(str(path))


# What a shell starts in the background ignores SIGINT, and so do the processes that it starts.
READ_FOR_EVER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from pipeline.planning.footers import read_footers as r; r(sys.argv[1:], {})"
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_file_that_never_answers_does_not_keep_the_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A pipe that nobody writes to stands for a dead file system."""
    stuck = tmp_path / "stuck.parquet"
    os.mkfifo(stuck)
    command = [sys.executable, "-c", READ_FOR_EVER, str(stuck)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:  # not yet reading
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == -number
    assert complaint.count("Traceback") == (number == signal.SIGINT)
