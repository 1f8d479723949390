"""Our own modules as processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.own_module import own_module


def test_a_package_of_the_same_name_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "timeit.py").write_text("print('theirs')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    done = subprocess.run([*own_module("timeit"), "-n1"], stdout=subprocess.PIPE, check=True)
    assert b"theirs" not in done.stdout
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    done = subprocess.run([*own_module("timeit"), "-n1"], stdout=subprocess.PIPE, check=True)
    assert b"theirs" in done.stdout
