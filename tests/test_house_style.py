"""The rules of style that no other tool keeps: sizes, layers, what production may import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dpiframe_core", "pipeline", "jobs")
PYTHON = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
NATIVE = [
    p for p in sorted((ROOT / "csrc").rglob("*")) if p.suffix in (".h", ".cpp", ".cu", ".cuh")
]
# A package may import itself and those after it.
LAYERS = {"jobs": {"pipeline", "dpiframe_core"}, "pipeline": {"dpiframe_core"}, "dpiframe_core": ()}
FORBIDDEN = {"dpiframe_core": {"ray", "mlflow"}}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON + NATIVE, ids=_name)
def test_a_file_is_short_and_narrow(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 300, f"{len(lines)} lines; a file shows one idea, in 300 lines at most"
    wide = [i for i, line in enumerate(lines, 1) if len(line) > 100]
    assert not wide, f"over 100 columns in lines {wide}"


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= 40, f"{node.name} (line {node.lineno}) has {lines} lines, 40 at most"


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_imports_point_down(path):
    package = path.relative_to(ROOT).parts[0]
    others = (set(PACKAGES) | {"tests"}) - {package} - set(LAYERS[package])
    for module in _imports(path):
        top = module.split(".")[0]
        assert top not in others | FORBIDDEN.get(package, set()), f"{package} imports {module}"


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.py")), ids=_name)
def test_commands_import_nothing_heavy_before_they_run(path):
    heavy = {"torch", "ray", "mlflow", "pyarrow", "numpy", "pipeline", "dpiframe_core", "pydantic"}
    tree = ast.parse(path.read_text())
    found = {m.split(".")[0] for node in tree.body for m in _modules(node)}
    assert not found & heavy


def test_csrc_knows_no_torch():
    for path in NATIVE:
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)/", path.read_text()), _name(path)


def test_no_pickle_in_production():
    for path in PYTHON:
        assert not {"pickle", "cloudpickle", "joblib"} & {m.split(".")[0] for m in _imports(path)}


def _imports(path: Path) -> list[str]:
    return [m for node in ast.walk(ast.parse(path.read_text())) for m in _modules(node)]


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []
