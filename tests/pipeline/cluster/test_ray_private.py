"""The private names of Ray: this Ray has them as they are used, and a job runs without them."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running_job import Case

from pipeline.cluster import ray_private
from pipeline.cluster.ray_private import (
    AGENT_PORTS,
    DRAIN_ANSWERS,
    RESET_ANSWERS,
    map_whole_blocks,
    private,
)

ROOT = Path(__file__).resolve().parents[3]
# Name -> the parameters that are relied on.
FUNCTIONS = {
    "ray._private.node:Node.start_raylet": ["self"],
    "ray._private.node:Node.start_api_server": ["self"],
    "ray._private.node:Node.start_monitor": ["self"],
    "ray._private.node:Node.start_log_monitor": ["self"],
    "ray._private.node:Node.get_session_dir_path": ["self"],
    "ray._private.services:start_ray_process": ["command"],
    "ray._private.services:find_bootstrap_address": ["temp_dir"],
    "ray._private.utils:set_sigterm_handler": ["sigterm_handler"],
    "ray._private.worker:_maybe_modify_runtime_env": ["runtime_env"],
    "ray._private.worker:disconnect": [],
    "ray._raylet:persist_port": ["dir", "node_id", "port_name", "port"],
    "ray.data:Dataset.map_batches_internal": ["self", "fn"],
}
KEYWORDS = ["batch_size", "batch_format", "fn_constructor_args", "compute", "num_cpus", "num_gpus"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_there_with_their_parameters(name: str) -> None:
    expected = FUNCTIONS[name]
    found = private(name)
    if name.startswith("ray._raylet"):  # compiled: its text form is all that it tells
        parameters = re.findall(r"(\w+):", str(found.__doc__).partition("->")[0])
    else:
        parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(expected)] == expected


def test_the_other_names() -> None:
    assert isinstance(private("ray._private.node:Node.node_id"), property)
    assert inspect.isclass(private("ray._raylet:CoreWorker"))
    assert callable(private("ray._raylet:CoreWorker.shutdown_driver"))
    assert private("ray._private.worker:global_worker") is not None
    assert private("ray._private.ray_constants:ENABLE_RAY_CLUSTER") is True
    assert all(isinstance(private(f"ray._raylet:{name}"), str) for name in AGENT_PORTS)
    keywords = inspect.signature(private("ray.data:Dataset.map_batches_internal")).parameters
    assert set(KEYWORDS) <= set(keywords)
    library = ctypes.CDLL(private("ray._raylet:__file__"))
    assert library[DRAIN_ANSWERS] and library[RESET_ANSWERS]


def test_they_stand_in_one_module() -> None:
    found = [
        path.name
        for path in sorted(ROOT.glob("pipeline/**/*.py"))
        if re.search(r"(import|from) ray\._|ray\._raylet|map_batches_internal", path.read_text())
    ]
    assert found == ["ray_private.py"]


SHUT_DOWN = """
import threading, ray
from pipeline.cluster.ray_cluster import quiet_start, start
from pipeline.cluster.ray_private import shut_down

with quiet_start():
    start(1, store_bytes=256 << 20, workers=1, verbose=False)
held = ray.put(1)
binary, ended = held.binary(), threading.Event()

def drop_references():
    while not ended.is_set():
        ray.ObjectRef(binary)

thread = threading.Thread(target=drop_references)
thread.start()
shut_down()
ended.set()
thread.join()
print("lives")
"""


@pytest.mark.slow
def test_references_that_are_dropped_while_ray_ends_do_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHUT_DOWN], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


ANSWERS = """
import os, ray
from pipeline.cluster.ray_cluster import quiet_start, start
from pipeline.cluster.ray_private import shut_down, without_answers

def threads():
    return set(os.listdir("/proc/self/task"))

def work():
    with quiet_start():
        start(1, store_bytes=256 << 20, workers=1, verbose=False)
    return ray.get(ray.remote(lambda: 19).remote())

assert work() == 19
before = threads()
with without_answers():
    pass
answering = threads() - before
shut_down()
assert answering - threads()
assert work() == 19
shut_down()
print("lives")
"""


@pytest.mark.slow
def test_no_thread_answers_while_ray_ends() -> None:
    """Such a thread, where it is late, reads what that end has freed; the next Ray has new ones."""
    done = subprocess.run([sys.executable, "-c", ANSWERS], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def absent(name: str) -> Any:
    raise AttributeError(f"this Ray has no {name}")


def test_without_a_private_name_whole_blocks_are_mapped_publicly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Rows:
        def map_batches(self, work: type, batch_size: int | None, **options: Any) -> Any:
            return work, batch_size, options

    monkeypatch.setattr(ray_private, "private", absent)
    assert map_whole_blocks(Rows(), str, num_gpus=None) == (str, None, {"num_gpus": None})
    # On GPUs the public method wants a number of rows, which must never join or cut units.
    assert map_whole_blocks(Rows(), str, num_gpus=1) == (str, 1, {"num_gpus": 1})


JOB = """
import sys
from pipeline.cluster import ray_private
from pipeline.config.job import load_config
from pipeline.scoring.job import run_job

def absent(name):
    raise AttributeError(f"this Ray has no {name}")

ray_private.private = absent
print(run_job(load_config(sys.argv[1])).status)
"""


@pytest.mark.slow
def test_a_job_runs_without_them(tmp_path: Path) -> None:
    case = Case(tmp_path, "local", shards=1, rows=100)
    # Without an address a running Ray is looked for first.
    case.config.write_text(case.config.read_text().replace("ray_address: local\n", ""))
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(case.config)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "scored\n", done.stderr
    assert "Ray starts slowly in this version" in done.stderr
    assert "by ray_address alone" in done.stderr
    case.check_finished({})
