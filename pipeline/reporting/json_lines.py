"""Events of a job as JSON lines on standard error: `--log-format json`.

Every line has `time`, `level`, `event` and `message`; what else it has depends on the event alone
(docs/operations.md). Whatever this package logs becomes a line, warnings included.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from pipeline.redaction import redacted_data

ROOT = logging.getLogger("dpiframe")
log = logging.getLogger("dpiframe.job")


class JsonLines(logging.Handler):
    """Writes a log record as one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line; a closed stream must not stop the job."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.levelname.lower()),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        try:
            self.stream.write(json.dumps(redacted_data(line)) + "\n")
            self.stream.flush()
        except (OSError, ValueError):
            return


def log_as_json(stream: TextIO | None = None) -> None:
    """From here on events and warnings are JSON lines on `stream` (default: standard error)."""
    ROOT.handlers = [JsonLines(stream or sys.stderr)]
    ROOT.setLevel(logging.INFO)
    ROOT.propagate = False


def logs_json() -> bool:
    """Whether events are JSON lines, so that nothing else belongs on standard error."""
    return any(isinstance(handler, JsonLines) for handler in ROOT.handlers)


def tell(event: str, message: str, **fields: Any) -> None:
    """Log an event, which as text nobody sees."""
    level = logging.ERROR if event == "error" else logging.INFO
    log.log(level, "%s", message, extra={"event": event, "fields": fields})
