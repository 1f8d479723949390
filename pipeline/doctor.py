"""Doctor: what is installed, which backends work, and how to fix what does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from typing import NamedTuple

PACKAGES = ("dpiframe", "torch", "ray", "pyarrow", "numpy", "mlflow", "pydantic", "safetensors")


class Check(NamedTuple):
    """One line of the report: `ok` None for a plain fact; `advice` says what to do."""

    name: str
    ok: bool | None
    found: str
    advice: str = ""


def examine() -> list[Check]:
    """Look at this machine; never raises."""
    checks = [Check("python", None, f"{platform.python_version()} ({sys.executable})"), _cores()]
    checks += [_package(name) for name in PACKAGES]
    for name, look in (("compiled core", _core), ("cpu engine", _cpu), ("cuda engine", _cuda)):
        checks.append(_guarded(name, look))
    checks.append(_shared_memory())
    return checks


def report(checks: list[Check]) -> str:
    """The checks as aligned lines."""
    marks = {True: "ok", False: "FAIL", None: "-"}
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{marks[check.ok]:>4}  {check.name:<{width}}  {check.found}")
        if check.advice:
            lines.append(f"{'':>4}  {'':<{width}}  -> {check.advice}")
    return "\n".join(lines)


def _package(name: str) -> Check:
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(
            name, False, "not installed", f"pip install {name} (versions: requirements.txt)"
        )


def _guarded(name: str, look: Callable[[str], Check]) -> Check:
    try:
        return look(name)
    except Exception as error:  # the report must be complete on a broken machine, too
        return Check(name, False, f"{type(error).__name__}: {error}", "install the package again")


def _core(name: str) -> Check:
    from dpiframe_core import _core

    info = _core.build_info()
    cuda = ", ".join(info["cuda_archs"]) if info["cuda"] else "none"
    return Check(name, True, f"compiler {info['compiler']}, SIMD {info['simd']}, CUDA code: {cuda}")


def _cpu(name: str) -> Check:
    """Score three rows of a small model and compare with the torch module."""
    import numpy as np
    import torch

    from dpiframe_core import CTRModel, FieldSpec
    from dpiframe_core.engine.cpu import CpuBackend
    from dpiframe_core.lowering import lower
    from dpiframe_core.model.builtin import Deep, Features, deepfm

    spec = deepfm(Features([FieldSpec(name="a", rows=3, dim=4)]), Deep((8,)))
    model = CTRModel(spec).eval()
    ids, logits = np.array([[0, 1, 2]]), np.empty(3, np.float32)
    backend = CpuBackend(lower(spec, model.state_dict()), 3, None)
    backend.run(list(ids), np.empty((0, 3), np.float32), False, logits)
    with torch.no_grad():
        error = float(np.abs(logits - model(torch.from_numpy(ids)).numpy()).max())
    if error > 1e-5:
        return Check(name, False, f"differs from torch by {error:.1e}", "report this as a bug")
    return Check(name, True, f"scores like torch (largest difference {error:.0e})")


def _cuda(name: str) -> Check:
    import torch

    from dpiframe_core import _core
    from dpiframe_core.engine.loading import DEVICES

    if not _core.build_info()["cuda"]:
        advice = "to use a GPU, install this package again where nvcc and a GPU are found"
        return Check(name, None, "built without CUDA; jobs run on the CPU engine", advice)
    devices = _core.cuda_device_count()
    if devices == 0:
        return Check(name, None, "no GPU or no driver here; jobs run on the CPU engine")
    found = f"{devices} GPU(s), torch {torch.__version__} for CUDA {torch.version.cuda}"
    return Check(name, None, f"{found}; engines in this version: {', '.join(DEVICES)}")


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check("cores", None, f"{usable} usable of {os.cpu_count()}")


def _shared_memory() -> Check:
    """Ray's object store lies in /dev/shm; on a small one it falls back to slow disk files."""
    try:
        free = shutil.disk_usage("/dev/shm").free / 2**30
    except OSError:
        return Check("shared memory", False, "no /dev/shm", "Ray's object store will be slow")
    if free < 1:
        advice = "enlarge /dev/shm (docker: --shm-size=4g), Ray's object store lies there"
        return Check("shared memory", False, f"{free:.1f} GiB free in /dev/shm", advice)
    return Check("shared memory", True, f"{free:.1f} GiB free in /dev/shm")
