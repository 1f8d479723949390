"""Reading the scores of a finished job the safe way: by its manifest, never by listing files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as pads

from pipeline.errors import ConfigError
from pipeline.publishing.output import open_output
from pipeline.publishing.records import Manifest


def open_scores(output: str | Path) -> pads.Dataset:
    """The published rows of `output`: key and carried columns, `score` (null: rejected).

    Rows lie in the order of the input: by file, then by row. ConfigError while the job is not
    finished.
    """
    manifest = finished_manifest(output)
    records = sorted(manifest.units, key=lambda record: record.index)
    return open_output(output).dataset(records)


def key_columns(output: str | Path) -> tuple[str, ...]:
    """The key columns of a finished output; ConfigError while it is not finished."""
    return tuple(finished_manifest(output).key_columns)


def finished_manifest(output: str | Path) -> Manifest:
    """The manifest of a finished output; ConfigError while it is not finished."""
    found = open_output(output)
    with found.errors():
        manifest = found.committed()
    if manifest is None:
        raise ConfigError(f"{found.address} holds no finished job: run `dpiframe score` to its end")
    return manifest
