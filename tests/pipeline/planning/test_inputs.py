from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from plan_jobs import encoded_table, job, write

from pipeline.errors import ConfigError, ContractError
from pipeline.planning.footers import CorruptFileError, FooterReader
from pipeline.planning.inputs import InputFile, list_inputs, scan_inputs


def names(paths: list[str], folder: Path) -> list[str]:
    return [str(Path(path).relative_to(folder.resolve())) for path in paths]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """b.parquet, day=1/a.parquet, and what is no data: hidden and _ names, other endings."""
    table = encoded_table(19)
    for name in ("input/b.parquet", "input/day=1/a.parquet", "input/_tmp/x.parquet"):
        write(tmp_path / name, table)
    for name in (".b.parquet", "_meta.parquet", "notes.txt", "_SUCCESS"):
        (tmp_path / "input" / name).write_bytes(b"no data")
    return tmp_path


def test_a_folder_is_searched_in_depth_without_hidden_names(tree: Path) -> None:
    assert names(list_inputs(job(tree)), tree / "input") == ["b.parquet", "day=1/a.parquet"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.parquet", ["b.parquet"]),
        ("*/*.parquet", ["day=1/a.parquet"]),
        ("day=*", ["day=1/a.parquet"]),
        ("**/*.parquet", ["b.parquet", "day=1/a.parquet"]),
        ("**", ["b.parquet", "day=1/a.parquet"]),
        ("_tmp/*", ["_tmp/x.parquet"]),
    ],
)
def test_a_glob_finds_each_file_once(tree: Path, pattern: str, found: list[str]) -> None:
    config = job(tree, input=str(tree / "input" / pattern))
    assert names(list_inputs(config), tree / "input") == found


def test_parquet_files_are_known_by_their_endings(tmp_path: Path) -> None:
    kept = ["a.PARQUET", "b.parq", "c.snappy.parquet", "d.pq", "e.parquet/part-0.Parquet"]
    for name in [*kept, "part-00000", "f.parquet.gz", "g.parquet.crc", "h.csv", ".a.parquet.crc"]:
        write(tmp_path / "input" / name, encoded_table(19))
    assert names(list_inputs(job(tmp_path)), tmp_path / "input") == kept
    (tmp_path / "hive").mkdir()
    write(tmp_path / "hive/000000_0", encoded_table(19))
    with pytest.raises(ConfigError, match=r"no \*.parquet file.*such as .*/hive/\*$"):
        list_inputs(job(tmp_path, input=str(tmp_path / "hive")))
    assert len(list_inputs(job(tmp_path, input=str(tmp_path / "hive/*")))) == 1


def test_relative_paths_are_relative_to_the_current_directory(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree / "input")
    assert names(list_inputs(job(tree, input=["./b.parquet", "day*"])), tree) == [
        "input/b.parquet",
        "input/day=1/a.parquet",
    ]


def test_a_listed_file_is_what_its_folder_finds(tree: Path) -> None:
    (tree / "linked").symlink_to(tree / "input")
    (tree / "link.parquet").symlink_to(tree / "input/b.parquet")
    for given in ("linked/b.parquet", "link.parquet", "input/../linked//./b.parquet"):
        assert list_inputs(job(tree, input=f"{tree}/{given}")) == [f"{tree}/input/b.parquet"]


def test_a_file_that_two_entries_find_comes_twice(tree: Path) -> None:
    folder = str(tree / "input")
    scan = scan_inputs(job(tree, input=[folder, f"{folder}/b.parquet"]))
    assert [Path(file.path).name for file in scan.files] == ["b.parquet", "b.parquet", "a.parquet"]
    assert scan.files[0] is scan.files[1]  # its footer was read once


def test_links_are_followed_and_a_loop_ends(tree: Path) -> None:
    write(tree / "elsewhere" / "c.parquet", encoded_table(1))
    (tree / "input" / "linked").symlink_to(tree / "elsewhere")
    (tree / "elsewhere" / "back").symlink_to(tree / "input")
    found = [Path(path).name for path in list_inputs(job(tree))]
    assert sorted(found) == ["a.parquet", "b.parquet", "c.parquet"]


@pytest.mark.parametrize("pattern", ["none", "none/*.parquet", "none.parquet", "empty"])
def test_an_entry_that_finds_nothing_is_named(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=pattern.replace("*", r"\*")):
        list_inputs(job(tmp_path, input=str(tmp_path / pattern)))


def test_a_footer_is_reduced_to_its_facts(tmp_path: Path) -> None:
    path = write(tmp_path / "input/a.parquet", encoded_table(111), row_group_size=50)
    [file] = scan_inputs(job(tmp_path)).files
    content = path.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    assert file.footer_sha256 == hashlib.sha256(footer).hexdigest()
    assert (file.rows, file.row_group_rows, file.row_groups) == (111, (50, 50, 11), 3)
    assert (file.size, file.mtime_ns) == (len(content), path.stat().st_mtime_ns)
    assert file.arrow_schema.names == ["row_id", "label", "C1", "C2", "I1"]
    assert "arrow_schema" not in file.model_dump()


def test_files_of_one_schema_share_it_and_others_do_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"input/{name}.parquet", encoded_table(19))
    write(tmp_path / "input/c.parquet", encoded_table(19, C1=pa.array(range(19), pa.int8())))
    a, b, c = scan_inputs(job(tmp_path)).files
    assert a.arrow_schema is b.arrow_schema
    assert c.arrow_schema.field("C1").type == pa.int8()


def test_a_footer_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    wide = pa.table({f"column_{i:04d}": [i] for i in range(1111)})
    path = write(tmp_path / "wide.parquet", wide)
    content = path.read_bytes()
    footer_bytes = int.from_bytes(content[-8:-4], "little")
    assert footer_bytes > 65536
    expected = hashlib.sha256(content[-8 - footer_bytes : -8]).hexdigest()
    assert FooterReader().read(str(path)).sha256 == expected


