"""Records of an output: atomic files, names, which units count as finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit_records import UNIT, record

from pipeline.errors import ConfigError
from pipeline.publishing.atomic import remove_temporaries, temp_path, write_atomic
from pipeline.publishing.records import (
    OutputLayout,
    Success,
    UnitRecord,
    finished_units,
    is_part_name,
    read_json,
    write_json,
)


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    written = record(score_histogram=[0, 1], batch_s=[0.5], bad_ids={"C1": 2})

    write_json(tmp_path / "r.json", written)

    assert read_json(tmp_path / "r.json", UnitRecord) == written
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_missing_record_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "r.json", UnitRecord) is None


def test_a_broken_record_names_the_file_and_the_key(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").write_text('{"identity": "a", "rows": "many"}')

    with pytest.raises(ConfigError, match=r"_SUCCESS .*rows"):
        read_json(tmp_path / "_SUCCESS", Success)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_atomic(path, b"old")

    with pytest.raises(TypeError):
        write_atomic(path, "text")  # type: ignore[arg-type]

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_temporaries_of_the_dead_are_removed_and_nothing_else(tmp_path: Path) -> None:
    temp_path(tmp_path / "part-x.parquet").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"foreign")

    assert remove_temporaries(tmp_path) == 1

    assert [path.name for path in tmp_path.iterdir()] == [".hidden"]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        (f"part-{UNIT}.parquet", True),
        ("part-u1000000-0123abcd.parquet", True),
        ("part-0.parquet", False),
        (f"part-{UNIT}.parquet.bak", False),
    ],
)
def test_names_of_parts(name: str, ours: bool) -> None:
    assert is_part_name(name) is ours


def test_a_unit_is_finished_with_record_and_whole_files(tmp_path: Path) -> None:
    layout = OutputLayout(tmp_path)
    layout.units.mkdir()
    units = [f"u00000{i}-0123abcd" for i in range(5)]
    whole, short, gone, no_rejected, _ = units
    for unit, size in [(whole, 3), (short, 4), (gone, 3), (no_rejected, 3)]:
        rejected = "_rejected/x" if unit == no_rejected else None
        write_json(layout.record(unit), record(unit, size, rejected_part=rejected))
        if unit != gone:
            layout.part(unit).write_bytes(b"abc")

    assert list(finished_units(layout, units)) == [whole]
