"""What becomes of a job's table when its scores are published."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pipeline.config.job import JobConfig
from pipeline.lakehouse.addresses import parse_table
from pipeline.lakehouse.table import Commit, commit_parts
from pipeline.publishing.output import Output
from pipeline.publishing.records import Manifest

log = logging.getLogger("dpiframe.job")


def commit_job(
    outputs: Sequence[tuple[Output, Manifest]], whole: Manifest, config: JobConfig
) -> Commit | None:
    """Make the published parts files of `table`, in place of those of earlier jobs below
    the same outputs, all in one commit; None without a table. Safe to repeat.

    `outputs`: the job's output, or those of its partitions, each with its manifest; `whole`: of
    all of them. Raises ConfigError, ResumableError: the scores are published, the same command
    commits them.
    """
    if config.table is None:
        return None
    done = commit_parts(
        parse_table(config.table),
        _parts(outputs),
        replaces=_places(outputs),
        properties={
            "dpiframe.identity": whole.identity,
            "dpiframe.bundle": whole.bundle_digest,
            "dpiframe.rows": str(whole.rows),
        },
        partition_by=config.partition_by,
    )
    what = "now has" if done.new else "had"
    log.info("%s %s the scores, in version %d", config.table, what, done.version)
    return done


def is_committed(outputs: Sequence[tuple[Output, Manifest]], config: JobConfig) -> bool:
    """Whether `commit_job` would change nothing. Raises ConfigError, ContractError, ResumableError
    where that cannot be told.
    """
    if config.table is None:
        return True
    below = tuple(f"{place}/" for place in _places(outputs))
    files = {file.path for file in parse_table(config.table).files()}
    return {file for file in files if file.startswith(below)} == set(_parts(outputs))


def _parts(outputs: Sequence[tuple[Output, Manifest]]) -> list[str]:
    """The parts that the table gets: a file without rows tells no partition, and is there for the
    columns if there is no other.
    """
    parts = [(unit.rows, output.path(unit.part)) for output, of in outputs for unit in of.units]
    return [part for rows, part in parts if rows] or [part for _, part in parts]


def _places(outputs: Sequence[tuple[Output, Manifest]]) -> list[str]:
    """Below which all files of the table are the job's, or those of jobs that it replaces."""
    return [output.address.rpartition("/")[0] for output, _ in outputs]
