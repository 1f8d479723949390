"""The documents say what the code does, where a test can tell."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from dpiframe_core.features.schema import (
    CategoricalFeature,
    DenseFeature,
    Elements,
    Encoding,
    FeatureSchema,
    Numbering,
)
from dpiframe_core.model.fields import FieldSpec, ListSpec
from dpiframe_core.model.modules import Module
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.expression import ARITY
from dpiframe_core.program.tensor_ops import Operand, TensorOp
from jobs.cli import COMMANDS
from pipeline.config.job import JobConfig
from pipeline.planning.identity import IDENTITY_KEYS

ROOT = Path(__file__).resolve().parent.parent
SPEC = (ROOT / "docs/spec.md").read_text()
JOB = (ROOT / "docs/job.md").read_text()
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_every_key_of_a_job_is_documented():
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", JOB, re.M))
    assert list(rows) == list(JobConfig.model_fields)
    for name, field in JobConfig.model_fields.items():
        assert rows[name] == field.description


def test_the_keys_of_the_identity_are_documented():
    text = " ".join(JOB.split("## Identity")[1].split("A rerun")[0].split())
    named = set(re.findall(r"`(\w+)`", text))
    assert named == {*IDENTITY_KEYS, "field_columns", "outputs", "segments", "where"}


def _first_cells(text: str) -> set[str]:
    """What stands in backticks in the first column of tables."""
    cells = re.findall(r"^\| ([^|]*) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"kind", "op"}


def test_every_key_of_spec_and_schema_is_documented():
    spec, _, schema = re.split(r"^## (?:Modules|Schema)$", SPEC, flags=re.M)
    keys = {key for part in (ModelSpec, FieldSpec, ListSpec) for key in part.model_fields}
    assert _first_cells(spec) == keys
    parts = (FeatureSchema, CategoricalFeature, DenseFeature)
    kinds = {e.model_fields["kind"].default: e for e in get_args(get_args(Encoding)[0])}
    keys = {key for part in parts for key in part.model_fields} | set(kinds)
    assert _first_cells(schema) == keys
    named = set(re.findall(r"`(\w+)`", schema))
    for part in (*kinds.values(), Elements, Numbering):
        assert set(part.model_fields) <= named


def test_every_module_and_computation_is_documented():
    modules = SPEC.split("## Modules")[1].split("## Schema")[0]
    named = set(re.findall(r"`(\w+)`", modules))
    ops = {m.model_fields["op"].default: m for m in get_args(get_args(Module)[0])}
    kinds = {c.kind: c for c in get_args(TensorOp)}
    assert _first_cells(modules) == set(ops) | set(kinds)
    for module in ops.values():
        assert set(module.model_fields) <= named
    for compute in (*kinds.values(), Operand):
        assert {field.name for field in dataclasses.fields(compute)} <= named
    functions = set(re.findall(r"\b[a-z]\w*", modules.split("Functions of one")[1]))
    assert set(ARITY) <= functions


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link


def _expanded(path: str) -> list[str]:
    """`a.{h,cpp}` -> `a.h`, `a.cpp`."""
    braces = re.search(r"\{([^}]*)\}", path)
    if braces is None:
        return [path]
    head, tail = path[: braces.start()], path[braces.end() :]
    return [p for part in braces[1].split(",") for p in _expanded(head + part + tail)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page):
    tops = "csrc|dpiframe_core|pipeline|jobs|tests|docs|configs"
    for name in re.findall(rf"`((?:{tops})/[a-z][\w./*{{}},-]*)`", page.read_text()):
        for path in _expanded(name):
            assert list(ROOT.glob(path)), path


def _folders(*tops: str) -> set[str]:
    """Folders with files in them, at and below these, caches left out."""
    files = [p for top in tops for p in (ROOT / top).rglob("*") if p.is_file()]
    named = [p.relative_to(ROOT) for p in files if "__pycache__" not in p.parts]
    return {str(folder) for path in named for folder in path.parents} - {"."}


def test_every_folder_is_on_the_map():
    text = (ROOT / "docs/architecture.md").read_text()
    on_the_map = re.findall(r"^\| `([\w/]+)/` \|", text, re.M)
    assert len(on_the_map) == len(set(on_the_map))
    expected = _folders("csrc", "dpiframe_core", "pipeline", "jobs", "configs", "docs")
    expected |= {folder for folder in _folders("tests") if folder.count("/") <= 1}
    assert set(on_the_map) == expected


def test_tests_mirror_the_tree():
    code = _folders("csrc", "dpiframe_core", "pipeline")
    for folder in _folders("tests/csrc", "tests/dpiframe_core", "tests/pipeline"):
        assert folder == "tests" or folder.removeprefix("tests/") in code, folder


def test_every_decision_has_a_date_and_is_in_the_index():
    index = (ROOT / "docs/decisions/README.md").read_text()
    rows = re.findall(r"^\| (.*?) \| .* \| \[.*\]\((\w+\.md)(?:#[\w-]+)?\) \|$", index, re.M)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date, _ in rows)
    pages = {page.name for page in (ROOT / "docs/decisions").glob("*.md")} - {"README.md"}
    assert {page for _, page in rows} == pages


def test_the_readme_s_commands_exist():
    used = set(re.findall(r"^dpiframe (\w+)", README, re.M))
    assert used <= set(COMMANDS)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^make (\w+)", README, re.M)) <= set(targets)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_answers_at_once(name):
    arguments = [name, "--help"] if name else ["--help"]
    code = f"import sys; sys.argv[1:] = {arguments!r}; from jobs.cli import main; main()"
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 0 and "Usage" in done.stdout, done.stderr
    # Of the processor, which are the same on a busy machine.
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 0.5
