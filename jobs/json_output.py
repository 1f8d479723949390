"""What commands with `--json` and `--log-format json` share: errors are JSON, too."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click


def print_json(data: dict[str, Any]) -> None:
    """One JSON object, alone on standard output."""
    click.echo(json.dumps(data))


@contextlib.contextmanager
def errors_as_json(on_stdout: bool, as_event: bool = False) -> Iterator[None]:
    """An error inside the block is told as JSON: on standard output as the command's one object, or
    as an event of the log; the exit code stays what it is.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, click.ClickException) or not (on_stdout or as_event):
            raise
        from pipeline.reporting.failures import failure
        from pipeline.reporting.json_lines import tell

        data = failure(error)
        if on_stdout:
            print_json(data)
        if not as_event:
            raise
        message = data.pop("message")
        tell("error", message, **data)
        sys.exit(data["exit_code"])
