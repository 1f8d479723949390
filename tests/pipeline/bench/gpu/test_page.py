"""The pages in docs/gpu are what the code makes of their JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.bench.gpu.page import page
from pipeline.bench.gpu.paper import paper_page
from pipeline.bench.gpu.results import Results
from pipeline.bench.pages import job_reports, made_pages, with_headlines
from pipeline.errors import ConfigError

RECORDS = sorted((Path(__file__).parents[4] / "docs" / "gpu").glob("nvidia_*.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_page_is_its_record(record: Path) -> None:
    assert page(Results.read(record)) == record.with_suffix(".md").read_text()


def test_the_page_of_the_papers_claims_is_its_record() -> None:
    record = max(RECORDS, key=lambda record: len(Results.read(record).parts))
    text = paper_page(Results.read(record))
    assert text == record.with_name("paper.md").read_text()
    assert "| embedding | PyTorch" in text
    assert "## Each idea alone" in text
    assert "not measured" in paper_page(Results())


def test_every_page_and_the_readme_s_table_are_made_of_the_json() -> None:
    folder = RECORDS[0].parent
    pages = made_pages(folder)
    assert {path.name for path in pages} == {p.name for p in folder.glob("*.md")} - {"README.md"}
    for path, text in pages.items():
        assert text == path.read_text(), f"run `dpiframe bench pages {folder}`"
    readme = (folder.parents[1] / "README.md").read_text()
    reports = job_reports(folder)
    assert with_headlines(readme, reports) == readme
    of_h200 = reports["job_h200"]
    page = readme + readme.replace("of job_h200", "of job_other")
    made = with_headlines(page, {"job_h200": of_h200, "job_other": of_h200[:1]})
    assert made.startswith(readme) and len(made) < len(page)
    with pytest.raises(
        ConfigError, match=f"no reports of job_other; there are of {', '.join(reports)}"
    ):
        with_headlines(page, reports)
    with pytest.raises(ConfigError, match=r"no place for the table.* one of job_h100, job_h200"):
        with_headlines("", reports)


def test_pages_of_files_that_hold_no_results(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no JSON of `dpiframe bench gpu`"):
        made_pages(tmp_path)
    damaged = tmp_path / "nvidia_x.json"
    damaged.write_text(RECORDS[0].read_text()[:1000])
    with pytest.raises(ConfigError, match=r"nvidia_x.json holds no results of .*damaged"):
        made_pages(tmp_path)
    damaged.rename(tmp_path / "job_x_y.json")
    with pytest.raises(ConfigError, match=r"job_x_y.json is no JSON of `dpiframe bench job`"):
        made_pages(tmp_path)
    with pytest.raises(ConfigError, match="holds no results"):
        Results.load(tmp_path / "job_x_y.json")
