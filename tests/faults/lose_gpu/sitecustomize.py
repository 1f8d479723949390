"""Loaded by Python at its start where this folder is on PYTHONPATH: scorers that lose their GPU.

LOSE_GPU names a folder. The scorer that removes a file of it loses its GPU: from there on every
CUDA call of its process fails as after a kernel's bad address. On a CPU scoring alone fails so.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import wraps
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["LOSE_GPU"])
MODULE = "pipeline.scoring.engine_thread"


ONCE = threading.Lock()  # of this process: taken for ever


def loses() -> bool:
    """Whether this call is the one of its process that loses the GPU; takes one of the files."""
    if not ONCE.acquire(blocking=False):
        return False
    for file in FOLDER.iterdir():
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        return True
    ONCE.release()
    return False


def change(scorer: Any) -> None:
    """Have `EngineThread.score` lose the GPU for each file."""
    score, lost = scorer.score, threading.Event()

    @wraps(score)
    def losing(self: Any, unit: Any) -> Any:
        from dpiframe_core import _core
        from dpiframe_core.errors import DeviceLostError

        on_gpu = self._sizes.device == "cuda"
        if loses():
            lost.set()
            if on_gpu:
                _core.inject_cuda_failure(1, lost=True)
        if lost.is_set() and not on_gpu:
            raise DeviceLostError("cudaErrorIllegalAddress, without a GPU")
        return score(self, unit)

    scorer.score = losing


def wait() -> None:
    """Change scorers as soon as their module is there."""
    while (scorer := getattr(sys.modules.get(MODULE), "EngineThread", None)) is None:
        time.sleep(0.005)
    change(scorer)


threading.Thread(target=wait, daemon=True).start()
