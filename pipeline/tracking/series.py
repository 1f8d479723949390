"""The throughput series of a running job: few points, however long it runs."""

from __future__ import annotations

FIRST_INTERVAL_S = 2.0
POINTS_AN_INTERVAL = 128  # then the interval doubles: 10 hours give fewer than 1,000 points


class Progress:
    """Rows done over time, thinned to one point an interval. Times are of one monotonic clock."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.rows = 0
        self._interval = FIRST_INTERVAL_S
        self._points = 0
        self._last_time = begin
        self._last_rows = 0

    def add(self, rows: int, now: float) -> dict[str, float] | None:
        """Count rows; returns a point when one is due."""
        self.rows += rows
        return self.last(now) if now - self._last_time >= self._interval else None

    def last(self, now: float) -> dict[str, float] | None:
        """The point of this moment, None when nothing came since the one before."""
        seconds, rows = now - self._last_time, self.rows - self._last_rows
        if rows == 0 or seconds <= 0:
            return None
        self._last_time, self._last_rows = now, self.rows
        self._points += 1
        if self._points % POINTS_AN_INTERVAL == 0:
            self._interval *= 2
        return {"progress_rows": float(self.rows), "progress_rows_per_second": rows / seconds}
