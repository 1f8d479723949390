from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from plan_jobs import encoded_table, job, write

from pipeline.errors import ContractError, DpiframeError
from pipeline.planning.footers.footer import CorruptFileError, FooterReader
from pipeline.planning.footers.pool import FILES_PER_CHILD, Unreadable, read_footers
from pipeline.planning.inputs import scan_inputs

ROOT = Path(__file__).resolve().parents[4]
LIMITS = {"C1": (0, 5), "I1": (-0.5, 0.5), "row_id": None, "absent": None}


def crashing(path: Path) -> Path:
    """A parquet file with one wrong byte: the type of column C1's chunk is BOOLEAN, not INT32."""
    content = bytearray(write(path, encoded_table(111)).read_bytes())
    name = content.rindex(b"\x19\x18\x02C1")  # a list of one text: the path of the column
    content[content.rindex(b"\x15\x02\x19", 0, name) + 1] = 0  # the type before it
    path.write_bytes(content)
    return path


def crashes_the_reader(path: Path) -> bool:
    """Whether this version of the parquet library ends a process that reads the file."""
    code = "import sys; from pipeline.planning.footers.footer import FooterReader as R; "
    code += "R({'C1': (0, 5)}).read(sys.argv[1])"
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    return done.returncode == -signal.SIGABRT


def wait_for(condition: Callable[[], object]) -> None:
    """Poll; the machine may be busy."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def workers(process: psutil.Process) -> list[psutil.Process]:
    """Living footer processes of a process."""
    found = []
    for child in process.children():
        with suppress(psutil.Error):  # it ends right now
            if child.status() != psutil.STATUS_ZOMBIE:
                found += [child] if "pipeline.planning.footers.worker" in child.cmdline() else []
    return found


@pytest.fixture(scope="module")
def idle_threads() -> int:
    """Threads of a worker that waits for work: one with more has begun to read."""
    command = [sys.executable, "-m", "pipeline.planning.footers.worker"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe) as worker:
        assert worker.stdout and worker.stdout.readline() == b"ready\n"
        return psutil.Process(worker.pid).num_threads()


def stuck_worker(parent: psutil.Process, idle_threads: int) -> psutil.Process:
    """The one worker of a process, when it waits for a file."""
    wait_for(lambda: [w for w in workers(parent) if w.num_threads() > idle_threads])
    return workers(parent)[0]


def test_many_footers_are_those_that_a_direct_read_gives(tmp_path: Path) -> None:
    tables = [encoded_table(rows) for rows in (1, 19, 111)]
    tables.append(encoded_table(19, C1=pa.array(range(19), pa.int8())))
    tables.append(encoded_table(19, C1=pa.array(["x"] * 19).dictionary_encode()))
    tables.append(encoded_table(19, label=pa.array([[1, 2]] * 19)))
    paths = []
    for i in range(2 * FILES_PER_CHILD + 19):
        path = tmp_path / f"{i:05d}.parquet"
        if i < len(tables):
            write(path, tables[i])
        else:
            path.write_bytes(Path(paths[i - len(tables)]).read_bytes())
        paths.append(str(path))
    before = set(psutil.Process().children())
    footers = read_footers(paths, LIMITS)
    reader = FooterReader(LIMITS)
    assert not footers.bad
    for path in paths:
        assert footers.good[path] == reader.read(path)
    assert len({id(footer.schema) for footer in footers.good.values()}) == 4
    assert any(footer.problems for footer in footers.good.values())
    assert set(psutil.Process().children()) <= before  # no zombie either


def test_no_files_need_no_process() -> None:
    assert read_footers([], {}) == ({}, {})


def test_a_file_that_crashes_the_reader_is_told_as_corrupt(tmp_path: Path) -> None:
    good = [str(write(tmp_path / f"input/{i}.parquet", encoded_table(19))) for i in (1, 3)]
    bad = crashing(tmp_path / "input/2.parquet")
    limits = {"C1": (0, 5)}
    if not crashes_the_reader(bad):  # a mended parquet library tells it, or reads it
        footers = read_footers([good[0], str(bad), good[1]], limits)
        assert set(good) <= set(footers.good)
        return
    reason = r"its footer makes the parquet reader crash \(signal 6, Aborted\)"
    with pytest.raises(ContractError, match=rf"{bad}: {reason}"):
        scan_inputs(job(tmp_path), limits)
    scan = scan_inputs(job(tmp_path, on_corrupt_file="quarantine"), limits)
    assert [file.path for file in scan.files] == good
    assert [entry.path for entry in scan.quarantined] == [str(bad)]


def test_a_crash_prints_nothing_and_leaves_no_core(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = crashing(tmp_path / "a.parquet")
    read_footers([str(bad)], {"C1": (0, 5)})
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == [bad]


def test_flipped_bytes_never_end_this_process(tmp_path: Path) -> None:
    """Whatever a byte of the statistics' column becomes, the file is read or told."""
    content = write(tmp_path / "whole.parquet", encoded_table(19)).read_bytes()
    name = content.rindex(b"\x19\x18\x02C1")
    paths = []
    for i, position in enumerate(range(name - 19, name + 5, 3)):
        path = tmp_path / f"{i}.parquet"
        flipped = content[position] ^ (1 << i % 8)
        path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
        paths.append(str(path))
    footers = read_footers(paths, LIMITS)
    assert {*footers.good, *footers.bad} == set(paths)
    assert all(file.corrupt for file in footers.bad.values())


