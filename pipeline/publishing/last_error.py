"""`_error.json`: why the last start of a job failed, for whoever looks after it.

It is there from the failure until the job succeeds. Writing it never hides the error itself.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import DpiframeError
from pipeline.publishing.output import Output
from pipeline.redaction import redacted

ERROR_NAME = "_error.json"
MOST_CHARACTERS = 4000

log = logging.getLogger("dpiframe.job")


class LastError(BaseModel):
    """When a job failed, with which exit code, and why; without secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    when: str
    exit_code: int
    error: str
    attempt: str


def note_error(output: Output, attempt: str, error: BaseException) -> None:
    """Write the record, if the output is still that attempt's; what goes wrong is logged."""
    code = error.exit_code if isinstance(error, DpiframeError) else 1
    record = LastError(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        exit_code=code,
        error=redacted(str(error) or type(error).__name__)[:MOST_CHARACTERS],
        attempt=attempt,
    )
    data = (record.model_dump_json() + "\n").encode()
    try:
        owner = output.owner()
        if owner is not None and owner.attempt == attempt:
            output.write(ERROR_NAME, data)
    except (DpiframeError, OSError) as fault:
        log.info("%s of %s is not written: %s", ERROR_NAME, output.address, fault)


def forget_error(output: Output) -> None:
    """Remove the record, if there is one; what goes wrong is logged."""
    try:
        output.remove(ERROR_NAME)
    except (DpiframeError, OSError) as fault:
        log.info("%s of %s is not removed: %s", ERROR_NAME, output.address, fault)


def last_error(output: Output) -> LastError | None:
    """The record; None if there is none that can be read."""
    with contextlib.suppress(OSError, ValidationError), output.open(ERROR_NAME) as file:
        return LastError.model_validate_json(file.read())
    return None
