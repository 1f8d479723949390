"""What a job does to its Iceberg table when its scores are published."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pipeline.config.job import JobConfig
from pipeline.lakehouse.iceberg import Commit, commit_parts, parse_table
from pipeline.publishing.output import Output
from pipeline.publishing.records import Manifest

log = logging.getLogger("dpiframe.job")


def commit_job(
    outputs: Sequence[tuple[Output, Manifest]], whole: Manifest, config: JobConfig
) -> Commit | None:
    """Make the published parts files of `iceberg_table`, in place of those of earlier jobs below
    the same outputs, all in one snapshot; None without a table. Safe to repeat.

    `outputs`: the job's output, or those of its partitions, each with its manifest; `whole`: of
    all of them. Raises ConfigError, ResumableError: the scores are published, the same command
    commits them.
    """
    if config.iceberg_table is None:
        return None
    parts = [(unit.rows, output.path(unit.part)) for output, of in outputs for unit in of.units]
    # A file without rows tells no partition, and is there for the columns if there is no other.
    done = commit_parts(
        parse_table(config.iceberg_table),
        [part for rows, part in parts if rows] or [part for _, part in parts],
        replaces=[output.address.rpartition("/")[0] for output, _ in outputs],
        properties={
            "dpiframe.identity": whole.identity,
            "dpiframe.bundle": whole.bundle_digest,
            "dpiframe.rows": str(whole.rows),
        },
        partition_by=config.partition_by,
    )
    what = "now has" if done.new else "had"
    log.info("%s %s the scores, in snapshot %d", config.iceberg_table, what, done.snapshot)
    return done
