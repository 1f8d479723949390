"""`_core.pyi` says what the compiled module holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpiframe_core import _core

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ROOT / "tests/stubtest_allowlist.txt"

# pybind11 gives every class its own metaclass, and a class that Python cannot make an __init__ that
# raises.
PYBIND = (
    "metaclass differs",
    '__init__ is inconsistent, stub does not have *args parameter "args"',
)


def bound_with_cuda() -> set[str]:
    """Names that the bindings' sources bind, of which a build without CUDA lacks some."""
    sources = (ROOT / "csrc/bindings").glob("*.cpp")
    return {name for source in sources for name in re.findall(r'"(\w+)"', source.read_text())}


@pytest.mark.slow
def test_the_stub_fits_the_module():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "dpiframe_core._core", "--concise"]
    command += ["--allowlist", str(ALLOWED), "--ignore-unused-allowlist"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("dpiframe_core.")]
    assert done.returncode == 0 or found, done.stdout + done.stderr
    found = [line for line in found if not line.endswith(PYBIND)]
    if not _core.build_info()["cuda"]:
        absent = re.compile(r"dpiframe_core\._core\.(\w+) is not present at runtime")
        names = {line: absent.fullmatch(line) for line in found}
        bound = bound_with_cuda()
        found = [line for line, name in names.items() if name is None or name[1] not in bound]
    assert not found, "\n".join(found)
