"""Many dates of one configuration, each scored by a process of its own.

A date that fails keeps no other from being scored; what is finished is skipped; what was begun is
resumed, as the command of a date is that of a single run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from pipeline.config.dates import moments, parse_moment, time_zone
from pipeline.config.job import JobConfig, load_config
from pipeline.errors import ConfigError, DpiframeError
from pipeline.planning.plan import make_plan
from pipeline.publishing.committed import is_committed
from pipeline.publishing.output import open_output
from pipeline.publishing.partitioned import PartitionedOutput
from pipeline.publishing.verify import success_problems

LOOK_SECONDS = 0.2
MOST_DATES = 100_000
STOPPED = 4  # exit code
STATUS = {0: "scored", 2: "config", 3: "contract", 4: "stopped", 5: "locked"}


class DateResult(BaseModel):
    """What became of a date; `exit_code` is that of its own command, `error` its last words."""

    model_config = ConfigDict(frozen=True)

    date: str
    status: str
    exit_code: int
    rows: int | None = None
    seconds: float = 0.0
    output: str = ""
    error: str = ""


class Backfill(NamedTuple):
    """What to do: the dates of a configuration, `parallel` at a time.

    `command` scores one date, if `--date DATE` is added.
    """

    config: str
    overrides: Sequence[str]
    dates: Sequence[str]
    command: Sequence[str]
    parallel: int = 1


def dates_between(
    config: str, overrides: Sequence[str], first: str, last: str, hourly: bool
) -> list[str]:
    """The dates from `first` to `last`, both included, by the configuration's time zone.

    ConfigError: they are no dates, in the wrong order, too many, or no key asks for them.
    """
    try:
        zone = time_zone(load_config(config, overrides, last_date(first, hourly)).time_zone)
        begin, end = parse_moment(first, zone), parse_moment(last, zone)
        if not hourly and (begin.hour is not None or end.hour is not None):
            raise ValueError("days are scored without --hourly: give dates without hours")
        if (begin.day, begin.hour or 0) > (end.day, 23 if end.hour is None else end.hour):
            raise ValueError(f"--from {begin} comes after --to {end}")
        days = (end.day - begin.day).days + 1
        if days * (24 if hourly else 1) > MOST_DATES:
            raise ValueError(f"{days:,} days are more than a backfill takes ({MOST_DATES:,} runs)")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return [str(moment) for moment in moments(begin, end, hourly)]


def last_date(text: str, hourly: bool) -> str:
    """The same date, with an hour where runs are hourly and it has none, to try it with."""
    if not hourly or "T" in text or text == "last-hour":
        return text
    now = parse_moment(text, time_zone("UTC"))
    return f"{now}T12"  # no zone skips noon


def run_backfill(work: Backfill, on_done: Callable[[DateResult], None]) -> list[DateResult]:
    """Run all dates in order; one result each, in the order of the dates.

    The first SIGINT or SIGTERM stops every running date, resumably, and begins no other.
    """
    waiting, running = deque(work.dates), list[_Run]()
    results: dict[str, DateResult] = {}

    def done(result: DateResult) -> None:
        results[result.date] = result
        on_done(result)

    with _stop_requested() as stopped:
        try:
            while waiting or running:
                while waiting and len(running) < work.parallel and not stopped():
                    date = waiting.popleft()
                    if (known := finished_before(work, date)) is not None:
                        done(known)
                    else:
                        running.append(_Run(work, date))
                if stopped():
                    waiting.clear()
                    for run in running:
                        run.stop()
                for run in [run for run in running if run.has_ended()]:
                    running.remove(run)
                    done(run.result())
                time.sleep(LOOK_SECONDS if running else 0)
        finally:
            for run in running:
                run.stop()
    not_begun = [date for date in work.dates if date not in results]
    for date in not_begun:
        done(DateResult(date=date, status="not begun", exit_code=STOPPED))
    return [results[date] for date in work.dates]


def worst_code(results: Sequence[DateResult]) -> int:
    """The exit code that asks for most: an unknown error, config, contract, stopped, locked, 0."""
    return min((result.exit_code for result in results if result.exit_code), default=0)


def finished_before(work: Backfill, date: str) -> DateResult | None:
    """The result of a date whose output is finished, whole and in its table; None: it must run."""
    config = _config_of(work, date)
    return None if config is None else _finished(config, date, in_table=True)


def _finished(config: JobConfig, date: str, in_table: bool = False) -> DateResult | None:
    """The result of a date whose output is finished and whole, and, if asked, `in_table`."""
    began = time.monotonic()
    try:
        one = not config.partition_by and config.table is None  # output, without a plan
        if one and open_output(config.output).success() is None:
            return None
        plan = make_plan(config)
        output = PartitionedOutput(plan) if plan.parts else open_output(plan.config.output)
        manifest = output.completed(plan.identity)
        if manifest is None or not output.is_whole(manifest, (unit.name for unit in plan.units)):
            return None
        if isinstance(output, PartitionedOutput):
            outputs = output.manifests()
        else:
            outputs = [(output, manifest)]
        for each, of in outputs:  # a crash right after the end may have left it unwritten
            if any(success_problems(of, each.success())):
                return None
        if in_table and not is_committed(outputs, plan.config):
            return None
    except (DpiframeError, OSError):
        return None
    return DateResult(
        date=date,
        status="complete before",
        exit_code=0,
        rows=manifest.rows,
        seconds=time.monotonic() - began,
        output=output.address,
    )


def table(results: Sequence[DateResult]) -> str:
    """The results for people: a line each, then how many of each status."""
    heads = ("date", "status", "exit", "rows", "seconds", "error")
    lines = [
        (
            result.date,
            result.status,
            str(result.exit_code),
            "" if result.rows is None else f"{result.rows:,}",
            f"{result.seconds:.1f}",
            result.error,
        )
        for result in results
    ]
    widths = [max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads) - 1)]
    shown = [
        "  ".join(
            [*(f"{text:<{width}}" for text, width in zip(line, widths, strict=False)), line[-1]]
        )
        for line in (heads, *lines)
    ]
    counts: dict[str, int] = {}
    for result in results:
        counts[result.status] = counts.get(result.status, 0) + 1
    total = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    return "\n".join([*(line.rstrip() for line in shown), f"{len(results):,} dates: {total}"])


class _Run:
    """The process of one date; what it says goes to our stderr, with the date before each line."""

    def __init__(self, work: Backfill, date: str) -> None:
        self.work, self.date = work, date
        self._began = time.monotonic()
        self._error = ""
        self._stopped = False
        # A session of its own: Ctrl-C reaches it through us, once.
        self._process = subprocess.Popen(
            [*work.command, "--date", date],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._echo, args=(self._process.stdout,), name=f"echo {date}", daemon=True
        )
        self._reader.start()

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask the process to stop, once."""
        if not self._stopped and not self.has_ended():
            self._stopped = True
            self._process.send_signal(signal.SIGTERM)

    def result(self) -> DateResult:
        """What became of it."""
        self._reader.join(timeout=2)
        code = self._process.returncode
        code = code if code in STATUS else 1  # also of a process that a signal killed
        killed = self._process.returncode < 0
        config = _config_of(self.work, self.date)
        return DateResult(
            date=self.date,
            status="killed" if killed else STATUS.get(code, "failed"),
            exit_code=STOPPED if killed else code,
            rows=None if code else _rows(self.work, self.date),
            seconds=time.monotonic() - self._began,
            output="" if config is None else config.output,
            error=self._error if code else "",
        )

    def _echo(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith("error: "):
                self._error = line.removeprefix("error: ").strip()
            sys.stderr.write(f"{self.date} | {line}")
            sys.stderr.flush()


def _config_of(work: Backfill, date: str) -> JobConfig | None:
    try:
        return load_config(work.config, work.overrides, date)
    except DpiframeError:
        return None


def _rows(work: Backfill, date: str) -> int | None:
    """The rows of a date that has just been finished."""
    config = _config_of(work, date)
    found = None if config is None else _finished(config, date)
    return None if found is None else found.rows


@contextmanager
def _stop_requested() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came, inside the block. Main thread only, else never."""
    asked = threading.Event()
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
