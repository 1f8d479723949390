"""Coverage: the units of a manifest cut every input file into row groups, no gap, no overlap."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.publishing.records import Manifest, ManifestFile


class _Span(NamedTuple):
    """Row groups [first, stop) of a file, and the rows that they gave."""

    first: int
    stop: int
    rows: int


def coverage_problems(manifest: Manifest) -> Iterator[str]:
    """What input rows have no outcome, or two; a file listed n times must be covered n times."""
    spans: dict[str, list[_Span]] = defaultdict(list)
    for record in manifest.units:
        spans[record.path].append(_Span(record.first_row_group, record.stop_row_group, record.rows))
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
        yield from input_problems(file)


def file_coverage(file: ManifestFile, spans: list[_Span], times: int) -> Iterator[str]:
    """Problems of one file that is listed `times` times."""
    if not file.rows:
        if spans:
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
    """An input file that is still as it was must have the rows that the manifest says."""
    path = Path(file.path)
    try:
        found = path.stat()
        if (found.st_size, found.st_mtime_ns) == (file.size, file.mtime_ns):
            rows = pq.read_metadata(path).num_rows
            if rows != file.rows:
                yield f"{file.path} has {rows} rows, the manifest says {file.rows}"
    except (OSError, pa.ArrowException):
        return  # the input may be gone or out of reach by now: the manifest stands for it
