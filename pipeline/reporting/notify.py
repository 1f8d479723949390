"""Tells somebody how a job ended: a command gets the JSON summary on standard input, an address by
POST. Neither changes the outcome, whatever becomes of it; both together take at most `seconds`.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from pipeline.redaction import redacted

NOTIFY_SECONDS = 5.0
# After a stop signal, when everything must fit into ten seconds.
NOTIFY_SECONDS_STOPPED = 2.0

log = logging.getLogger("dpiframe.job")


def notify(
    summary: dict[str, Any], command: str | None, webhook: str | None, seconds: float
) -> None:
    """Run the command and call the webhook with the summary, both at one time; log what fails."""
    text = json.dumps(summary).encode()
    threads = []
    if command:
        threads.append(threading.Thread(target=_run, args=(command, text, summary, seconds)))
    if webhook:
        threads.append(threading.Thread(target=_post, args=(webhook, text, seconds), daemon=True))
    until = time.monotonic() + seconds + 0.5
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            log.warning("notification: no end within %g s, it is left", seconds)


def _run(command: str, text: bytes, summary: dict[str, Any], seconds: float) -> None:
    environment = os.environ | {
        "DPIFRAME_STATUS": str(summary["status"]),
        "DPIFRAME_EXIT_CODE": str(summary["exit_code"]),
    }
    try:
        done = subprocess.run(
            shlex.split(command),
            input=text,
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.warning("notify_command took more than %g s and was ended", seconds)
    except (OSError, ValueError) as error:
        log.warning("notify_command did not start: %s", redacted(str(error)))
    else:
        if done.returncode:
            said = redacted(done.stderr.decode(errors="replace").strip()[-200:])
            log.warning("notify_command ended with exit code %d: %s", done.returncode, said)


def _post(address: str, text: bytes, seconds: float) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "dpiframe"}
    request = urllib.request.Request(address, data=text, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        log.warning("notify_webhook answered %d", error.code)
    except Exception as error:  # of http.client, too; their texts may hold the address
        log.warning("notify_webhook cannot be reached: %s", type(error).__name__)
