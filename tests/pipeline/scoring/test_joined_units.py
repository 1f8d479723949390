"""Units of many small files: every row once, in order, named by its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import (
    damage,
    encoded_table,
    job_keys,
    outcomes,
    read_scores,
    reference_scores,
    score_here,
    tiny_bundle,
    tiny_spec,
    with_value,
    worker_plan,
)

from pipeline.config.job import JobConfig
from pipeline.errors import UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.plan import make_plan
from pipeline.planning.units import FEW_UNITS, Unit
from pipeline.publishing.records import UnitError
from pipeline.publishing.verify import verify_output
from pipeline.reading.read_joined_pages import read_joined_pages
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitColumns, UnitPages

FILES, ROWS, GROUP = FEW_UNITS + 3, 19, 7
UNIT = 111  # rows: five files


def write(folder: Path, bad: dict[int, tuple[str, int, Any]] | None = None, **how: Any) -> pa.Table:
    """Files of ROWS rows; `bad`: file -> column, row and value to put there. All rows in order."""
    (folder / "input").mkdir()
    tables = [encoded_table(ROWS, i * ROWS, seed=i) for i in range(FILES)]
    for i, change in (bad or {}).items():
        tables[i] = with_value(tables[i], *change)
    for i, table in enumerate(tables):
        path = folder / f"input/{i:03}.parquet"
        # Without statistics the planner cannot see bad values.
        pq.write_table(table, path, row_group_size=GROUP, write_statistics=False, **how)
    return pa.concat_tables(tables)


def first_unit(folder: Path) -> Unit:
    return make_plan(JobConfig.model_validate(job_keys(folder, unit_rows=UNIT))).units[0]


def test_scores_are_those_of_every_file_in_order(tmp_path: Path) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    table = write(tmp_path)

    manifest = score_here(tmp_path, unit_rows=UNIT)

    assert [len(unit.more) for unit in manifest.units] == [4] * 13 + [1]
    found = read_scores(tmp_path / "output")
    assert found.column("row_id").equals(table.column("row_id"))
    scores = found.column("score").to_numpy()
    np.testing.assert_allclose(scores, reference_scores(model, table), atol=1e-5)
    assert verify_output(tmp_path / "output").problems == []


def test_a_manifest_that_lacks_a_file_of_a_unit_is_found(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path)
    score_here(tmp_path, unit_rows=UNIT)
    manifest = tmp_path / "output/_manifest.json"
    text = manifest.read_text()
    lost = str(tmp_path / "input/001.parquet")
    manifest.write_text(text.replace(f'"more":[["{lost}",3,19],', '"more":['))
    assert manifest.read_text() != text

    problems = verify_output(tmp_path / "output").problems

    assert any(lost in problem and "no outcome" in problem for problem in problems)


def test_bad_rows_are_named_by_their_file(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, {0: ("C2", 18, 7), 3: ("I2", 8, float("inf"))})
    keys = {"unit_rows": UNIT, "on_bad_row": "reject", "max_rejected_fraction": 0.1}

    manifest = score_here(tmp_path, **keys)

    rejected = pq.read_table(tmp_path / "output" / str(manifest.units[0].rejected_part)).to_pylist()
    found = [(row["row"], row["source_row"], Path(row["path"]).name) for row in rejected]
    assert found == [(18, 18, "000.parquet"), (3 * ROWS + 8, 8, "003.parquet")]
    assert verify_output(tmp_path / "output").problems == []


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_the_first_bad_row_is_named_with_row_group_and_file(
    tmp_path: Path, compression: str
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, {3: ("C2", 8, 7)}, compression=compression)
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, unit_rows=UNIT)))

    error = next(iter(outcomes(plan)))

    assert isinstance(error, UnitError) and error.kind == "bad_row"
    assert "003.parquet, row group 1, row 8 of the file: column 'C2' holds '7'" in error.message


def test_a_corrupt_file_is_named_alone_and_left_out_alone(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, compression="zstd", use_dictionary=False)
    damage(tmp_path / "input/002.parquet", 1, 3)
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, unit_rows=UNIT)))
    keys = job_keys(tmp_path, unit_rows=UNIT, on_corrupt_file="quarantine")

    error = next(iter(outcomes(plan)))

    assert isinstance(error, UnitError) and error.kind == "corrupt"
    assert "002.parquet" in error.message
    units = make_plan(JobConfig.model_validate(keys)).units
    assert len(units) == FILES and not any(unit.more for unit in units)


@pytest.mark.parametrize("carried", ["label", "row_id"])  # int8: pyarrow reads it, file by file
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_pages_of_many_files_are_those_of_one(
    tmp_path: Path, compression: str, carried: str
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, compression=compression)
    unit = first_unit(tmp_path)
    plan = worker_plan(columns(carried))
    at_once = read_joined_pages(unit.of_each_file(), plan, UnitBuffer())
    assert (at_once is None) == (carried == "label")

    pages = read_unit(unit, plan, UnitBuffer(), pages=True)
    decoded = read_unit(unit, plan, UnitBuffer())

    assert isinstance(pages, UnitPages) and isinstance(decoded, UnitColumns)
    ids = np.empty((len(decoded.ids), unit.rows), np.int32)
    pages.ids.decode(pages.memory, ids)
    np.testing.assert_array_equal(ids, np.stack(decoded.ids))
    np.testing.assert_array_equal(pages.dense, np.stack(decoded.dense))
    assert pages.published.equals(decoded.published)
    assert pages.facts.group_rows == decoded.facts.group_rows == [7, 7, 5] * 5


def test_one_file_that_a_gpu_does_not_take_has_the_unit_decoded(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    table = write(tmp_path)
    gzipped = tmp_path / "input/001.parquet"
    pq.write_table(table.slice(ROWS, ROWS), gzipped, compression="gzip")

    found = read_unit(first_unit(tmp_path), worker_plan(columns()), UnitBuffer(), pages=True)

    assert isinstance(found, UnitColumns) and found.facts.read_by == "cpu"
    assert found.published.column("row_id").to_pylist() == list(range(5 * ROWS))


def test_a_null_that_must_not_be_scored_has_the_unit_decoded(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, {1: ("I1", 3, None)})

    found = read_unit(first_unit(tmp_path), worker_plan(columns()), UnitBuffer(), pages=True)

    assert isinstance(found, UnitColumns)
    assert [(each.column, each.rows.tolist()) for each in found.findings] == [("I1", [ROWS + 3])]


def test_a_file_that_changed_or_is_gone_is_named(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path)
    unit, path = first_unit(tmp_path), tmp_path / "input/003.parquet"
    path.touch()
    with pytest.raises(UnitFailedError, match=r"003.parquet changed after planning"):
        read_unit(unit, worker_plan(columns("row_id")), UnitBuffer(), pages=True)
    path.unlink()
    with pytest.raises(UnitFailedError, match=r"003.parquet was removed after planning"):
        read_unit(unit, worker_plan(columns("row_id")), UnitBuffer(), pages=True)


def columns(carried: str = "label") -> Columns:
    spec = tiny_spec()
    return Columns(
        form="encoded",
        key_columns=("row_id",),
        carry_columns=(carried,) if carried != "row_id" else (),
        id_columns=tuple(field.name for field in spec.fields),
        dense_columns=tuple(spec.dense),
    )
