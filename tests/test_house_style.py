"""The rules of style that neither ruff, clang-format nor import-linter keeps."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "ray", "mlflow", "pyarrow", "numpy", "pipeline", "dpiframe_core", "pydantic"}


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.py")), ids=lambda path: path.name)
def test_commands_import_nothing_heavy_before_they_run(path):
    found = {name.split(".")[0] for node in ast.parse(path.read_text()).body for name in _of(node)}
    assert not found & HEAVY


def test_csrc_knows_no_torch():
    for path in (ROOT / "csrc").rglob("*.*"):
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)/", path.read_text()), path


def _of(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []
