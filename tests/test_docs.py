"""The documents say what the code does, where a test can tell."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.cli import COMMANDS
from pipeline.config.job import JobConfig
from pipeline.planning.identity import IDENTITY_KEYS

ROOT = Path(__file__).resolve().parent.parent
JOB = (ROOT / "docs/job.md").read_text()
README = (ROOT / "README.md").read_text()


def test_every_key_of_a_job_is_documented():
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", JOB, re.M))
    assert list(rows) == list(JobConfig.model_fields)
    for name, field in JobConfig.model_fields.items():
        assert rows[name] == field.description


def test_the_keys_of_the_identity_are_documented():
    text = " ".join(JOB.split("## Identity")[1].split("A rerun")[0].split())
    named = set(re.findall(r"`(\w+)`", text))
    assert named == {*IDENTITY_KEYS, "field_columns"}


def test_the_readme_s_links_lead_somewhere():
    for link in re.findall(r"\]\(((?:docs|configs)/[^)]+)\)", README):
        assert (ROOT / link).is_file(), link


def test_the_readme_s_commands_exist():
    used = set(re.findall(r"^dpiframe (\w+)", README, re.M))
    assert used <= set(COMMANDS)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^make (\w+)", README, re.M)) <= set(targets)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_answers_at_once(name):
    arguments = [name, "--help"] if name else ["--help"]
    code = f"import sys; sys.argv[1:] = {arguments!r}; from jobs.cli import main; main()"
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        seconds.append(time.perf_counter() - began)
        assert done.returncode == 0 and "Usage" in done.stdout, done.stderr
    assert min(seconds) < 0.5
