"""The README's Python runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_engine_example_runs(tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)\nfrom pipeline", README.read_text(), re.S).group(1)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert names["scores"].shape == (2,) and np.all(names["scores"] > 0)


def test_the_import_example_runs(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)[1]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert names["bundle"].report()["differences"]["CPU, fp32"]["largest"] < 1e-5
