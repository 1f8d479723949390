"""Reading the scores of a finished job the safe way: by its manifest, never by listing files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as pads

from pipeline.errors import ConfigError
from pipeline.publishing.records import Manifest, OutputLayout, read_json


def open_scores(output: str | Path) -> pads.Dataset:
    """The published rows of `output`: key and carried columns, `score` (null: rejected).

    Rows lie in the order of the input: by file, then by row. ConfigError while the job is not
    finished.
    """
    layout = OutputLayout(output)
    manifest = read_json(layout.manifest, Manifest)
    if manifest is None or not layout.success.exists():
        raise ConfigError(f"{layout.root} holds no finished job: run `dpiframe score` to its end")
    records = sorted(manifest.units, key=lambda record: record.index)
    return pads.dataset([str(layout.root / record.part) for record in records], format="parquet")
