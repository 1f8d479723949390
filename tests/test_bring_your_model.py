"""The examples of docs/bring_your_model.md run as they stand, on models that look like the real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from outside_models import (
    DeepCTRModel,
    FuxiModel,
    fuxi_batch,
    torchrec_state,
    write_feature_map,
)

PAGE = Path(__file__).parents[1] / "docs/bring_your_model.md"
FUXICTR, DEEPCTR, TORCHREC, OWN = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(code, **names):
        exec(code, names)
        assert names["bundle"].report()["differences"]["CPU, fp32"]["largest"] < 1e-5
        return names["bundle"]

    return run


def test_blocks_are_short():
    for block in (FUXICTR, DEEPCTR, TORCHREC, OWN):
        assert len([line for line in block.splitlines() if line.strip()]) < 15


def test_fuxictr(run, tmp_path):
    write_feature_map(tmp_path)
    bundle = run(FUXICTR, model=FuxiModel(), batch=fuxi_batch())
    assert [f.name for f in bundle.schema.fields] == ["user", "item"]
    assert bundle.spec.dense == ("price",)
    assert bundle.report()["unused_inputs"] == ["label"]


def test_deepctr_torch(run, tmp_path):
    torch.save(DeepCTRModel().state_dict(), tmp_path / "deepfm.pt")
    bundle = run(DEEPCTR, model=DeepCTRModel())
    assert [f.name for f in bundle.spec.fields] == ["user", "item"]
    assert bundle.spec.dense == ("price",)


@pytest.mark.parametrize("dcn", [False, True])
def test_torchrec(run, dcn):
    bundle = run(TORCHREC, state=torchrec_state(dcn))
    assert [f.name for f in bundle.spec.fields] == ["site", "device"]
    assert bundle.spec.dense == ("age", "price", "hour")
    assert bundle.report()["unused_weights"] == []


def test_a_module_of_one_s_own(run):
    bundle = run(OWN)
    assert bundle.spec.lists[0].name == "clicks" and bundle.spec.columns == {"item_id": "item id"}
