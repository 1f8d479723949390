"""A scoring job in a process of its own, so that a test can kill what it likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from job_cases import (
    read_scores,
    reference_scores,
    stamps,
    tiny_bundle,
    write_config,
    write_shards,
)

from pipeline.config.job import load_config
from pipeline.publishing.records import OutputLayout, UnitRecord, read_json
from pipeline.publishing.verify import verify_output
from pipeline.scoring.job import run_job

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from jobs.cli import main; main()"]
SECONDS = 120
ATOL = 1e-5  # of a score against float64's


class Case:
    """A folder with a model and shards of 1,000 rows, each of 50 units of 20 rows, or others."""

    def __init__(
        self, folder: Path, address: str, shards: int = 4, rows: int = 1000, **keys: Any
    ) -> None:
        self.folder, self.output = folder, folder / "output"
        self.layout = OutputLayout(self.output)
        self.model = tiny_bundle(folder / "bundle")
        self.table: pa.Table = write_shards(folder / "input", shards, rows, rows // 50)
        keys = {"unit_rows": rows // 50} | keys
        self.config = write_config(folder, ray_address=address, **keys)

    def start(self, *overrides: str, environment: dict[str, str] | None = None) -> RunningJob:
        """Start the command line on this case; `environment`: more variables."""
        command = [*COMMAND, "score", str(self.config), *overrides]
        return RunningJob(command, self, os.environ | (environment or {}))

    def finish(self) -> None:
        """Run the job to its end in this process, on the Ray of the tests."""
        assert run_job(load_config(self.config)).status == "scored"

    def finished(self) -> bool:
        """Whether the job has ended with success."""
        return self.layout.success.exists()

    def published(self) -> dict[str, tuple[int, int]]:
        """Stamps of the parts whose units are published (their records exist)."""
        # Those of other parts are not asked for: a start removes what a killed one left.
        units = {path.stem for path in self.layout.units.glob("u*.json")}
        return stamps(self.output, lambda name: name[5:-8] in units)

    def scorer_pids(self) -> set[int]:
        """Processes that published the units so far."""
        records = [read_json(path, UnitRecord) for path in self.layout.units.glob("u*.json")]
        return {int(record.scorer.rpartition(":")[2]) for record in records if record}

    def faults(self, untouched: dict[str, tuple[int, int]]) -> dict[str, int]:
        """What is wrong with a finished output: rows that are lost or doubled or have another
        score, parts of these that were rewritten, files left over, and what else `verify` finds.
        """
        problems = verify_output(self.output).problems  # it tidies the output first
        found = read_scores(self.output)
        rows = found.column("row_id").to_numpy()  # 0, 1, ... in the input
        keys, counts = np.unique(rows, return_counts=True)
        right = reference_scores(self.model, self.table)
        error = np.abs(found.column("score").to_numpy() - right[rows])
        now = stamps(self.output)
        known = {"_SUCCESS", "_config.yaml", "_identity.json", "_manifest.json"}
        names = {path.name for path in self.output.iterdir()} - set(now) - known
        return {
            "lost": len(right) - len(keys),
            "doubled": int((counts - 1).sum()),
            "wrong": int((~(error <= ATOL)).sum()),
            "rewritten": sum(now.get(name) != stamp for name, stamp in untouched.items()),
            "left_over": len(names),
            "problems": len(problems),
        }

    def check_finished(self, untouched: dict[str, tuple[int, int]]) -> None:
        """Nothing is lost, nothing is there twice, and these parts were not rewritten."""
        assert verify_output(self.output).problems == []
        found = read_scores(self.output)
        assert found.column("row_id").equals(self.table.column("row_id"))
        expected = reference_scores(self.model, self.table)
        np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=ATOL)
        now = stamps(self.output)
        assert {name: now[name] for name in untouched} == untouched
        assert not list(self.output.glob(".*"))


class RunningJob:
    """Context manager over the process; whatever is left of it is killed at the end."""

    def __init__(self, command: list[str], case: Case, environment: dict[str, str]) -> None:
        self.case = case
        self.log = case.folder / f"log-{time.monotonic_ns()}.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def wait_units(self, count: int) -> None:
        """Wait until so many units are published."""
        wait_for(lambda: self.ended() or len(self.case.published()) >= count, f"{count} units")
        assert not self.ended(), self.text()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL the driver alone, as the kernel does when memory is short."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)

    def wait(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise HangError(f"waited {SECONDS} s for the job to end\n{self.text()}") from None

    def text(self) -> str:
        """What the job printed."""
        return self.log.read_text()


class HangError(AssertionError):
    """Something did not come in time."""


def wait_for(
    condition: Callable[[], bool],
    what: str | Callable[[], str],
    seconds: float = SECONDS,
    poll: float = 0.005,
) -> None:
    """Poll until the condition holds; HangError after so many seconds, of `what` is true then."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise HangError(f"waited {seconds} s for {what if isinstance(what, str) else what()}")
        time.sleep(poll)


def ray_workers(name: str) -> list[psutil.Process]:
    """Workers below this process (its Ray) whose title says that they run `name`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[0].startswith(f"ray::{name}"):
                found.append(process)
        except (psutil.NoSuchProcess, IndexError):
            continue
    return found
