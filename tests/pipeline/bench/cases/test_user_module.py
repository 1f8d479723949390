"""A user's own module as a case: what is wrong with its file is told in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.cases.user_module import load_user_module
from pipeline.errors import ConfigError

SCORER = """
import torch
from torch import nn

class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(100, 4), nn.Linear(4, 1)

    def forward(self, ids):
        return self.head(self.table(ids))

    def example_inputs(self):
        return {examples}

class NeedsWidth(Scorer):
    def __init__(self, width):
        super().__init__()

value = 3
"""
IDS = "torch.arange(8) * 12"


def written(folder: Path, text: str, name: str = "scorer.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_user_module(name)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [
        ("x = (\n", "the file raises SyntaxError", 1),
        ("import nosuchlibrary\n", "the file raises ModuleNotFoundError", 1),
        (
            "\ndef Scorer():\n    raise ValueError('no vocabulary')\n",
            "Scorer() raises ValueError",
            3,
        ),
        (SCORER.replace("{examples}", "{}['user']"), "example_inputs() raises KeyError", 14),
    ],
)
def test_code_that_fails_is_told_with_its_line(
    tmp_path: Path, text: str, told: str, line: int
) -> None:
    path = written(tmp_path, text)
    message = refusal(f"{path}:Scorer")
    assert told in message and message.endswith(f"({path}, line {line})")


@pytest.mark.parametrize(
    ("examples", "told"),
    [
        ("torch.arange(8) * 20", "the model cannot score the example inputs: IndexError"),
        ("[1, 2]", "example inputs must be tensors, there is none among: int"),
    ],
)
def test_examples_that_are_none(tmp_path: Path, examples: str, told: str) -> None:
    path = written(tmp_path, SCORER.replace("{examples}", examples))
    assert told in refusal(f"{path}:Scorer")


def test_names_that_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, SCORER.replace("{examples}", IDS))
    for name in (str(path), f"{path}:"):
        assert "give FILE.py:NAME" in refusal(name)
    assert "NeedsWidth() raises TypeError" in refusal(f"{path}:NeedsWidth")
    for name in ("value", "nothing"):
        assert f"no class or function {name!r}" in refusal(f"{path}:{name}")


def test_a_file_imports_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    written(tmp_path, SCORER.replace("{examples}", IDS), "layers_beside.py")
    path = written(tmp_path, "from layers_beside import Scorer\n")
    assert load_user_module(f"{path}:Scorer").imported.spec.fields[0].rows == 100


def test_the_title_names_what_a_cpu_computes(tmp_path: Path) -> None:
    path = written(tmp_path, SCORER.replace("{examples}", IDS))
    case = EngineCase(module=f"{path}:Scorer", precision="fp16")
    assert case.describe(case.load()[0]).endswith("int64 ids, fp32, for fp16 on a CPU")
