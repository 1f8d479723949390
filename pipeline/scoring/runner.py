"""Which runner a job gets, and what of its start goes on beside planning."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from threading import Thread
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.cluster.ray_cluster import import_meanwhile, is_running
from pipeline.config.job import JobConfig
from pipeline.planning.job_plan import JobPlan
from pipeline.sizing.machine import Machine, local_machine, look_for_gpus

Runner = Literal["ray", "local"]
T = TypeVar("T")

# How long the end waits for MLflow, where the configuration leaves it to us.
TRACKING_SECONDS = 20


def choose_runner(config: JobConfig) -> Runner:
    """The configured one; auto: local where Ray would have one scorer, on this machine's one GPU,
    and nothing asks for Ray.
    """
    if config.runner != "auto":
        return config.runner
    if config.device == "cpu" or _asks_for_ray(config) or not _core.build_info()["cuda"]:
        return "ray"
    return "local" if _core.cuda_device_count() == 1 else "ray"


def _asks_for_ray(config: JobConfig) -> bool:
    """Whether a key that is Ray's is set, or Ray is there already."""
    ray = sys.modules.get("ray")
    return (
        config.ray_address is not None
        or config.num_scorers not in ("auto", 1)
        or config.read_in == "tasks"
        or config.max_tasks_in_flight != "auto"
        or config.object_store_bytes != "auto"
        or (ray is not None and ray.is_initialized())
        or is_running()
    )


def with_runner(plan: JobPlan, runner: Runner) -> JobPlan:
    """The plan with a runner in place of `auto`; its end waits for MLflow as it does with Ray."""
    config = plan.config
    if config.runner != "auto":
        return plan
    wait = TRACKING_SECONDS if config.tracking_wait == "auto" else config.tracking_wait
    config = config.model_copy(update={"runner": runner, "tracking_wait": wait})
    parts = [with_runner(part, runner) for part in plan.parts]
    return plan.model_copy(update={"config": config, "parts": parts})


class RunnerStart:
    """Chooses the runner in a thread and begins what takes it long, while the caller plans."""

    def __init__(self, config: JobConfig) -> None:
        """Begin with what costs others nothing: imports, and a look for GPUs."""
        self._config = config
        self._machine: Future[Machine] | None = None
        if config.device != "cpu":
            look_for_gpus()
        self._runner: Future[Runner] = _in_thread(self._choose)

    def warm(self) -> None:
        """Begin CUDA's context, where the job's own process will score on a GPU."""
        if self._config.device != "cpu" and self._config.runner != "ray" and not self._machine:
            self._machine = _in_thread(self._warm)

    @property
    def runner(self) -> Runner:
        """The chosen one; waits for it."""
        return self._runner.result()

    def machine(self) -> Machine:
        """This machine, before CUDA's context took memory of it."""
        return self._machine.result() if self._machine else local_machine()

    def _choose(self) -> Runner:
        runner = choose_runner(self._config)
        if runner == "ray":
            import_meanwhile()
        return runner

    def _warm(self) -> Machine:
        machine = local_machine()
        if self.runner == "local" and machine.gpus and machine.has_cuda:
            # No daemon: the process must not end while CUDA begins.
            Thread(target=_core.begin_cuda, args=(0,), name="begin-cuda").start()
            import_module("dpiframe_core.engine.cuda.loading")
            pa.array(np.zeros(1))  # has pyarrow import pandas, if it is there
        return machine


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """The result of `work`, which a thread does that the end of the process does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name=work.__name__, daemon=True).start()
    return future
