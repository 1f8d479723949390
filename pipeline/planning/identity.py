"""The job identity: two jobs with the same one would publish the same rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.job import JobConfig
from pipeline.planning.inputs import InputFile

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
# Goes up when the same input and configuration would be cut or scored in another way.
_FORMAT = 2

# Keys that change a score, a row or the cut of the output:
#   form, key_columns, carry_columns, field_columns: what is read and copied beside the score
#   unit_rows: the units themselves, and so the names and the contents of the parts; a plan has a
#     number here, as `auto` follows from the input alone
#   on_bad_row, on_bad_id, on_corrupt_file: which rows are scored, and with which row of a table
#   precision: the arithmetic
#   outputs, segments, where: what else is made of a row; which bundle scores it; which files are
#     read; they count where they are set
# Left out, because published units stay right when these change:
#   bundle, bundles, input, partition_base, output: their contents count (digest, files, values of
#     partition columns), not where they lie
#   max_rejected_fraction, overwrite: whether the job may end or begin, not what a row gets
#   device, max_batch, streams, graphs, threads: scores agree within the bound of the precision
#     whatever the device, and a stopped job must be able to go on at another machine
#   date, time_zone: what they stand for is in the files; wait_for, deadline, min_rows: whether the
#     job may begin
#   runner, ray_address, num_scorers, read_in, max_tasks_in_flight, max_read_tasks,
#     object_store_bytes, tracking and its keys, price_per_hour, notify_command, notify_webhook:
#     nothing of the scores
#   label_column, slice_columns, group_column, output_labels: they count as carried columns;
#     table: what is told of the scores
IDENTITY_KEYS = (
    "form",
    "key_columns",
    "carry_columns",
    "unit_rows",
    "on_bad_row",
    "on_bad_id",
    "on_corrupt_file",
    "precision",
)


def job_identity(
    files: Sequence[InputFile],
    bundle_digest: str,
    config: JobConfig,
    partitions: Mapping[str, str] | None = None,
    bundles: Mapping[str, str] | None = None,
    joined: bool = False,
) -> str:
    """Hex sha256 over the input files, the bundle and the keys of `config` that count.

    `bundles`: the digests of the bundles beside it, by name. `joined`: units hold several files.
    `partitions`: the partition columns that the job uses, and their types; they count, and so do
    the files' values.

    A file counts with path, size, modification time (an object: etag) and footer (which fixes its
    row groups).
    """
    hasher = hashlib.sha256()
    head = {
        "format": _FORMAT,
        "bundle": bundle_digest,
        "config": {key: getattr(config, key) for key in IDENTITY_KEYS},
        # A field that is mapped to a column of its own name is like one that is not mapped.
        "field_columns": {k: v for k, v in config.field_columns.items() if k != v},
    }
    # Only where they are used, so that outputs of before keep their identity.
    if config.where is not None:
        head["where"] = config.where
    if bundles:
        head["bundles"] = dict(bundles)
    if config.outputs:
        head["outputs"] = config.outputs
    if config.segments is not None:
        head["segments"] = config.segments.model_dump()
    if joined:
        head["joined"] = True
    if partitions:
        head["partitions"] = dict(partitions)
    hasher.update(_canonical(head))
    for file in files:
        facts: list[Any] = [file.path, file.size, file.etag or file.mtime_ns, file.footer_sha256]
        if partitions:
            facts.append([file.partitions.get(name) for name in partitions])
        hasher.update(_canonical(facts))
    return hasher.hexdigest()


def _canonical(value: Any) -> bytes:
    """The one JSON text of a value, ended by a line break (which JSON text never holds)."""
    return _JSON.encode(value).encode() + b"\n"
