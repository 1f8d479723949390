"""Verification: a whole output has no problems, and every kind of damage is found."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import score_here, tiny_bundle, with_value, write_shards

from pipeline.errors import ConfigError
from pipeline.publishing.folder import FolderOutput
from pipeline.publishing.records import Manifest
from pipeline.publishing.verify import part_problems, verify_output

PART = "part-u000001-*.parquet"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with input and output: 2 shards listed twice, one row of them rejected."""
    folder = tmp_path_factory.mktemp("finished")
    tiny_bundle(folder / "bundle")
    write_shards(folder / "input", 2, 111, 19)
    shard = folder / "input/shard-000.parquet"
    bad = with_value(pq.read_table(shard), "C2", 5, None)
    pq.write_table(bad, shard, row_group_size=19)
    twice = [str(folder / "input"), str(shard)]
    score_here(folder, input=twice, unit_rows=40, on_bad_row="reject", max_rejected_fraction=0.1)
    return folder


@pytest.fixture
def output(finished: Path, tmp_path: Path) -> Path:
    """A copy of the output that a test may damage."""
    shutil.copytree(finished / "output", tmp_path / "output")
    return tmp_path / "output"


def test_a_whole_output_has_no_problem(output: Path) -> None:
    found = verify_output(output)

    assert found.problems == []
    assert (found.rows, found.scored, found.rejected) == (333, 331, 2)


def test_an_output_of_before_names_no_files_of_rejected_rows_nor_of_units(output: Path) -> None:
    def as_before(manifest: dict[str, Any]) -> None:
        for unit in manifest["units"]:
            assert unit.pop("more") == []
            if unit["rejected_part"]:
                path = output / unit["rejected_part"]
                pq.write_table(pq.read_table(path).drop_columns("path"), path)
                unit["rejected_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    change_manifest(output, as_before)

    assert verify_output(output).problems == []


def flip_byte(output: Path) -> None:
    (path,) = output.glob(PART)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_part(output: Path) -> None:
    (path,) = output.glob(PART)
    path.write_bytes(path.read_bytes()[:-1])


def remove_part(output: Path) -> None:
    next(output.glob(PART)).unlink()


def remove_rejected(output: Path) -> None:
    next(output.glob("_rejected/*.parquet")).unlink()


def add_part(output: Path) -> None:
    shutil.copy(next(output.glob(PART)), output / "part-0.parquet")


def remove_success(output: Path) -> None:
    (output / "_SUCCESS").unlink()


def remove_manifest(output: Path) -> None:
    (output / "_manifest.json").unlink()


def block_manifest(output: Path) -> None:
    remove_manifest(output)
    (output / "_manifest.json").mkdir()


def change_manifest(output: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((output / "_manifest.json").read_text())
    change(manifest)
    (output / "_manifest.json").write_text(json.dumps(manifest))


def lose_unit(output: Path) -> None:
    change_manifest(output, lambda manifest: manifest["units"].pop(0))


def double_unit(output: Path) -> None:
    change_manifest(output, lambda manifest: manifest["units"].append(manifest["units"][0]))


def widen_unit(output: Path) -> None:
    change_manifest(output, lambda manifest: manifest["units"][0].update(stop_row_group=3))


def other_identity(output: Path) -> None:
    change_manifest(output, lambda manifest: manifest.update(identity="x"))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip_byte, "sha256"),
        (cut_part, "bytes"),
        (remove_part, "missing"),
        (remove_rejected, "rejected rows: .* is missing"),
        (add_part, "part-0.parquet is not in the manifest"),
        (remove_success, "_SUCCESS is missing"),
        (remove_manifest, "_manifest.json is missing"),
        (block_manifest, "Is a directory: .*_manifest.json"),
        (lose_unit, "row groups 0 to 1 have 1 outcomes, the file is listed 2 times"),
        (double_unit, "3 outcomes"),
        (widen_unit, "two outcomes"),
        (other_identity, "_SUCCESS is of job"),
    ],
)
def test_damage_is_found(output: Path, damage: Callable[[Path], None], text: str) -> None:
    damage(output)

    problems = verify_output(output).problems

    assert any(re.search(text, problem) for problem in problems), problems


@pytest.mark.parametrize("damage", [remove_part, remove_rejected, cut_part])
def test_of_a_unit_with_a_file_gone_nothing_is_to_be_removed(
    output: Path, damage: Callable[[Path], None]
) -> None:
    damage(output)

    (problem,) = verify_output(output).problems

    assert problem.endswith("; run the job again to score its unit again")


def test_a_damaged_part_is_to_be_removed(output: Path) -> None:
    flip_byte(output)

    (problem,) = verify_output(output).problems

    assert problem.endswith("; remove that part and run the job again to score its unit again")


def test_a_null_key_is_a_problem_in_a_scored_row_alone(output: Path) -> None:
    """As many null keys as rejected rows, but one of them in a scored row."""
    manifest = Manifest.model_validate_json((output / "_manifest.json").read_text())
    record = next(record for record in manifest.units if record.rejected)
    table = pq.read_table(output / record.part)
    nulls = table.column("score").is_null().to_pylist()
    keys = table.column("row_id").to_pylist()

    for row, expected in ((nulls.index(True), []), (nulls.index(False), [ANY])):
        changed = [None if at == row else key for at, key in enumerate(keys)]
        index = table.schema.get_field_index("row_id")
        damaged = table.set_column(index, "row_id", pa.array(changed, pa.int64()))
        pq.write_table(damaged, output / record.part)
        copied = [*manifest.key_columns, *manifest.carry_columns]
        with (output / record.part).open("rb") as part:
            found = part_problems(FolderOutput(output), part, record, copied, manifest)
        assert found == expected


def test_a_changed_row_count_of_the_input_is_found(finished: Path, output: Path) -> None:
    change_manifest(output, lambda manifest: manifest["files"][-1].update(rows=112))

    assert any("has 111 rows, the manifest says 112" in p for p in verify_output(output).problems)


def test_a_folder_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        verify_output(tmp_path / "nothing")
