"""Workers: the processes that count the parts of an evaluation.

They share nothing but files, so that they are as many times as fast as they are cores. Where there
are few rows, starting them takes longer than counting: then this process counts alone.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ResumableError
from pipeline.evaluation.grouped_rows import PARTS, GroupSummary, summary
from pipeline.evaluation.labels import LabelsInOrder
from pipeline.evaluation.part_counter import Handed, OutputRows, Part, PartCounter, Setup
from pipeline.evaluation.question import Question
from pipeline.own_module import own_module

ROWS_IN_MEMORY = 1 << 25  # by group, 12 bytes each; of all workers
STOP_SECONDS = 10.0


@contextlib.contextmanager
def start_workers(
    number: int, question: Question, score: str, labels: LabelsInOrder | None = None
) -> Iterator[Workers]:
    """So many workers, until the end of the context. OSError: a process cannot be started."""
    if number == 1:
        with one_worker(question, score, labels) as worker:
            yield worker
        return
    with _folder(question) as folder, contextlib.ExitStack() as closing:
        memory = ROWS_IN_MEMORY // number
        setups = [Setup(question, score, labels, folder / str(n), memory) for n in range(number)]
        yield Processes([closing.enter_context(_started(setup)) for setup in setups])


@contextlib.contextmanager
def one_worker(
    question: Question, score: str, labels: LabelsInOrder | None = None
) -> Iterator[ThisProcess]:
    """This process as a worker."""
    with _folder(question) as folder:
        yield ThisProcess(Setup(question, score, labels, folder / "0", ROWS_IN_MEMORY))


@contextlib.contextmanager
def _folder(question: Question) -> Iterator[Path]:
    """Where rows by group may lie, if they are asked for."""
    if question.group is None:
        yield Path()
        return
    folder = Path(tempfile.mkdtemp(prefix="dpiframe-groups-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ThisProcess:
    """One worker: this process."""

    def __init__(self, setup: Setup) -> None:
        self._counter = PartCounter(setup)

    def count(self, parts: Iterator[Part], outputs: Sequence[OutputRows]) -> Iterator[Handed]:
        """Count parts; gives tallies, each part in one of them, now and then and at the end."""
        for part in parts:
            self._counter.open(part.output, outputs[part.output])
            yield from self._counter.read(part)[1]
        yield from self._counter.hand_over()

    def count_tables(self, tables: Iterator[pa.Table], where: str) -> Iterator[Handed]:
        """The same for tables with labels, which are from `where`."""
        for table in tables:
            self._counter.add(table, where)
        yield from self._counter.hand_over()

    def groups(self) -> GroupSummary:
        """The AUC by group of all parts."""
        pieces = self._counter.pieces(spill=False)
        return summary(self._counter.part_summaries(range(PARTS), pieces) if pieces else [])


class Process:
    """A process with a `PartCounter`, one of whose methods it runs at a time."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        self.connection, self._process = connection, process
        self._opened: set[int] = set()

    def open(self, output: int, outputs: Sequence[OutputRows]) -> None:
        """Make sure that it knows an output. Nothing may be running."""
        if output not in self._opened:
            self.ask("open", output, outputs[output])
            self.answer()
            self._opened.add(output)

    def ask(self, method: str, *args: Any) -> None:
        """Have a method run; `answer` gives what it returned. Nothing may be running."""
        with contextlib.suppress(OSError):  # it has ended, as `answer` will say
            self.connection.send((method, args))

    def answer(self) -> Any:
        """Wait for what was asked; raises what it raised. ResumableError: the process has ended."""
        try:
            error, found = self.connection.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            raise ResumableError(
                f"a process of the evaluation has ended with code {code} (-9: killed, maybe for "
                "memory); run it again, with fewer --workers if memory is short"
            ) from None
        if error is not None:
            raise error
        return found


class Processes:
    """Workers that are processes."""

    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes

    def count(self, parts: Iterator[Part], outputs: Sequence[OutputRows]) -> Iterator[Handed]:
        """As of `ThisProcess`."""
        running: dict[Any, tuple[Process, Part | None]] = {}
        rows = dict.fromkeys(range(len(outputs)), 0)

        def ask_next(worker: Process) -> None:
            part = next(parts, None)
            if part is None:
                worker.ask("hand_over", rows)
            else:
                worker.open(part.output, outputs)
                worker.ask("read", part)
            running[worker.connection] = worker, part

        for worker in self._processes:
            ask_next(worker)
        while running:
            for ready in wait(list(running)):
                worker, part = running.pop(ready)
                found = worker.answer()
                if part is None:  # it has handed over all
                    yield from found
                    continue
                rows[part.output] += found[0]
                ask_next(worker)  # before what it found is counted
                yield from found[1]

    def groups(self) -> GroupSummary:
        """The AUC by group of all parts."""
        found = self._of_all("pieces", [(True,)] * len(self._processes))
        pieces = list(chain.from_iterable(found))
        number = len(self._processes)
        asked = [(range(first, PARTS, number), pieces) for first in range(number)]
        found = self._of_all("part_summaries", asked) if pieces else []
        return summary(chain.from_iterable(found))

    def _of_all(self, method: str, asked: list[tuple[Any, ...]]) -> list[Any]:
        for worker, args in zip(self._processes, asked, strict=True):
            worker.ask(method, *args)
        return [worker.answer() for worker in self._processes]


Workers = ThisProcess | Processes


@contextlib.contextmanager
def _started(setup: Setup) -> Iterator[Process]:
    # Not by multiprocessing, which would run a user's script again, or fork beside threads.
    ours, theirs = Pipe()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [*own_module("pipeline.evaluation.worker"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process
            )
        try:
            ours.send(setup)
            yield Process(ours, process)
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
