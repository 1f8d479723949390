"""Submits a job to a Ray cluster, follows it to its end, and takes it along when stopped."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from pipeline.cluster.signals import StopRequestedError, StopSignals
from pipeline.deploy.scripts import entrypoint
from pipeline.deploy.settings import Deployment
from pipeline.errors import ConfigError, LockedError, ResumableError
from pipeline.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 1.0
LOST_SECONDS = 60.0  # without an answer of the cluster
START_SECONDS = 180.0  # of a cluster, from its Jobs API to its first node's agent
STOP_SECONDS = 8.0
OVER = ("SUCCEEDED", "FAILED", "STOPPED")


def submit(
    job: Deployment, address: str | None, show: Callable[[str], None], wait: bool = False
) -> int:
    """Run the job there and show its log; returns the exit code of the job.

    The submission has an id made of the job and its date. LockedError if one of that id runs
    already (with `wait` that one is followed); an ended one gives way. ResumableError when the
    cluster does not answer, or after SIGTERM or SIGINT, which stop the job there.
    """
    client = _client(address)
    name, new = job.submission_id, True
    known = next((each for each in client.list_jobs() if each.submission_id == name), None)
    if known is not None and known.status not in OVER:
        if not wait:
            raise LockedError(f"Ray job {name} runs already; --wait follows it")
        new = False
    with StopSignals() as signals:
        try:
            if new:
                if known is not None:
                    client.delete_job(name)
                _submit(client, job, signals)
            return _follow(client, name, signals, show)
        except StopRequestedError as stop:
            _stop(client, name)
            raise ResumableError(
                f"stopped by {stop}, and Ray job {name} with it; submit it again to go on"
            ) from None


def _client(address: str | None) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError(f"{error}; pip install 'ray[default]' to submit Ray jobs") from None
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # a ConnectionError, or what requests raises
        reason = " ".join(str(error).split())
        raise ResumableError(
            f"no Ray answers at {address or 'the usual address'}: {reason}"
        ) from None


def _submit(client: Any, job: Deployment, signals: StopSignals) -> None:
    """Hand the job over; a cluster that is just starting refuses for a while."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            client.submit_job(entrypoint=entrypoint(job), submission_id=job.submission_id)
            return
        except (OSError, RuntimeError) as error:
            if "already exists" in str(error):  # what a request did whose answer was lost
                return
            if time.monotonic() > until:
                raise ResumableError(
                    f"the cluster takes no job: {redacted(str(error))}; submit it again"
                ) from None
        with signals.waiting():
            time.sleep(LOOK_SECONDS)


def _follow(client: Any, name: str, signals: StopSignals, show: Callable[[str], None]) -> int:
    shown, seen = 0, time.monotonic()
    while True:
        with signals.waiting():
            time.sleep(LOOK_SECONDS)
            try:
                info = client.get_job_info(name)
                text = client.get_job_logs(name)
            except (OSError, RuntimeError) as error:
                if "does not exist" in str(error):
                    raise ResumableError(
                        f"the cluster knows nothing of Ray job {name} any more, as after a start "
                        "of its head; submit it again"
                    ) from None
                if time.monotonic() - seen > LOST_SECONDS:
                    raise ResumableError(
                        f"the cluster of Ray job {name} has not answered for {LOST_SECONDS:g} s "
                        f"({type(error).__name__}); start it again and submit again"
                    ) from None
                continue
        seen = time.monotonic()
        if text[shown:]:
            show(text[shown:])
            shown = len(text)
        if info.status in OVER:
            return _exit_code(info)


def _exit_code(info: Any) -> int:
    """Of the driver, where it came to one: a killed one can go on."""
    if info.status == "SUCCEEDED":
        return 0
    code = info.driver_exit_code
    return ResumableError.exit_code if code is None or code < 0 or code > 128 else int(code)


def _stop(client: Any, name: str) -> None:
    until = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(OSError, RuntimeError):
        client.stop_job(name)
        while client.get_job_status(name) not in OVER and time.monotonic() < until:
            time.sleep(0.2)
