"""The JSON summary of what failed; `JobResult.summary` is that of a job that did not."""

from __future__ import annotations

from typing import Any

from pipeline.errors import LockedError, ResumableError
from pipeline.redaction import redacted

STATUS = {ResumableError.exit_code: "stopped", LockedError.exit_code: "locked"}


def failure(error: BaseException) -> dict[str, Any]:
    """Exit code, status (failed, stopped, locked), class of the error, message."""
    code = getattr(error, "exit_code", 1)
    if isinstance(error, KeyboardInterrupt):
        code = ResumableError.exit_code
    return {
        "exit_code": code,
        "status": STATUS.get(code, "failed"),
        "error": type(error).__name__,
        "message": redacted(str(error)) or "interrupted",
    }
