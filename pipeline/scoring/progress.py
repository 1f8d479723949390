"""Progress of a job: one updating line on a terminal, a plain line every few seconds in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TextIO

from pipeline.reporting.json_lines import logs_json, tell

TERMINAL_SECONDS = 0.5
LOG_SECONDS = 10.0


class Progress:
    """Context manager that prints rows done, rows/s and the time left while units finish."""

    def __init__(
        self,
        total_rows: int,
        done_rows: int,
        total_units: int,
        done_units: int,
        stream: TextIO | None = None,
    ) -> None:
        """`done_rows`, `done_units`: published by an earlier start; they do not count as speed."""
        self.total_rows, self.total_units = total_rows, total_units
        self.start_rows = self.rows = done_rows
        self.units = done_units
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty() and not logs_json()
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2)
        self._print(end="\n")

    def unit_done(self, rows: int) -> None:
        """Count one finished unit."""
        self.rows += rows
        self.units += 1

    def line(self, seconds: float) -> str:
        """The state after so many seconds, in one line."""
        speed = (self.rows - self.start_rows) / seconds if seconds > 0 else 0.0
        percent = 100 * self.rows / self.total_rows if self.total_rows else 100.0
        left = clock((self.total_rows - self.rows) / speed) if speed else "?"
        return (
            f"{percent:5.1f}%  {self.rows:,} of {self.total_rows:,} rows  "
            f"{self.units:,} of {self.total_units:,} units  {speed:,.0f} rows/s  "
            f"{clock(seconds)} elapsed  {left} left"
        )

    def facts(self, seconds: float) -> dict[str, float | None]:
        """The same as numbers."""
        speed = (self.rows - self.start_rows) / seconds if seconds > 0 else 0.0
        return {
            "rows": self.rows,
            "total_rows": self.total_rows,
            "units": self.units,
            "total_units": self.total_units,
            "rows_per_s": round(speed, 1),
            "elapsed_s": round(seconds, 1),
            "left_s": round((self.total_rows - self.rows) / speed, 1) if speed else None,
        }

    def _tick(self) -> None:
        while not self._stop.wait(TERMINAL_SECONDS if self.terminal else LOG_SECONDS):
            self._print(end="" if self.terminal else "\n")

    def _print(self, end: str) -> None:
        seconds = time.monotonic() - self._started
        if logs_json():
            tell("progress", self.line(seconds), **self.facts(seconds))
            return
        text = self.line(seconds)
        # Carriage return and "clear to the end of the line" keep one line on a terminal.
        with contextlib.suppress(OSError):  # a closed terminal must not stop the job
            self.stream.write(f"\r{text}\x1b[K{end}" if self.terminal else f"{text}{end}")
            self.stream.flush()


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
