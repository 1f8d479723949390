"""What became of the outputs below a root: finished, running, resumable, failed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.errors import ConfigError, DpiframeError
from pipeline.publishing.last_error import last_error
from pipeline.publishing.output import Output, open_output
from pipeline.publishing.output_tree import outputs_below
from pipeline.publishing.records import IdentityFile, UnitRecord
from pipeline.schedule.waiting import file_of

# A lock whose heartbeat is older than that belongs to a job that is dead.
HEARTBEAT_SECONDS = 60.0
THREADS = 8

State = Literal["done", "running", "resumable", "failed", "unreadable"]


class OutputStatus(BaseModel):
    """One output. Seconds and rates are estimates; `error` is that of the last start that failed.

    `rows_done`, of `rows`: published ones. `when`: the end of a job that is done, the failure of
    one that failed. `rows_per_s`: since the start of the job that runs.
    """

    model_config = ConfigDict(frozen=True)

    output: str
    state: State
    date: str | None = None
    rows: int | None = None
    rows_done: int | None = None
    when: str | None = None
    owner: str | None = None
    heartbeat_s: float | None = None
    rows_per_s: float | None = None
    seconds_left: float | None = None
    exit_code: int | None = None
    error: str | None = None


def status_of(root: str) -> list[OutputStatus]:
    """Every output at or below a folder or an address, by name. ConfigError: there is none."""
    found = outputs_below(root)
    if not found:
        raise ConfigError(f"{root} holds no output of a job, at any depth")
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(output_status, found))


def output_status(address: str) -> OutputStatus:
    """The status of one output."""
    try:
        return _status(open_output(address))
    except (DpiframeError, OSError) as error:
        return OutputStatus(output=address, state="unreadable", error=str(error))


def table(found: Sequence[OutputStatus]) -> str:
    """The outputs for people: a line each, then how many of each state."""
    width = max(len(each.output) for each in found)
    lines = [f"{each.output:<{width}}  {each.state:<10} {_words(each)}".rstrip() for each in found]
    counts: dict[str, int] = {}
    for each in found:
        counts[each.state] = counts.get(each.state, 0) + 1
    total = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    return "\n".join([*lines, f"{len(found):,} outputs: {total}"])


def _status(output: Output) -> OutputStatus:
    owner = output.owner()
    date = None if owner is None else owner.config.get("date")
    success = output.success()
    if success is not None:
        when = _iso(file_of(output.path("_SUCCESS")).changed_ns)
        return OutputStatus(
            output=output.address,
            state="done",
            date=date,
            rows=success.rows,
            rows_done=success.rows,
            when=when,
        )
    rows, records = (owner.rows if owner else None), list(_records(output, owner))
    common: dict[str, Any] = {
        "output": output.address,
        "date": date,
        "rows": rows,
        "rows_done": sum(record.rows for record in records),
    }
    lock = _lock(output)
    if lock is not None and lock["heartbeat_s"] <= HEARTBEAT_SECONDS and lock.pop("alive"):
        since = lock.pop("since")
        return OutputStatus(state="running", **common, **lock, **_speed(records, rows, since))
    error = last_error(output)
    if error is not None:
        told = error.model_dump(include={"when", "exit_code", "error"})
        return OutputStatus(state="failed", **common, **told)
    return OutputStatus(state="resumable", **common)


def _records(output: Output, owner: IdentityFile | None) -> Iterator[UnitRecord]:
    """The units that are published, as far as their records can be read."""
    names = [name for name in output.sizes() if name.startswith("_units/u")] if owner else []

    def read(name: str) -> UnitRecord | None:
        try:
            with output.open(name) as file:
                return UnitRecord.model_validate_json(file.read())
        except (OSError, ValueError):
            return None

    with ThreadPoolExecutor(output.readers) as pool:
        yield from (record for record in pool.map(read, names) if record is not None)


def _lock(output: Output) -> dict[str, Any] | None:
    """Who holds the lock, as its file tells, which is only looked at."""
    try:
        with output.open("_lock") as file:
            owner = json.loads(file.read())
        age = max(0.0, time.time() - file_of(output.path("_lock")).changed_ns / 1e9)
        here = owner["host"] == socket.gethostname()
        return {
            "owner": f"process {owner['pid']} on host {owner['host']} (since {owner['started']})",
            "heartbeat_s": age,
            "alive": not here or Path(f"/proc/{int(owner['pid'])}").exists(),
            "since": datetime.fromisoformat(owner["started"]).timestamp(),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _speed(records: Sequence[UnitRecord], rows: int | None, since: float) -> dict[str, Any]:
    """Rows a second since the job started, and what is left at that speed."""
    fresh = sum(record.rows for record in records if record.started >= since)
    seconds = time.time() - since
    if not fresh or seconds <= 0 or rows is None:
        return {}
    rate = fresh / seconds
    return {
        "rows_per_s": rate,
        "seconds_left": (rows - sum(record.rows for record in records)) / rate,
    }


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


def _words(each: OutputStatus) -> str:
    rows = "" if each.rows is None else f"{each.rows:,} rows"
    if each.state == "done":
        return f"{rows}, {each.when}"
    part = f"{each.rows_done or 0:,} of {rows}"
    if each.state == "running":
        speed = ""
        if each.rows_per_s is not None and each.seconds_left is not None:
            speed = f", {each.rows_per_s:,.0f} rows/s, {each.seconds_left:,.0f} s left"
        return f"{part}{speed}, by {each.owner}, heartbeat {each.heartbeat_s:.0f} s ago"
    if each.state == "failed":
        return f"{part}, {each.when}, exit code {each.exit_code}: {each.error}"
    return part if each.state == "resumable" else str(each.error)
