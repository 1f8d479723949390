"""The fuzzers of this folder for a few seconds each; `make fuzz-guided` runs them for long."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from run_fuzz import ROOT
from run_guided_fuzz import fuzz

pytestmark = pytest.mark.slow

CODECS = ["zstd", "snappy", "lz4", "gzip"]


def make(target: str) -> subprocess.CompletedProcess[str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "-j2", target]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def fuzzers() -> None:
    found = make("build/fuzzers/.clang")
    if found.returncode:
        pytest.skip(found.stdout.splitlines()[-1])
    built = make("fuzzers")
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("parquet", ["read", "refused", "not opened"]),
        ("frames", [f"{codec}: {way}" for codec in CODECS for way in ("taken", "refused")]),
        ("features", ["strings hashed", "strings refused", "integers in buckets"]),
    ],
)
def test_parsers_read_right_or_refuse(fuzzers: None, tmp_path: Path, name: str, wanted: list[str]):
    found = fuzz(name, tmp_path, seed=1, seconds=4, runs=0)
    for outcome in wanted:
        assert found["outcomes"][outcome] > found["cases"] // 2000, found
