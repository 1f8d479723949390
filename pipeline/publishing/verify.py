"""`dpiframe verify`: check a finished output against its manifest, the manifest against the input.

Coverage: the units of a manifest must partition every input file into row groups, without gap or
overlap.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from pipeline.config.job import SCORE_COLUMN, embedding_column
from pipeline.errors import ConfigError
from pipeline.planning.footers import CorruptFileError, rows_of_version
from pipeline.publishing.output import Output, has_files, open_output
from pipeline.publishing.output_tree import outputs_below
from pipeline.publishing.records import (
    REJECTED_SCHEMA,
    Manifest,
    ManifestFile,
    Success,
    UnitRecord,
)
from pipeline.storage.address import is_remote

INPUT_THREADS = 32


class _Span(NamedTuple):
    """Row groups [first, stop) of a file, and their rows."""

    first: int
    stop: int
    rows: int


def coverage_problems(manifest: Manifest) -> Iterator[str]:
    """Input rows without an outcome or with two; a file listed n times must be covered n times."""
    spans: dict[str, list[_Span]] = defaultdict(list)
    for record in manifest.units:
        for path, first, stop, rows in record.files:
            spans[path].append(_Span(first, stop, rows))
    for entry in manifest.quarantined:
        if entry.unit is not None:
            span = _Span(entry.first_row_group, entry.stop_row_group, entry.rows)
            spans[entry.path].append(span)
    times = Counter(file.path for file in manifest.files)
    by_path = {file.path: file for file in manifest.files}
    for path in spans.keys() - by_path.keys():
        yield f"{path} has units, but is not among the input files"
    for path, file in by_path.items():
        yield from file_coverage(file, spans.get(path, []), times[path])
    with ThreadPoolExecutor(INPUT_THREADS) as pool:
        for found in pool.map(lambda file: list(input_problems(file)), by_path.values()):
            yield from found


def file_coverage(file: ManifestFile, spans: list[_Span], times: int) -> Iterator[str]:
    """Problems of one file that is listed `times` times."""
    if not file.rows:
        if any(span.rows for span in spans):
            yield f"{file.path} has no rows, but has units"
        return
    counts = Counter(spans)
    for span, count in counts.items():
        if count != times:
            yield (
                f"{file.path}: row groups {span.first} to {span.stop - 1} have {count} outcomes, "
                f"the file is listed {times} times"
            )
    position = rows = 0
    for span in sorted(counts):
        if span.first != position:
            what = "no outcome" if span.first > position else "two outcomes"
            low, high = sorted((span.first, position))
            yield f"{file.path}: row groups {low} to {high - 1} have {what}"
        position, rows = span.stop, rows + span.rows
    if position != file.row_groups:
        yield f"{file.path}: row groups {position} to {file.row_groups - 1} have no outcome"
    elif rows != file.rows:
        yield f"{file.path} has {file.rows} rows, its units have {rows}"


def input_problems(file: ManifestFile) -> Iterator[str]:
    """An input file of unchanged size and version must have the row count of the manifest."""
    try:
        rows = rows_of_version(file.path, file.size, file.mtime_ns, file.etag)
    except (OSError, ConfigError, CorruptFileError):
        return  # the input may be gone or unreachable by now; then only the manifest is checked
    if rows is not None and rows != file.rows:
        yield f"{file.path} has {rows} rows, the manifest says {file.rows}"


class Verification(BaseModel):
    """What was checked, and every problem found, in words; without problems the output is whole."""

    model_config = ConfigDict(frozen=True)

    output: str
    identity: str = ""
    units: int = 0
    rows: int = 0
    scored: int = 0
    rejected: int = 0
    bytes: int = 0
    problems: list[str]


def verify_output(output: str | Path) -> Verification:
    """Check hashes, row counts, schemas, scores, rejected rows and the coverage of the input; at a
    root of outputs, of all.

    Of a whole output, what a crash after its end left is removed: see `tidy_finished`.
    Raises ConfigError if the folder does not exist; everything else is a problem in the result.
    """
    found = open_output(output)
    with found.errors():
        return _verify(found)


def _verify(found: Output) -> Verification:
    if not found.exists():
        what = "holds nothing" if is_remote(found.address) else "is not a folder"
        raise ConfigError(f"{found.address} {what}; give the output of a job")
    try:
        manifest, success = found.manifest(), found.success()
    except (ConfigError, OSError) as error:
        return Verification(output=found.address, problems=[str(error)])
    if manifest is None and (inside := _outputs_inside(found.address)):
        return _verify_all(found.address, inside)
    if manifest is None:
        where = found.path("_manifest.json")
        problem = f"{where} is missing: the job has not finished; run it again"
        return Verification(output=found.address, problems=[problem])
    sizes = found.sizes()
    problems = [
        *success_problems(manifest, success),
        *total_problems(manifest),
        *found.copy_problems(manifest),
        *coverage_problems(manifest),
        *foreign_problems((name for name in sizes if not found.is_litter(name)), manifest),
    ]
    with ThreadPoolExecutor(found.readers) as pool:
        look = partial(unit_problems, found, sizes, manifest)
        for some in pool.map(look, manifest.units):
            problems += some
    if not problems:
        found.tidy_finished(wait=False)
    return Verification(
        output=found.address,
        identity=manifest.identity,
        units=len(manifest.units),
        rows=manifest.rows,
        scored=manifest.scored,
        rejected=manifest.rejected,
        bytes=sum(record.bytes for record in manifest.units),
        problems=problems,
    )


def _outputs_inside(root: str) -> list[str]:
    return [address for address in outputs_below(root) if address != root]


def _verify_all(root: str, outputs: list[str]) -> Verification:
    """One result for all outputs below a root; problems name theirs."""
    found = [verify_output(address) for address in outputs]
    return Verification(
        output=root,
        units=sum(each.units for each in found),
        rows=sum(each.rows for each in found),
        scored=sum(each.scored for each in found),
        rejected=sum(each.rejected for each in found),
        bytes=sum(each.bytes for each in found),
        problems=[f"{each.output}: {text}" for each in found for text in each.problems],
    )


def success_problems(manifest: Manifest, success: Success | None) -> Iterator[str]:
    """`_SUCCESS` exists and matches the manifest."""
    if success is None:
        yield "_SUCCESS is missing: the job has not finished; run it again"
    elif success.attempt != manifest.attempt:
        yield f"_SUCCESS is of attempt {success.attempt}, the manifest of {manifest.attempt}"
    elif (success.identity, success.rows) != (manifest.identity, manifest.rows):
        yield (
            f"_SUCCESS is of job {success.identity[:12]} with {success.rows} rows, the manifest "
            f"of {manifest.identity[:12]} with {manifest.rows}"
        )


def total_problems(manifest: Manifest) -> Iterator[str]:
    """The totals are the sums of the units, and every row has one outcome."""
    for name in ("rows", "scored", "rejected"):
        total, units = getattr(manifest, name), sum(getattr(r, name) for r in manifest.units)
        if total != units:
            yield f"the manifest counts {total} {name}, its units {units}"
    if manifest.rows != manifest.scored + manifest.rejected:
        yield f"{manifest.rows} rows, but {manifest.scored} scored + {manifest.rejected} rejected"


def foreign_problems(names: Iterable[str], manifest: Manifest) -> Iterator[str]:
    """No file outside the manifest could be mistaken for scores or rejected rows."""
    known = {record.part for record in manifest.units}
    known |= {record.rejected_part for record in manifest.units if record.rejected_part}
    for name in sorted(names):
        folder, _, last = name.rpartition("/")
        if folder in ("", "_rejected") and last.endswith(".parquet") and name not in known:
            yield f"{name} is not in the manifest: remove it, or readers would take it in"


def unit_problems(
    output: Output, sizes: Mapping[str, int], manifest: Manifest, record: UnitRecord
) -> list[str]:
    """Problems of one unit's files."""
    copied = [*manifest.key_columns, *manifest.carry_columns]
    try:
        with output.open(record.part) as part:
            problems = content_problems(part, record.part, record.sha256, record.bytes)
            if not problems:
                problems = part_problems(output, part, record, copied, manifest)
    except FileNotFoundError:
        problems = [f"{record.part} is missing"]
    except (OSError, pa.ArrowException) as error:
        problems = [str(error)]
    advice = "run the job again to score its unit again"
    if has_files(sizes, record):  # else the job sees by itself that the unit is lost
        advice = f"remove that part and {advice}"
    return [f"{record.part}: {problem}; {advice}" for problem in problems]


