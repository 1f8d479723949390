"""The report: one page that shows every part, needs no network, and takes any text for text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from finished_outputs import write_output
from tracking_records import make_record

from jobs.report import command
from pipeline.evaluation.evaluate import evaluate_output
from pipeline.evaluation.question import Question
from pipeline.evaluation.report import write_evaluation
from pipeline.publishing.records import (
    REJECTED_SCHEMA,
    Manifest,
    OutputLayout,
    read_json,
    write_json,
)
from pipeline.report.charts import round_ticks, short
from pipeline.report.page import duration, figure, write_report

VOID = {"meta", "br"}
HOSTILE = "<script>alert('x')</script>"


class Page(HTMLParser):
    """Tags that are not closed, attributes that fetch, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.fetched: list[str | None] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def output(folder: Path, shift: float = 0.0) -> Path:
    """A finished output of three units with times, scores, labels, a rejected row."""
    rng = np.random.default_rng(7)
    tables = []
    for _ in range(3):
        logits = rng.normal(shift, 1, 111).astype(np.float32)
        label = (rng.random(111) < 1 / (1 + np.exp(-logits))).astype(np.int8)
        score = 1 / (1 + np.exp(-logits))
        site = pa.array(rng.choice(["a", HOSTILE], 111))
        tables.append(
            pa.table({"key": np.arange(111), "label": label, "site": site, "score": score})
        )
    write_output(folder, tables)
    layout = OutputLayout(folder)
    manifest = read_json(layout.manifest, Manifest)
    keep = ("unit", "part", "bytes", "sha256")
    units = [
        make_record(n, **{name: getattr(unit, name) for name in keep}, started=1e9 + 5 + n)
        for n, unit in enumerate(manifest.units)
    ]
    rejected = layout.rejected_part(units[0].unit)
    rejected.parent.mkdir()
    row = {"unit": units[0].unit, "row": 0, "source_row": 0, "column": "C1"}
    rows = [{**row, "value": HOSTILE, "reason": "not a number"}, {**row, "reason": "null id"}]
    pq.write_table(pa.Table.from_pylist(rows, REJECTED_SCHEMA), rejected)
    units[0] = units[0].model_copy(update={"rejected_part": f"_rejected/{rejected.name}"})
    config = {"bundle": "/models/dcn", "date": "2026-11-19", "precision": "fp32", "shift": shift}
    changes = {"units": units, "rejected": 6, "config": config}
    write_json(layout.manifest, manifest.model_copy(update=changes))
    question = Question(label="label", slices=("site",))
    write_evaluation(folder, evaluate_output(folder, question, workers=1))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("report")
    base = output(folder / "base", shift=0.5)
    write_report(output(folder / "run"), base, folder / "report.html")
    return Page((folder / "report.html").read_text())


def test_every_part_is_shown(page: Page):
    assert not page.open
    titles = ["What ran", "What came out", "How good", "How fast", "What it cost"]
    for text in [*titles, "Against the baseline", "dcn 2026-11-19", "not a number", "PSI", "AUC"]:
        assert text in page.text
    assert "svg" in page.tags


def test_it_needs_no_network_and_runs_nothing(page: Page):
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert HOSTILE in page.text


def test_without_evaluation_times_and_baseline(tmp_path: Path):
    table = pa.table({"key": [1, 2], "score": pa.array([0.25, 0.5], pa.float32())})
    plain = write_output(tmp_path / "out", [table])
    shown = CliRunner().invoke(command, [str(plain), "-o", str(tmp_path / "r.html")])
    assert shown.exit_code == 0, shown.output
    text = Page((tmp_path / "r.html").read_text()).text
    assert "were not evaluated" in text
    assert "Against the baseline" not in text


def test_an_unfinished_output_is_refused(tmp_path: Path):
    found = CliRunner().invoke(command, [str(tmp_path)])
    assert "_manifest.json" in str(found.exception)


def test_numbers_as_people_read_them():
    assert [short(value) for value in (0, 950, 12_000, 1.5e6)] == ["0", "950", "12k", "1.5M"]
    assert [figure(value) for value in (0.0, 0.12345678, 12.5, 123456.0)] == [
        "0",
        "0.12346",
        "12.5",
        "123,456",
    ]
    assert [duration(value) for value in (2.34, 250, 11_100)] == [
        "2.3 s",
        "4 min 10 s",
        "3 h 5 min",
    ]
    assert [value for value, _ in round_ticks(0, 10, short)] == [0, 2, 4, 6, 8, 10]
