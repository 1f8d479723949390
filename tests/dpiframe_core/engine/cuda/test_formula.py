"""Expressions as C++ are what csrc/kernels/tensor/functions.h computes: here on the host."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dpiframe_core import _core
from dpiframe_core.engine.cuda.formula import FUNCTIONS, SHORT_FUNCTIONS, number, statements
from dpiframe_core.program.expression import ARITY, as_expression, postfix

CSRC = Path(__file__).resolve().parents[4] / "csrc"
VALUES = [0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 7.25, 1e-30, 3e38, np.inf, -np.inf, np.nan]
TRIPLES = np.array(list(itertools.product(VALUES, VALUES, [0.5, np.nan])), np.float32)
CASES = {name: (name, *[f"x{i}" for i in range(arity)]) for name, arity in ARITY.items()}
CASES |= {
    "square": ("pow", "x0", 2.0),
    "root": ("pow", "x0", 0.5),
    "shared": ("add", ("mul", ("exp", "x0"), ("exp", "x0")), ("neg", ("neg", "x1"))),
    "numbers": ("sub", ("add", "x0", 1e-12), ("mul", -0.1, ("min", "x1", float("inf")))),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("formula")
    names = {f"x{i}": f"x[{i}]" for i in range(3)}
    text = '#include "kernels/tensor/functions.h"\n#include <bit>\nusing namespace std;\n'
    text += "static float __int_as_float(unsigned bits) { return bit_cast<float>(bits); }\n"
    for name, expression in CASES.items():
        body = statements(as_expression(expression), names)
        text += f'extern "C" float f_{name}(const float* x) {{\n{body}\n}}\n'
    (folder / "f.cpp").write_text(text)
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-I{CSRC}"]
    subprocess.run(["g++", *options, folder / "f.cpp", "-o", folder / "f.so"], check=True)
    return ctypes.CDLL(str(folder / "f.so"))


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_that_of_the_kernels(compiled, name):
    function = getattr(compiled, f"f_{name}")
    function.restype = ctypes.c_float
    got = [function(row.ctypes.data_as(ctypes.c_void_p)) for row in TRIPLES]
    columns = np.ascontiguousarray(TRIPLES.T)
    expected, _ = _core.evaluate_expression(list(postfix(as_expression(CASES[name]))), columns)
    np.testing.assert_array_equal(np.array(got, np.float32), expected)


def test_short_functions_are_within_their_bounds(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    text = '#include "common/short_functions.h"\nusing namespace std;\n'
    text += "#define __expf expf\n#define __fdividef(x, y) ((x) / (y))\n"
    for name in SHORT_FUNCTIONS:
        body = statements((name, "x0"), {"x0": "x[i]"}, short=True)
        text += f'extern "C" void f_{name}(const float* x, float* y, int n) {{\n'
        text += f"for (int i = 0; i < n; ++i) y[i] = [&] {{\n{body}\n}}();\n}}\n"
    (tmp_path / "f.cpp").write_text(text)
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-I{CSRC}"]
    subprocess.run(["g++", *options, tmp_path / "f.cpp", "-o", tmp_path / "f.so"], check=True)
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    x = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    for name in SHORT_FUNCTIONS:
        y = np.empty_like(x)
        getattr(library, f"f_{name}")(*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)), len(x))
        wanted = getattr(torch, name)(torch.from_numpy(x).double()).numpy()
        assert (np.isnan(y) == np.isnan(x)).all(), name
        numbers = np.abs(wanted) < 3e38
        scale = np.maximum(1, np.abs(wanted[numbers]))
        error = np.abs(y[numbers] - wanted[numbers]) / scale
        assert error.max() < 1e-6, (name, error.max())


def test_every_function_has_a_text():
    assert set(FUNCTIONS) == set(ARITY)


def test_numbers_are_those_of_float32():
    assert number(0.1) == "(0.10000000149011612f)"
    assert number(-1e300) == "__int_as_float(0xff800000)"