def content_problems(
    file: BufferedIOBase, name: str, sha256: str, size: int | None = None
) -> list[str]:
    """The file has the recorded content; it is at its begin again then."""
    found = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size is not None and found != size:
        return [f"has {found} bytes, {size} were published"]
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return [] if digest == sha256 else [f"{name} has sha256 {digest}, {sha256} was published"]


def part_problems(
    output: Output, part: BufferedIOBase, record: UnitRecord, copied: list[str], manifest: Manifest
) -> list[str]:
    """Columns, row count, keys, scores and rejected rows match the record."""
    keys, columns = manifest.key_columns, manifest.score_columns
    with pq.ParquetFile(part) as file:
        names = file.schema_arrow.names
        expected = [*copied, *manifest.made_columns]
        if names != expected:
            return [f"has columns {names}, expected {expected}"]
        table = file.read(columns=[*keys, *manifest.made_columns])
    for name in columns:
        if table.column(name).type != pa.float32():
            return [f"column {name} is {table.column(name).type}, expected float"]
    scores = table.column(SCORE_COLUMN)
    if table.num_rows != record.rows:
        return [f"has {table.num_rows} rows, {record.rows} were published"]
    problems = []
    if scores.null_count != record.rejected:
        problems.append(f"{scores.null_count} null scores, but {record.rejected} rejected rows")
    for name in columns:
        values = table.column(name).drop_null().to_numpy()
        if not ((values >= 0) & (values <= 1)).all():
            problems.append(f"column {name} has scores outside 0 .. 1")
    rejected_rows = rejected_positions(output, record, problems)
    null_rows = scores.is_null()
    for name, width in manifest.outputs.items():
        if width > 1:
            problems += embedding_problems(table.column(embedding_column(name)), name, width)
    for name in manifest.made_columns[1:]:
        if not table.column(name).is_null().equals(null_rows):
            problems.append(f"column {name} is null in other rows than {SCORE_COLUMN}")
    for key in keys:
        bad_keys = pc.sum(pc.and_not(table.column(key).is_null(), null_rows)).as_py()
        if bad_keys:
            problems.append(f"key column {key} has {bad_keys} nulls in scored rows")
    if not problems and rejected_rows is not None:
        marked = null_rows.to_numpy().nonzero()[0].tolist()
        if marked != rejected_rows:
            problems.append("null scores and rejected rows are not the same rows")
    return problems


