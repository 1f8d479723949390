"""Reading the scores of a finished job the safe way: by its manifest, never by listing files."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as pads

from pipeline.errors import ConfigError
from pipeline.planning.partitions import (
    Kind,
    partition_texts,
    partition_types,
    partition_values,
    with_partitions,
)
from pipeline.publishing.output import open_output
from pipeline.publishing.output_tree import outputs_below
from pipeline.publishing.records import Manifest, UnitRecord

_OF_A_JOB = re.compile(r"/[0-9a-f]{16}$")  # an output whose parts are files of a table


def open_scores(output: str | Path) -> pads.Dataset:
    """The published rows of `output`: key and carried columns, `score` (null: rejected), and
    `score_NAME` for each of the job's `bundles`.

    Rows lie in the order of the input: by file, then by row. ConfigError while the job is not
    finished. Of a root of outputs, those that are finished, with the columns that the names of
    their folders give; ConfigError where jobs that wrote to a table left several in one folder.
    """
    found = finished_outputs(output)
    whole = len(found) == 1 and found[0].address == open_output(output).address
    return found[0].rows if whole else pads.dataset([one.rows for one in found])


class FinishedOutput(NamedTuple):
    """An output, its manifest, and its published rows: a fragment a unit, in `units`' order."""

    address: str
    manifest: Manifest
    rows: pads.Dataset

    @property
    def units(self) -> list[UnitRecord]:
        """The units in the order of the input."""
        return _in_order(self.manifest)


def finished_outputs(output: str | Path) -> list[FinishedOutput]:
    """The output itself, or of a root of outputs those that are finished; errors and columns as of
    `open_scores`.
    """
    inside = _finished_below(output)
    if not inside:
        manifest = finished_manifest(output)
        return [FinishedOutput(open_output(output).address, manifest, _dataset(output, manifest))]
    root = open_output(output).address.rstrip("/") + "/"
    texts = [partition_texts(f"{open_output(o).address.removeprefix(root)}/") for o in inside]
    types = partition_types(texts)
    found = []
    for one, text in zip(inside, texts, strict=True):
        manifest = finished_manifest(one)
        rows = _with_columns(_dataset(one, manifest), text, types)
        found.append(FinishedOutput(one, manifest, rows))
    return found


def _in_order(manifest: Manifest) -> list[UnitRecord]:
    return sorted(manifest.units, key=lambda record: record.index)


def _dataset(output: str | Path, manifest: Manifest) -> pads.Dataset:
    return open_output(output).dataset(_in_order(manifest))


def _with_columns(
    dataset: pads.Dataset, texts: Mapping[str, str | None], types: Mapping[str, Kind]
) -> pads.Dataset:
    """The same files with constant columns, but for those that the files hold."""
    kinds = {name: kind for name, kind in types.items() if name not in dataset.schema.names}
    new = partition_values(texts, kinds)
    if not new or not dataset.files:
        return dataset
    terms: list[Any] = [
        pads.field(name).is_null() if value is None else pads.field(name) == value
        for name, value in new.items()
    ]
    return pads.FileSystemDataset.from_paths(
        dataset.files,
        schema=with_partitions(dataset.schema, kinds),
        format=dataset.format,
        filesystem=dataset.filesystem,
        partitions=[reduce(operator.and_, terms)] * len(dataset.files),
    )


def _finished_below(output: str | Path) -> list[str]:
    """The finished outputs below a root of outputs; none of an output itself."""
    if _is_output(output):
        return []
    found = [one for one in outputs_below(str(output)) if _manifest(one)]
    folders = Counter(one.rpartition("/")[0] for one in found if _OF_A_JOB.search(one))
    for folder, count in folders.items():
        if count > 1:
            raise ConfigError(
                f"{folder} holds the scores of {count} jobs, and their Iceberg table says whose "
                "count: read the table, or the folder of one of the jobs"
            )
    return found


def _is_output(output: str | Path) -> bool:
    found = open_output(output)
    with found.errors():
        return found.owner() is not None or found.committed() is not None


def _manifest(output: str) -> Manifest | None:
    found = open_output(output)
    with found.errors():
        return found.committed()


def key_columns(output: str | Path) -> tuple[str, ...]:
    """The key columns of a finished output; ConfigError while it is not finished."""
    return tuple(finished_manifest(output).key_columns)


def bundle_names(output: str | Path) -> tuple[str, ...]:
    """The names of the bundles that have a column beside `score`, of a finished output or root."""
    return tuple(finished_manifest([*_finished_below(output), output][0]).beside)


def finished_manifest(output: str | Path) -> Manifest:
    """The manifest of a finished output; ConfigError while it is not finished."""
    found = open_output(output)
    with found.errors():
        manifest = found.committed()
    if manifest is None:
        raise ConfigError(f"{found.address} holds no finished job: run `dpiframe score` to its end")
    return manifest
