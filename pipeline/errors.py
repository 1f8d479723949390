"""The errors of a job, each with the exit code of the command line that reports it."""


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
    """The job stopped through no fault of its input; the same command goes on where it stopped."""

    exit_code = 4


class LockedError(DpiframeError):
    """Another job is writing this output."""

    exit_code = 5