def embedding_problems(column: pa.ChunkedArray, name: str, width: int) -> list[str]:
    """An embedding is a list of `width` finite float32."""
    if column.type != pa.list_(pa.float32()):
        return [f"embedding {name} is {column.type}, expected lists of float"]
    found = []
    if column.num_chunks and pc.any(pc.not_equal(pc.list_value_length(column), width)).as_py():
        found.append(f"embedding {name} has lists that are not of {width} numbers")
    values = pc.list_flatten(column)
    if values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py():
        found.append(f"embedding {name} has numbers that are not finite")
    return found


def rejected_positions(output: Output, record: UnitRecord, problems: list[str]) -> list[int] | None:
    """Positions of the rejected rows, from their file; appends problems of that file."""
    if record.rejected_part is None or record.rejected_sha256 is None:
        if record.rejected:
            problems.append(f"{record.rejected} rejected rows, but no file lists them")
        return []
    try:
        with output.open(record.rejected_part) as file:
            name = record.rejected_part.rpartition("/")[2]
            found = content_problems(file, name, record.rejected_sha256)
            table = None if found else pq.read_table(file)
    except FileNotFoundError:
        found, table = [f"{record.rejected_part} is missing"], None
    if table is None:
        problems += [f"rejected rows: {text}" for text in found]
        return None
    known = (REJECTED_SCHEMA.names, REJECTED_SCHEMA.names[:-1])
    if table.schema.names not in known or table.num_rows != record.rejected:
        problems.append(
            f"{record.rejected_part} has {table.num_rows} rows with columns {table.schema.names}, "
            f"expected {record.rejected} rows with {REJECTED_SCHEMA.names}"
        )
        return None
    positions: list[int] = table.column("row").to_numpy().tolist()
    return positions
