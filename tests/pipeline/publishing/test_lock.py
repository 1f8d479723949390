from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from plan_jobs import ordinary_user

from pipeline.errors import ConfigError, LockedError, ResumableError
from pipeline.publishing.lock import OutputLock, Owner

ROOT = Path(__file__).resolve().parents[3]
WAIT = 30.0  # seconds: far more than a start of Python takes

# A process that waits for a file, takes the lock, says so, starts a child that would inherit
# every handle that can be inherited, and holds on until it is told to end.
HOLDER = """
import pathlib, subprocess, sys, time
from pipeline.errors import LockedError
from pipeline.publishing.lock import OutputLock
gate, deadline = pathlib.Path(sys.argv[2]), time.monotonic() + 30
while not gate.exists() and time.monotonic() < deadline:
    pass
try:
    lock = OutputLock(sys.argv[1], ttl=1.0, beat=0.05).__enter__()
except LockedError as error:
    print("locked", error, flush=True)
    sys.exit(error.exit_code)
child = subprocess.Popen(["sleep", "60"], close_fds=False)
print("held", child.pid, flush=True)
sys.stdin.readline()
child.kill()
lock.release()
"""


@contextmanager
def process(output: Path, gate: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Start HOLDER; whatever happens, it and its child end with the block."""
    command = [sys.executable, "-c", HOLDER, str(output), str(gate)]
    pipe = subprocess.PIPE
    started = subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate(timeout=WAIT)


def first_line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline()


def quick(output: Path) -> OutputLock:
    return OutputLock(output, ttl=1.0, beat=0.05)


def owner_in(output: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((output / "_lock").read_bytes())
    return content


def put(output: Path, **changes: object) -> Path:
    """A lock file of a process of another host."""
    owner = vars(Owner.this_process()) | {"host": "far", "host_id": "other", "pid": 19} | changes
    output.mkdir(exist_ok=True)
    path = output / "_lock"
    path.write_text(json.dumps(owner))
    return path


def test_the_lock_names_its_owner_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "output"
    with quick(output) as lock:
        assert owner_in(output)["pid"] == os.getpid()
        lock.check()
    assert list(tmp_path.iterdir()) == []  # the folders were made for the lock alone


def test_folders_that_were_used_stay(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "output"
    with quick(output):
        (output / "part").touch()
    assert [path.name for path in output.iterdir()] == ["part"]


def test_a_second_lock_is_refused_naming_the_first(tmp_path: Path) -> None:
    with quick(tmp_path):
        with pytest.raises(LockedError, match=f"written by process {os.getpid()} on host"):
            quick(tmp_path).__enter__()
        assert owner_in(tmp_path)["pid"] == os.getpid()
    with quick(tmp_path):
        pass


def test_the_lock_of_another_process_is_refused_at_once(tmp_path: Path) -> None:
    with process(tmp_path) as holder:
        assert first_line(holder).startswith("held")
        began = time.monotonic()
        with pytest.raises(LockedError, match=f"process {holder.pid} ") as caught:
            OutputLock(tmp_path).__enter__()
        assert time.monotonic() - began < 5
        assert caught.value.exit_code == 5
        holder.communicate("\n", timeout=WAIT)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_at_once_though_its_child_lives(
    tmp_path: Path,
) -> None:
    with process(tmp_path) as holder:
        child = int(first_line(holder).split()[1])
        holder.kill()
        holder.wait(timeout=WAIT)
        os.kill(child, 0)  # alive: it has not inherited the flock
        began = time.monotonic()
        with OutputLock(tmp_path) as lock:
            assert time.monotonic() - began < 5
            lock.check()
            assert owner_in(tmp_path)["pid"] == os.getpid()


def test_a_process_id_that_is_in_use_again_does_not_keep_the_lock(tmp_path: Path) -> None:
    mine = Owner.this_process()
    put(tmp_path, host=mine.host, host_id=mine.host_id, pid=os.getpid())
    began = time.monotonic()
    with OutputLock(tmp_path) as lock:
        assert time.monotonic() - began < 5
        lock.check()


def test_of_processes_that_race_one_gets_the_lock(tmp_path: Path) -> None:
    output, gate = tmp_path / "output", tmp_path / "gate"
    with process(output, gate) as a, process(output, gate) as b, process(output, gate) as c:
        time.sleep(0.3)  # all have started and wait
        gate.touch()
        lines = sorted(first_line(each).split()[0] for each in (a, b, c))
        assert lines == ["held", "locked", "locked"]


def test_threads_that_race_and_release_never_hold_it_together(tmp_path: Path) -> None:
    holders, most, taken = [0], [0], [0]

    def work() -> None:
        for _ in range(40):
            try:
                with quick(tmp_path):
                    holders[0] += 1
                    most[0] = max(most[0], holders[0])
                    taken[0] += 1
                    time.sleep(0.001)
                    holders[0] -= 1
            except LockedError:
                time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert (most[0], holders[0]) == (1, 0)
    assert taken[0] > 0


def test_a_suspended_process_keeps_its_lock(tmp_path: Path) -> None:
    with process(tmp_path) as holder:
        assert first_line(holder).startswith("held")
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(LockedError):
            quick(tmp_path).__enter__()
        holder.send_signal(signal.SIGCONT)


def test_a_forked_child_neither_keeps_nor_removes_the_lock(tmp_path: Path) -> None:
    lock = quick(tmp_path).__enter__()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        lock.release()
        os._exit(0)
    lock.check()
    lock.release()
    with quick(tmp_path) as second:
        os.write(writer, b"x")
        assert os.waitpid(child, 0)[1] == 0
        second.check()
    for handle in (reader, writer):
        os.close(handle)


def test_a_dead_lock_of_another_host_is_taken_after_its_time(tmp_path: Path) -> None:
    put(tmp_path)
    began = time.monotonic()
    with quick(tmp_path) as lock:
        assert time.monotonic() - began >= 1.0
        lock.check()


def test_a_lock_of_another_host_that_beats_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path)
    timer = threading.Timer(0.3, lambda: put(tmp_path, beats="000000000007"))
    timer.start()
    with pytest.raises(LockedError, match="process 19 on host far"):
        quick(tmp_path).__enter__()
    timer.join()
    assert json.loads(path.read_bytes())["host"] == "far"


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, started="2999-01-01T00:00:00+00:00")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with quick(tmp_path) as lock:
        lock.check()


def test_without_waiting_a_lock_of_another_host_is_refused_at_once(tmp_path: Path) -> None:
    content = put(tmp_path).read_bytes()
    with pytest.raises(LockedError, match="process 19 on host far"):
        OutputLock(tmp_path, wait=False).__enter__()
    assert (tmp_path / "_lock").read_bytes() == content


def test_an_empty_lock_file_is_taken_after_a_moment(tmp_path: Path) -> None:
    (tmp_path / "_lock").touch()
    with quick(tmp_path) as lock:
        lock.check()


def test_the_heartbeat_counts(tmp_path: Path) -> None:
    with quick(tmp_path):
        deadline = time.monotonic() + WAIT
        while int(str(owner_in(tmp_path)["beats"])) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_lock_that_was_taken_over_is_noticed_and_left_alone(tmp_path: Path) -> None:
    with quick(tmp_path) as lock:
        content = put(tmp_path).read_bytes()
        time.sleep(0.3)  # several beats
        with pytest.raises(LockedError, match="taken over by process 19 on host far"):
            lock.check()
    assert (tmp_path / "_lock").read_bytes() == content


def test_a_lock_file_that_was_removed_is_noticed(tmp_path: Path) -> None:
    with quick(tmp_path) as lock:
        (tmp_path / "_lock").unlink()
        with pytest.raises(ResumableError, match="was removed"):
            lock.check()


@pytest.mark.parametrize("name", [".", "output"])
def test_a_read_only_output_can_be_resumed_when_access_is_restored(name: str) -> None:
    with ordinary_user() as folder:
        folder.chmod(0o555)
        with pytest.raises(
            ResumableError, match=r"cannot write to the output .*: Permission denied"
        ):
            quick(folder / name).__enter__()
        folder.chmod(0o700)


@pytest.mark.parametrize("output", ["/proc/dpiframe", "file/output", "file"])
def test_an_output_that_cannot_be_made_is_a_configuration_error(
    tmp_path: Path, output: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to the output"):
        quick(tmp_path / output).__enter__()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, ResumableError), (errno.EROFS, ResumableError), (errno.ENOLCK, ConfigError)],
)
def test_errors_of_the_file_system_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Owner, "write", fail)
    with pytest.raises(kind, match=os.strerror(number)):
        quick(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_released_when_the_job_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), quick(tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_times_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 3 beats"):
        OutputLock(tmp_path, ttl=1.0, beat=0.5)
