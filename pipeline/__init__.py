"""Scoring jobs in Python: `score(config)` is `dpiframe score` as a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.job import JobConfig
    from pipeline.scoring.job import JobResult

__all__ = ["score"]


def score(
    config: str | Path | Mapping[str, Any] | JobConfig,
    overrides: Sequence[str] = (),
    date: str | None = None,
) -> JobResult:
    """Run a scoring job and return its summary: rows, scored, rejected, seconds, rows/s, run id.

    `config`: a YAML file, the same keys as a mapping, or a JobConfig; `overrides`: `key=value`
    texts and `date` as on the command line. Calling it again finishes a job that was stopped.

    Raises the errors of `pipeline.errors`, whose `exit_code` is that of the command: ConfigError
    (2), ContractError (3), ResumableError (4; also for SIGTERM and SIGINT, which are honoured in
    the main thread while the job runs), LockedError (5).
    """
    from pipeline.config.job import load_config
    from pipeline.scoring.job import run_job

    return run_job(load_config(config, overrides, date))
