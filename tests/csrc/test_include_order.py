"""Folders of csrc include downwards only: this table is the order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"

KERNELS = ("common", "cuda", "ptx", "kernels")  # "kernels": batch_memory.h, which lies there itself
# What a folder may include beside itself, the lowest first.
MAY_INCLUDE = {
    "common": (),
    "jit": ("common",),
    "planner": ("common",),
    "codec": ("common",),
    "features": ("common",),
    "parquet/metadata": ("common", "codec"),
    "parquet": ("common", "codec", "parquet/metadata"),
    "parquet/lists": ("common", "parquet", "parquet/metadata"),
    "parquet/raw": ("common", "features", "parquet", "parquet/metadata"),
    "ptx": ("common",),
    "cuda": ("common", "ptx"),
    "parquet/gpu": ("common", "codec", "features", "parquet", "cuda", "ptx"),
    "kernels": ("common", "cuda"),
    "kernels/elementwise": KERNELS,
    "kernels/embedding": (*KERNELS, "kernels/elementwise"),
    "kernels/gemm": KERNELS,
    "kernels/chain": (*KERNELS, "kernels/gemm"),
    "kernels/testing": KERNELS,
    "kernels/tile": ("common", "jit"),
    "kernels/tensor": (*KERNELS, "kernels/elementwise"),
    "kernels/tensor/host": ("common", "kernels", "kernels/tensor"),
    "kernels/head": (*KERNELS, "kernels/elementwise"),
    "kernels/fused": (*KERNELS, "kernels/embedding", "kernels/gemm", "kernels/head"),
    "runtime": ("common", "cuda", "jit", "planner", "parquet", "kernels"),
    "bindings": (
        *("common", "cuda", "jit", "planner", "codec", "features", "parquet", "kernels"),
        "runtime",
    ),
}
WITH_SUBFOLDERS = ("runtime", "bindings")  # these may include all folders below the ones they name
WITHOUT_CUDA = (
    *("common", "jit", "planner", "codec", "features"),
    *("parquet/metadata", "parquet", "parquet/lists", "parquet/raw"),
)
SOURCES = sorted(
    path.relative_to(CSRC)
    for pattern in ("*.h", "*.cuh", "*.cpp", "*.cu")
    for path in CSRC.rglob(pattern)
)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path: Path) -> str:
    """The longest folder of the table that holds the path."""
    for parent in path.parents:
        if str(parent) in MAY_INCLUDE:
            return str(parent)
    raise ValueError(f"{path} lies in no folder of the table")


def faults(source: Path, text: str) -> list[str]:
    """The includes of a file that the table forbids."""
    folder = folder_of(source)
    found = []
    for kind, name in INCLUDE.findall(text):
        if kind == "<":
            if folder in WITHOUT_CUDA and name.startswith("cu"):
                found.append(name)
            continue
        target = folder_of(Path(name))
        allowed = (folder, *MAY_INCLUDE[folder])
        below = folder in WITH_SUBFOLDERS and any(target.startswith(f"{a}/") for a in allowed)
        if target not in allowed and not below:
            found.append(name)
    return found


def test_the_table_has_no_circle() -> None:
    done: list[str] = []
    for folder, below in MAY_INCLUDE.items():
        assert set(below) <= set(done), folder
        done.append(folder)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_a_folder_includes_only_what_lies_below(folder: str) -> None:
    for source in SOURCES:
        if folder_of(source) == folder:
            assert not faults(source, (CSRC / source).read_text()), source


def test_faults_are_found() -> None:
    assert faults(Path("planner/x.cpp"), '#include "cuda/stream.h"') == ["cuda/stream.h"]
    assert faults(Path("planner/x.cpp"), "#include <cuda_runtime_api.h>") == ["cuda_runtime_api.h"]
    assert faults(Path("kernels/gemm/x.cu"), '#include "parquet/file.h"') == ["parquet/file.h"]
    assert faults(Path("runtime/x.h"), '#include "bindings/families.h"') == ["bindings/families.h"]
    assert not faults(Path("runtime/x.h"), '#include "kernels/fused/mlp/kernel.h"')
    with pytest.raises(ValueError, match="no folder"):
        faults(Path("planner/x.cpp"), '#include "elsewhere/x.h"')
