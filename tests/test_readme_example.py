"""The README's Python runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from job_cases import tiny_bundle, write_shards

README = Path(__file__).parents[1] / "README.md"


def _example(start: str) -> str:
    (code,) = re.findall(rf"```python\n({start}\n.*?)```", README.read_text(), re.S)
    return code


def test_the_engine_example_runs(tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)\nfrom pipeline", README.read_text(), re.S).group(1)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert names["scores"].shape == (2,) and np.all(names["scores"] > 0)


def test_the_import_example_runs(tmp_path, monkeypatch):
    code = _example("import torch")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert names["bundle"].report()["differences"]["CPU, fp32"]["largest"] < 1e-5


def test_the_job_example_runs(tmp_path, monkeypatch):
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "rows", 2, 111, 19)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    names: dict = {}
    exec(_example("import pipeline"), names)
    assert names["result"].rows == 222
