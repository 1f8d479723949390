"""How many rows a unit gets when the configuration says auto."""

from __future__ import annotations

import pytest

from pipeline.planning.inputs import InputFile
from pipeline.planning.units import MB, auto_unit_rows, cut_units

CRITEO_BYTES = 164


def file(rows: int, group: int) -> InputFile:
    groups = [group] * (rows // group) + [rows % group] * (rows % group > 0)
    return InputFile.model_construct(
        path="/x", size=1, mtime_ns=0, rows=rows, row_group_rows=tuple(groups)
    )


def units_of(files: list[InputFile], row_bytes: int) -> list[int]:
    return [unit.rows for unit in cut_units(files, auto_unit_rows(files, row_bytes), "i")]


@pytest.mark.parametrize("row_bytes", [1, 16, 164, 4_000, 100_000])
@pytest.mark.parametrize("rows", [10**8, 10**9])
def test_units_of_a_large_input_are_many_and_bounded(rows: int, row_bytes: int) -> None:
    files = [file(10**7, 10_000)] * (rows // 10**7)
    units = units_of(files, row_bytes)
    assert max(units) * row_bytes <= 256 * MB + 10_000 * row_bytes
    assert len(units) >= min(64, rows * row_bytes / (9 * MB))


def test_units_do_not_grow_with_the_input() -> None:
    """What readers hold at a time, and so a job's memory, is the same."""
    small, large = ([file(4_000_000, 100_000)] * count for count in (25, 250))
    assert max(units_of(small, CRITEO_BYTES)) == max(units_of(large, CRITEO_BYTES))


def test_a_billion_criteo_rows_make_a_few_hundred_units() -> None:
    assert 500 <= len(units_of([file(10**8, 10**5)] * 10, CRITEO_BYTES)) <= 800
    assert len(units_of([file(10**6, 10**5)] * 1000, CRITEO_BYTES)) == 1000  # files are not joined


@pytest.mark.parametrize("files", [1, 19])
def test_a_small_input_still_has_work_for_several_scorers(files: int) -> None:
    units = units_of([file(1_000_000 // files, 10_000)] * files, CRITEO_BYTES)
    assert len(units) >= 12


def test_a_tiny_input_is_not_cut_to_pieces() -> None:
    assert units_of([file(19, 3)], CRITEO_BYTES) == [19]


@pytest.mark.parametrize(("rows", "group"), [(1_100_000, 100_000), (1_500_000, 131_072)])
def test_a_file_a_little_larger_than_a_unit_is_cut_evenly(rows: int, group: int) -> None:
    others = [file(rows, group)] * 200
    units = units_of(others, 500)
    assert max(units) - min(units) <= group


def test_a_row_group_larger_than_a_unit_stays_whole() -> None:
    assert units_of([file(30_000_000, 10_000_000)], CRITEO_BYTES) == [10_000_000] * 3


def test_uneven_row_groups_do_not_blow_units_up() -> None:
    odd = InputFile.model_construct(
        path="/x", size=1, mtime_ns=0, rows=1_019_000, row_group_rows=(1_000_000, *[1000] * 19)
    )
    assert auto_unit_rows([odd] * 100, CRITEO_BYTES) <= 2_000_000


@pytest.mark.parametrize("files", [[], [file(0, 1)]])
def test_no_rows_give_no_units(files: list[InputFile]) -> None:
    assert units_of(files, 1) == []
