"""Peers compiled ahead of a run, by many processes.

The compiler's caches on disk then save the run most of its time. Times that choose between kernels
are taken in the run all the same, so a peer that is tuned is compiled there alone.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch

from pipeline.bench.engine.cases import EngineCase
from pipeline.bench.engine.implementations import (
    OURS,
    build_all,
    close_all,
    implementations,
    reason,
    untuned,
)
from pipeline.bench.engine.random_data import forget

THREADS = 2  # that compile kernels, of each process


def compile_ahead(
    cases: Sequence[EngineCase], processes: int, say: Callable[[str], None]
) -> dict[str, str]:
    """Compile what the cases need, several at one time; what failed and why, which a run finds too.

    Each process makes the weights of its case, so memory must hold `processes` of them.
    """
    failed: dict[str, str] = {}
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(THREADS))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = {pool.submit(_compile, case): case for case in cases}
        for done in as_completed(running):
            case = running[done]
            name = f"{case.model} {case.batch} {case.precision}"
            try:
                found = done.result()
            except Exception as error:  # the run meets it again, and reports it
                found = {"": reason(error)}
            failed |= {f"{name} {peer}".strip(): why for peer, why in found.items()}
            say(f"compiled: {name} {found or ''}")
    return failed


def _compile(case: EngineCase) -> dict[str, str]:
    """Run once what is compiled, so that the caches have it; what failed, and why."""
    from torch._inductor import config

    spec, weights = case.load()
    factories = implementations(spec, weights, case)
    failed: dict[str, str] = {}
    for name in (OURS, *untuned(case)):
        if name not in factories:
            continue
        # Times that are taken beside other processes must choose no kernel of the run.
        with config.patch(autotune_local_cache=False):
            made, why = build_all({name: factories[name]})
        close_all(made)
        failed |= why
        del made
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    forget()
    return failed
