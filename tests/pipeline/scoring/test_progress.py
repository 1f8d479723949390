"""Progress lines and stop signals."""

from __future__ import annotations

import io
import os
import signal

import pytest

from pipeline.cluster.signals import StopRequestedError, StopSignals
from pipeline.scoring.progress import Progress, clock


def test_a_line_says_what_is_done_and_what_is_left() -> None:
    progress = Progress(4000, 1000, total_units=4, done_units=1, stream=io.StringIO())

    progress.unit_done(1000)

    assert progress.line(10) == (
        " 50.0%  2,000 of 4,000 rows  2 of 4 units  100 rows/s  0:00:10 elapsed  0:00:20 left"
    )


def test_a_terminal_that_is_gone_does_not_matter() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = io.TextIOWrapper(io.FileIO(write, "w"), write_through=True)
    with Progress(0, 0, 0, 0, stream):
        pass


def test_a_log_gets_whole_lines() -> None:
    stream = io.StringIO()

    with Progress(0, 0, 0, 0, stream):
        pass

    assert stream.getvalue().startswith("100.0%")
    assert stream.getvalue().endswith("left\n")
    assert "\r" not in stream.getvalue()


def test_clock() -> None:
    assert clock(3661.4) == "1:01:01"


def test_a_signal_raises_where_the_job_waits_and_nowhere_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.requested == "SIGTERM"
        with pytest.raises(StopRequestedError, match="SIGTERM"), signals.waiting():
            raise AssertionError("the wait must not begin")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_interrupts_a_wait() -> None:
    with StopSignals() as signals, pytest.raises(StopRequestedError), signals.waiting():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
