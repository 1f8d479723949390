"""An asm without `volatile` may run before the condition under which it stands, so none loads."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in {".cu", ".cuh", ".h"})
LOAD = re.compile(r'\basm\s*\(\s*"\s*ld')


@pytest.mark.parametrize("source", ['asm("ld.global.nc.f32 %0, [%1];" :', 'asm(\n  "ldmatrix.x4'])
def test_a_load_is_found(source):
    assert LOAD.search(source)


def test_asm_that_loads_is_volatile():
    assert [path for path in SOURCES if LOAD.search(path.read_text())] == []