def _broken(folder: Path, kind: str) -> Path:
    path = write(folder / "input" / "z.parquet", encoded_table(19))
    whole = path.read_bytes()
    contents = {
        "0 bytes": b"",
        "too few": whole[:9],
        "truncated": whole[:-19],
        "does not fit": whole[:-8] + (10**6).to_bytes(4, "little") + b"PAR1",
        "cannot be read": whole[:-400] + bytes(392) + whole[-8:],
        "encrypted": whole[:-4] + b"PARE",
    }
    path.write_bytes(contents[kind])
    return path


KINDS = ["0 bytes", "too few", "truncated", "does not fit", "cannot be read", "encrypted"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_corrupt_file_fails_with_name_and_reason(tmp_path: Path, kind: str) -> None:
    path = _broken(tmp_path, kind)
    with pytest.raises(ContractError, match=kind) as caught:
        scan_inputs(job(tmp_path))
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_corrupt_file_is_quarantined_with_its_reason(tmp_path: Path, kind: str) -> None:
    good = write(tmp_path / "input/a.parquet", encoded_table(19))
    bad = _broken(tmp_path, kind)
    scan = scan_inputs(job(tmp_path, on_corrupt_file="quarantine"))
    assert [file.path for file in scan.files] == [str(good)]
    assert [entry.path for entry in scan.quarantined] == [str(bad)]
    assert kind in scan.quarantined[0].reason


def test_a_footer_with_a_hole_anywhere_is_corrupt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", encoded_table(111))
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    reader = FooterReader({"C1": (0, 10), "row_id": None})
    for hole in range(start, len(whole) - 8 - 64, 64):
        path.write_bytes(whole[:hole] + bytes(64) + whole[hole + 64 :])
        with pytest.raises(CorruptFileError, match="its footer cannot be read"):
            reader.read(str(path))


def test_many_bad_files_give_a_bounded_list(tmp_path: Path) -> None:
    for i in range(23):
        path = tmp_path / f"input/{i}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(ContractError, match="23 input file") as caught:
        scan_inputs(job(tmp_path))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "  and 3 more"


def test_a_file_that_vanishes_is_named_and_never_quarantined(tmp_path: Path) -> None:
    write(tmp_path / "input/a.parquet", encoded_table(1))
    (tmp_path / "input/gone.parquet").symlink_to(tmp_path / "nowhere.parquet")
    with pytest.raises(ContractError, match=r"input/gone\.parquet: No such file"):
        scan_inputs(job(tmp_path, on_corrupt_file="quarantine"))


# Root may read everything; without these capabilities, which a new program then lacks, not so.
WITHOUT_RIGHTS = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "test_inputs", *sys.argv[1:]])
"""
CLOSED = ("input/a.parquet", "input/deep", "input", ".")


def scan_and_print(folder: Path) -> None:
    """What the program of `WITHOUT_RIGHTS` runs."""
    try:
        scan_inputs(job(folder, on_corrupt_file="quarantine"))
    except ContractError as error:
        print(error)


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    folders = [tmp_path / f"job{number}" for number in range(len(CLOSED))]
    for folder, closed in zip(folders, CLOSED, strict=True):
        write(folder / "input/a.parquet", encoded_table(1))
        write(folder / "input/deep/b.parquet", encoded_table(1))
        (folder / closed).chmod(0)
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(map(str, [here, here.parents[1] / "helpers", here.parents[2]]))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", WITHOUT_RIGHTS, *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    for folder, closed in zip(folders, CLOSED, strict=True):
        (folder / closed).chmod(0o700)
        assert re.search(rf"{folder}/input.*: Permission denied", done.stdout), done


def problems_of(folder: Path, table: pa.Table) -> list[tuple[object, ...]]:
    write(folder / "input/a.parquet", table, row_group_size=10)
    limits = {"C1": (0, 10), "I1": (-10.0, 10.0), "row_id": None, "absent": None}
    [file] = scan_inputs(job(folder), limits).files
    assert isinstance(file, InputFile)
    return [tuple(problem) for problem in file.problems]


def test_statistics_tell_nulls_and_values_outside(tmp_path: Path) -> None:
    ids = [0] * 12 + [11, -1] + [0] * 6 + [12]
    keys = [None if i in (3, 15) else i for i in range(21)]
    table = encoded_table(21, C1=pa.array(ids, pa.int32()), row_id=pa.array(keys, pa.int64()))
    found = problems_of(tmp_path, table)
    assert found == [("C1", "range", 1, -1, 2), ("row_id", "null", 0, 1, 2)]


@pytest.mark.parametrize("values", [["11"] * 19, [True] * 19, [b"x"] * 19])
def test_statistics_that_are_no_numbers_tell_nothing(tmp_path: Path, values: list[object]) -> None:
    assert problems_of(tmp_path, encoded_table(19, C1=pa.array(values))) == []


def test_unsigned_ids_beyond_int64_are_told_as_they_are(tmp_path: Path) -> None:
    table = encoded_table(1, C1=pa.array([2**64 - 1], pa.uint64()))
    assert problems_of(tmp_path, table) == [("C1", "range", 0, 2**64 - 1, 1)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        scan_and_print(Path(argument))


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    os.mkfifo(tmp_path / "input/a.parquet")
    for pattern in ("input", "input/*"):
        with pytest.raises(ConfigError, match=r"a\.parquet is not a file"):
            list_inputs(job(tmp_path, input=str(tmp_path / pattern)))


def test_a_pattern_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\*\*b is not valid"):
        list_inputs(job(tmp_path, input=str(tmp_path / "a**b")))
