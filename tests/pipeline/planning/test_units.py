from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from pipeline.planning.inputs import InputFile
from pipeline.planning.units import FEW_UNITS, Unit, auto_unit_rows, cut_units, joins_files
from pipeline.publishing.records import UNIT_NAME


def file(rows: Sequence[int], path: str = "/data/a.parquet", mtime_ns: int = 7) -> InputFile:
    return InputFile(
        path=path,
        size=1000,
        mtime_ns=mtime_ns,
        footer_sha256="00ff",
        rows=sum(rows),
        row_group_rows=tuple(rows),
        arrow_schema=None,
    )


def cuts(rows: Sequence[int], unit_rows: int) -> list[tuple[int, int, int, int]]:
    units = cut_units([file(rows)], unit_rows, "i")
    return [(u.first_row_group, u.stop_row_group, u.first_row, u.rows) for u in units]


@pytest.mark.parametrize(
    ("rows", "unit_rows", "expected"),
    [
        ([], 10, []),
        ([0, 0], 10, []),
        ([19], 10, [(0, 1, 0, 19)]),  # a row group is never cut
        ([5, 5, 5], 10, [(0, 2, 0, 10), (2, 3, 10, 5)]),
        ([5, 6, 5], 10, [(0, 1, 0, 5), (1, 2, 5, 6), (2, 3, 11, 5)]),
        ([1, 19, 1], 10, [(0, 1, 0, 1), (1, 2, 1, 19), (2, 3, 20, 1)]),
        ([0, 5, 0, 5, 0, 1, 0], 10, [(0, 5, 0, 10), (5, 7, 10, 1)]),
        ([3, 3], 1, [(0, 1, 0, 3), (1, 2, 3, 3)]),
    ],
)
def test_units_are_runs_of_whole_row_groups(
    rows: list[int], unit_rows: int, expected: list[tuple[int, int, int, int]]
) -> None:
    assert cuts(rows, unit_rows) == expected


@pytest.mark.parametrize("unit_rows", [1, 7, 19, 111, 10**9])
def test_every_row_is_in_one_unit(unit_rows: int) -> None:
    rows = [(7 * i * i) % 23 for i in range(111)]
    position = group = 0
    for first, stop, first_row, count in cuts(rows, unit_rows):
        assert (first, first_row, count) == (group, position, sum(rows[first:stop]))
        assert count <= unit_rows or sum(n > 0 for n in rows[first:stop]) == 1
        position, group = position + count, stop
    assert position == sum(rows)
    assert sum(rows[group:]) == 0


def test_names_are_deterministic_and_distinct() -> None:
    files = [file([5, 5]), file([5, 5]), file([], "/data/b.parquet"), file([5], "/data/c.parquet")]
    units = cut_units(files, 5, "i")
    assert units == cut_units(files, 5, "i")
    assert [unit.index for unit in units] == list(range(5))
    assert len({unit.name for unit in units}) == 5
    assert all(re.fullmatch(UNIT_NAME, unit.name) for unit in units)


def test_another_job_gives_other_names() -> None:
    [before], [after] = cut_units([file([5])], 5, "i"), cut_units([file([5])], 5, "j")
    assert before.name != after.name


def test_a_unit_goes_through_json_unchanged() -> None:
    [unit] = cut_units([file([5])], 5, "i")
    assert Unit.model_validate_json(unit.model_dump_json()) == unit


def small(rows: Sequence[int]) -> list[InputFile]:
    return [file([count] * (count > 0), f"/data/{i}.parquet") for i, count in enumerate(rows)]


def test_small_files_that_follow_one_another_are_joined() -> None:
    rows = [3, 0, 4, 3, 4, 10, 19, 2]
    files = small(rows)
    files[6] = file([10, 9], "/data/6.parquet")

    units = cut_units(files, 10, "i", join=True)

    shape = [(unit.path[6], unit.rows, [each.path[6] for each in unit.more]) for unit in units]
    assert shape == [
        ("0", 10, ["2", "3"]),
        ("4", 4, []),
        ("5", 10, []),
        ("6", 10, []),
        ("6", 9, []),
        ("7", 2, []),
    ]
    assert [each.rows for each in units[0].of_each_file()] == [3, 4, 3]
    assert Unit.model_validate_json(units[0].model_dump_json()) == units[0]
    names = {unit.name for unit in cut_units(small([3, 0, 4, 3]), 7, "i", join=True)}
    assert units[0].name not in names


def test_files_are_joined_where_there_are_many_of_one_schema() -> None:
    many = small([5] * (FEW_UNITS + 1))
    assert joins_files(many, 10)
    assert not joins_files(many, 9)
    assert not joins_files(many[1:], 10)
    kinds = [each.model_copy(update={"arrow_schema": str(i)}) for i, each in enumerate(many)]
    assert not joins_files(kinds, 10)


def test_auto_units_of_small_files_hold_several() -> None:
    many = small([10_000] * 10_000)
    assert auto_unit_rows(many, 160) == 10_000
    assert auto_unit_rows(many, 160, join=True) == 10**8 // 64
