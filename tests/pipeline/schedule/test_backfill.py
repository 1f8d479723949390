"""Backfills of commands that only end as they are told; the true one runs in a slow test."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from job_cases import encoded_table, job_keys, tiny_bundle

from pipeline.config.job import load_config
from pipeline.errors import ConfigError
from pipeline.schedule.backfill import (
    Backfill,
    DateResult,
    dates_between,
    run_backfill,
    table,
    worst_code,
)
from pipeline.scoring.job import run_job

# Says a line, notes that it began, and ends with the day of its date as exit code.
SCRIPT = """
echo scoring $2; echo $2 >> {folder}/began; day=${{2#*-*-}}
[ $day = 3 ] || [ $day = 03 ] && echo "error: the input is bad"
exit ${{day#0}}
"""


def config_of(folder: Path, **keys: object) -> str:
    path = folder / "job.yaml"
    keys = {"input": f"{folder}/in/{{date}}", "output": f"{folder}/out/{{date}}"} | keys
    path.write_text(yaml.safe_dump(job_keys(folder, **keys)))
    return str(path)


def run(folder: Path, dates: Sequence[str], script: str, parallel: int = 1) -> list[DateResult]:
    command = ["sh", "-c", script.format(folder=folder), "sh"]
    work = Backfill(config_of(folder), [], dates, command, parallel)
    told: list[DateResult] = []
    results = run_backfill(work, told.append)
    assert sorted(told, key=lambda result: result.date) == results
    return results


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_failing_date_stops_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], parallel: int
) -> None:
    dates = [f"2026-11-0{day}" for day in (2, 3, 4, 5, 6)]
    results = run(tmp_path, dates, SCRIPT, parallel)
    codes = {result.date[-1]: (result.exit_code, result.status) for result in results}
    assert codes == {
        "2": (2, "config"),
        "3": (3, "contract"),
        "4": (4, "stopped"),
        "5": (5, "locked"),
        "6": (1, "failed"),
    }
    assert worst_code(results) == 1
    assert "2026-11-03 | error: the input is bad" in capfd.readouterr().err
    shown = table(results)
    assert "2026-11-03  contract  3" in shown
    assert "the input is bad" in shown
    assert shown.endswith("5 dates: 1 config, 1 contract, 1 stopped, 1 locked, 1 failed")


def test_the_worst_code() -> None:
    def worst(*codes: int) -> int:
        return worst_code([DateResult(date="", status="", exit_code=code) for code in codes])

    assert [worst(), worst(0, 0), worst(0, 4), worst(5, 4), worst(4, 2, 3)] == [0, 0, 4, 4, 2]


def test_a_signal_stops_what_runs_and_begins_no_other(tmp_path: Path) -> None:
    script = "trap 'kill $!; exit 4' TERM; touch {folder}/began; sleep 60 & wait"
    pid = os.getpid()

    def interrupt() -> None:
        while not (tmp_path / "began").exists():
            threading.Event().wait(0.05)
        os.kill(pid, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    results = run(tmp_path, ["2026-11-01", "2026-11-02", "2026-11-03"], script)
    assert [result.status for result in results] == ["stopped", "not begun", "not begun"]
    assert worst_code(results) == 4


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    for day in (1, 2):
        (tmp_path / f"in/2026-11-0{day}").mkdir(parents=True)
        pq.write_table(encoded_table(0), tmp_path / f"in/2026-11-0{day}/x.parquet")
    config = config_of(tmp_path, min_rows=0)
    run_job(load_config(config, date="2026-11-01"))
    command = ["sh", "-c", f"echo $2 >> {tmp_path}/began; exit 4", "sh"]
    dates = dates_between(config, [], "2026-11-01", "2026-11-02", hourly=False)
    results = run_backfill(Backfill(config, [], dates, command), lambda _: None)
    assert [result.status for result in results] == ["complete before", "stopped"]
    assert results[0].rows == 0
    assert (tmp_path / "began").read_text() == "2026-11-02\n"


@pytest.mark.parametrize(
    ("first", "last", "hourly", "problem"),
    [
        ("2026-11-02", "2026-11-01", False, "comes after"),
        ("2026-11-02T05", "2026-11-02", False, "every hour of a day would be the same"),
        ("2026-11-02", "2026-11-02T05", False, "give dates without hours"),
        ("2026-11-02", "tomorrow", False, "a date must look like"),
        ("2026-11-01", "2026-11-01", True, "every hour of a day would be the same"),
        ("0001-01-01", "9999-01-01", False, "more than a backfill takes"),
    ],
)
def test_dates_that_are_none(
    tmp_path: Path, first: str, last: str, hourly: bool, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        dates_between(config_of(tmp_path), [], first, last, hourly)
    assert problem in str(caught.value)


def test_hours_are_those_of_the_zone(tmp_path: Path) -> None:
    config = config_of(tmp_path, output="o/{date}/{hour}", time_zone="Europe/Berlin")
    dates = dates_between(config, [], "2026-03-28T23", "2026-03-29", hourly=True)
    assert dates[:4] == ["2026-03-28T23", "2026-03-29T00", "2026-03-29T01", "2026-03-29T03"]
    assert len(dates) == 24
