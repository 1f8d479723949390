"""The machine, the versions and the commit that a measurement was made with."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from dpiframe_core import _core

COMMIT_VARIABLE = "DPIFRAME_COMMIT"


def machine(device: str) -> dict[str, str]:
    """The processor, the GPU where `device` is cuda, and the versions of what was measured."""
    facts = {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = str(torch.version.cuda)
        facts["driver"] = _driver()
        facts["fbgemm_gpu"] = _fbgemm_version()
        facts["built_for"] = " ".join(_core.build_info()["cuda_archs"])
    return facts


def commit() -> str:
    """The commit of this tree: what DPIFRAME_COMMIT says, else from git, else "unknown"."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named
    root = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(root)]
    if Path(_output([*git, "rev-parse", "--show-toplevel"])) != root:  # or of an outer repository
        return "unknown"
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"])
    return _output([*git, "rev-parse", "--short", "HEAD"]) + (" and changes" if changed else "")


@functools.lru_cache(maxsize=1)
def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
    return _output(query) or "unknown"


def _fbgemm_version() -> str:
    """From the package's metadata, else its `__version__`: an unpacked copy has no metadata."""
    for name in ("fbgemm-gpu", "fbgemm_gpu", "fbgemm-gpu-genai"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return "not installed"
    try:
        module = importlib.import_module("fbgemm_gpu")
    except Exception:  # a broken package must not stop the report
        return "not importable"
    return str(getattr(module, "__version__", "unknown version"))


def _output(command: list[str]) -> str:
    """What a command printed, "" where it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