def test_a_negative_number_of_rows_is_corrupt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", encoded_table(19))
    content = bytearray(path.read_bytes())
    # RowGroup: total_byte_size, then num_rows (field 3, zigzag 38), then file_offset
    place = content.rindex(b"\x16\x26\x26")
    content[place + 1] = 37
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="a row group of -19 rows"):
        FooterReader().read(str(path))


class Stuck:
    """Reads footers in a thread, one of a pipe nobody writes to: its worker waits for ever."""

    def __init__(self, folder: Path) -> None:
        self.good = str(write(folder / "a.parquet", encoded_table(19)))
        self.pipe = str(folder / "b.parquet")
        os.mkfifo(self.pipe)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self.footers = read_footers([self.pipe, self.good], {})

    def kill_worker(self, idle_threads: int) -> None:
        """From outside, as for want of memory."""
        worker = stuck_worker(psutil.Process(), idle_threads)
        worker.kill()
        wait_for(lambda: worker not in workers(psutil.Process()))

    def end(self) -> None:
        """Wait for the result."""
        self._thread.join(60)
        assert list(self.footers.good) == [self.good]


def test_a_file_whose_worker_is_killed_is_tried_again(tmp_path: Path, idle_threads: int) -> None:
    stuck = Stuck(tmp_path)
    stuck.kill_worker(idle_threads)
    with Path(stuck.pipe).open("wb"):
        stuck.end()
    assert stuck.footers.bad == {stuck.pipe: Unreadable("the file is empty (0 bytes)", True)}


def test_a_file_whose_worker_is_killed_twice_is_not_called_corrupt(
    tmp_path: Path, idle_threads: int
) -> None:
    stuck = Stuck(tmp_path)
    stuck.kill_worker(idle_threads)
    stuck.kill_worker(idle_threads)
    stuck.end()
    [file] = stuck.footers.bad.values()
    assert "killed twice (signal 9, Killed; no memory?)" in file.reason
    assert not file.corrupt


def test_a_worker_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('libarrow.so: cannot open')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(DpiframeError, match=r"exit code 1.*libarrow\.so: cannot open"):
        read_footers(["a.parquet"], {})
    assert capfd.readouterr() == ("", "")


def test_a_failure_of_the_worker_itself_is_no_corrupt_file() -> None:
    with pytest.raises(
        DpiframeError, match=r"at a\x00b \(exit code 1\): ValueError: embedded null"
    ):
        read_footers(["a\0b"], {})


def test_modules_of_the_current_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write(tmp_path / "a.parquet", encoded_table(19)))
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert list(read_footers([path], {}).good) == [path]


READ_FOR_EVER = (
    "import sys; from pipeline.planning.footers.pool import read_footers as r; r(sys.argv[1:], {})"
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(
    tmp_path: Path, number: signal.Signals, idle_threads: int
) -> None:
    os.mkfifo(tmp_path / "stuck.parquet")
    command = [sys.executable, "-c", READ_FOR_EVER, str(tmp_path / "stuck.parquet")]
    parent = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    worker = stuck_worker(psutil.Process(parent.pid), idle_threads)
    os.killpg(parent.pid, number)  # as a terminal's Ctrl-C goes to the whole group
    _, complaint = parent.communicate(timeout=30)
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    assert parent.returncode == -number
    assert complaint.count("Traceback") == (number == signal.SIGINT)  # only the parent's own
