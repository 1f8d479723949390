"""What a job does to its Iceberg table when its scores are published."""

from __future__ import annotations

import logging

from pipeline.config.job import JobConfig
from pipeline.lakehouse.iceberg import Commit, commit_parts, parse_table
from pipeline.publishing.output import Output
from pipeline.publishing.records import Manifest

log = logging.getLogger("dpiframe.job")


def commit_job(output: Output, manifest: Manifest, config: JobConfig) -> Commit | None:
    """Make the published parts files of `iceberg_table`, in place of those of earlier jobs below
    the same output; None without a table. Safe to repeat.

    Raises ConfigError, ResumableError: the scores are published, the same command commits them.
    """
    if config.iceberg_table is None:
        return None
    done = commit_parts(
        parse_table(config.iceberg_table),
        [output.path(unit.part) for unit in manifest.units],
        replaces=output.address.rpartition("/")[0],
        properties={
            "dpiframe.identity": manifest.identity,
            "dpiframe.bundle": manifest.bundle_digest,
            "dpiframe.rows": str(manifest.rows),
        },
    )
    what = "now has" if done.new else "had"
    log.info("%s %s the scores, in snapshot %d", config.iceberg_table, what, done.snapshot)
    return done
