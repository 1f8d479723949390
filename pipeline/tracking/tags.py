"""Tags that say where a job ran: versions, host, GPU, git commit."""

from __future__ import annotations

import platform
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("dpiframe", "ray", "torch", "pyarrow", "mlflow")
PROJECT_ROOT = Path(__file__).resolve().parents[2]
NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")


def environment_tags() -> dict[str, str]:
    """Tags of this process's host; what cannot be found out is left out."""
    tags = {"host": socket.gethostname(), "python_version": platform.python_version()}
    for package in PACKAGES:
        try:
            tags[f"{package}_version"] = version(package)
        except PackageNotFoundError:
            continue
    if commit := git_commit(PROJECT_ROOT):
        tags["git_sha"] = commit
        tags["mlflow.source.git.commit"] = commit
    if gpu := gpu_names():
        tags["gpu"] = gpu
    tags["mlflow.source.name"] = "dpiframe score"
    tags["mlflow.source.type"] = "JOB"
    return tags


def git_commit(root: Path) -> str | None:
    """The commit checked out in `root`, read from its files; None where it is no checkout."""
    git = root / ".git"
    try:
        if git.is_file():  # a linked work tree names its folder
            git = root / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        shared = git / "commondir"
        common = git / shared.read_text().strip() if shared.exists() else git
        if (common / name).exists():
            return (common / name).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except OSError:
        return None


def gpu_names() -> str | None:
    """The GPUs of this host, like `2 x NVIDIA H200`; None without any."""
    names = []
    for file in sorted(NVIDIA_PROC.glob("*/information")):
        lines = file.read_text(errors="replace").splitlines()
        names += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    if not names and shutil.which("nvidia-smi"):
        names = _names_from_tool()
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or None


def _names_from_tool() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=3, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
