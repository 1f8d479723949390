"""The errors of a job, each with the exit code of the command line that reports it, and those of
a unit, of which the driver makes an error of the job.
"""

from __future__ import annotations

from typing import Literal


class DpiframeError(Exception):
    """Base of every error that a job reports by itself; exit code 1."""

    exit_code = 1


class ConfigError(DpiframeError):
    """The job is described wrongly: config key or value, bundle, output of another job."""

    exit_code = 2


class ContractError(DpiframeError):
    """The input breaks the contract: columns, types, ids, keys, corrupt or changed files."""

    exit_code = 3


class ResumableError(DpiframeError):
    """The job stopped through no fault of its input; the same command resumes it."""

    exit_code = 4


class LockedError(DpiframeError):
    """Another job is writing this output."""

    exit_code = 5


ErrorKind = Literal[
    "removed",
    "changed",
    "corrupt",
    "bad_row",
    "io",
    "storage",
    "memory",
    "bundle",
    "gpu_lost",
    "superseded",
    "internal",
]

# Why a unit failed -> the error, and so the exit code, of the job.
JOB_ERRORS: dict[ErrorKind, type[DpiframeError]] = {
    "removed": ContractError,
    "changed": ContractError,
    "corrupt": ContractError,
    "bad_row": ContractError,
    "io": ResumableError,
    "storage": ResumableError,
    "memory": ResumableError,
    "bundle": ConfigError,
    "gpu_lost": ResumableError,
    "superseded": LockedError,
    "internal": DpiframeError,
}


class UnitFailedError(Exception):
    """A unit cannot be read, scored or published; `kind` says why."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
