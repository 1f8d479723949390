"""The pages in docs/gpu are what the code makes of their JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.bench.gpu.page import page
from pipeline.bench.gpu.paper import paper_page
from pipeline.bench.gpu.results import Results

RECORDS = sorted((Path(__file__).parents[4] / "docs" / "gpu").glob("nvidia_*.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_page_is_its_record(record: Path) -> None:
    assert page(Results.read(record)) == record.with_suffix(".md").read_text()


def test_the_page_of_the_papers_claims_is_its_record() -> None:
    (record,) = RECORDS
    text = paper_page(Results.read(record))
    assert text == record.with_name("paper.md").read_text()
    assert "| embedding | PyTorch" in text
    assert "not measured" in paper_page(Results())
