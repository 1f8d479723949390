"""Jobs that start together on one output: one of them writes it, the others say so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_cases import read_scores, tiny_bundle, write_shards
from running_job import ROOT, Case

from pipeline.publishing.verify import verify_output

RACES = 10  # of each kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its input."""
    folder = tmp_path_factory.mktemp("races")
    tiny_bundle(folder / "bundle")
    write_shards(folder / "input", 1, 80, 20)
    return folder


@pytest.fixture(scope="module")
def racers(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready to do jobs at a word."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), *sys.path])
    command = [sys.executable, str(ROOT / "tests/helpers/racer.py"), str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": paths}
    found = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
    for racer in found:
        assert racer.stdout.readline() == "ready\n"
    yield found
    for racer in found:
        racer.stdin.close()
        assert racer.wait(30) == 0


def race(racers: list[subprocess.Popen[str]], output: Path, sizes: tuple[int, int]) -> list[str]:
    """Give both the word at once; how each ended."""
    for racer, rows in zip(racers, sizes, strict=True):
        racer.stdin.write(f"{output} {rows}\n")
        racer.stdin.flush()
    return sorted(racer.stdout.readline().strip() for racer in racers)


# Exit code 5: locked, 2: belongs to another job.
@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ((20, 20), {("5", "scored"), ("complete", "scored")}),
        ((20, 40), {("5", "scored"), ("2", "scored")}),
    ],
    ids=["same", "different"],
)
def test_two_jobs_that_start_together(
    folder: Path,
    racers: list[subprocess.Popen[str]],
    sizes: tuple[int, int],
    ends: set[tuple[str, str]],
) -> None:
    seen: Counter[tuple[str, ...]] = Counter()
    for number in range(RACES):
        output = folder / f"output-{sizes[1]}-{number}"
        seen[tuple(race(racers, output, sizes))] += 1

        assert verify_output(output).problems == []
        assert read_scores(output).column("row_id").to_pylist() == list(range(80))
        assert not (output / "_lock").exists()
    assert set(seen) <= ends
    assert seen["5", "scored"] > 0


def test_two_commands_that_start_together(tmp_path: Path, ray_session: str) -> None:
    case = Case(tmp_path, ray_session, shards=1)
    with case.start() as one, case.start() as other:
        codes = sorted([one.wait(), other.wait()])
    assert codes in ([0, 5], [0, 0])

    case.check_finished({})
