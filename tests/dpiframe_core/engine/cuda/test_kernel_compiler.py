"""Kernels compiled at load: what is kept on disk, by a compiler that stands in; NVRTC itself where
it is installed. No GPU is needed to compile for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dpiframe_core import _core
from dpiframe_core.engine.cuda import kernel_compiler
from dpiframe_core.engine.cuda.kernel_compiler import (
    KernelCompiler,
    KernelSource,
    cache_folder,
    find_compiler,
)

ARCH = "sm_90a"
HALVE = KernelSource("halve", "halve it")


class Echo:
    """Its cubin is the source and the options."""

    def __init__(self, version: str = "13.0") -> None:
        self.version, self.compiled = version, list[str]()

    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        self.compiled.append(name)
        return f"{source} {options}".encode()


def test_a_kernel_is_compiled_once(tmp_path):
    echo = Echo()
    (first,) = KernelCompiler(echo, tmp_path).compile_all([HALVE], ARCH)
    (again,) = KernelCompiler(echo, tmp_path).compile_all([HALVE], ARCH)
    assert first == again
    assert b"halve it" in first and b"sm_90a" in first
    assert echo.compiled == ["halve"]


def test_equal_sources_of_one_call_are_compiled_once(tmp_path):
    echo = Echo()
    sources = [HALVE, KernelSource("twice", "twice it"), KernelSource("same", HALVE.text)]
    first, twice, same = KernelCompiler(echo, tmp_path).compile_all(sources, ARCH)
    assert first == same != twice
    assert len(echo.compiled) == 2


def test_version_gpu_and_source_are_in_the_key(tmp_path):
    echo, newer = Echo(), Echo("13.1")
    KernelCompiler(echo, tmp_path).compile_all([HALVE], ARCH)
    KernelCompiler(echo, tmp_path).compile_all([HALVE], "sm_100a")
    KernelCompiler(echo, tmp_path).compile_all([KernelSource("halve", "halve it.")], ARCH)
    KernelCompiler(newer, tmp_path).compile_all([HALVE], ARCH)
    assert len(echo.compiled) == 3 and len(newer.compiled) == 1
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("precision", "division", "subnormals"),
    [("fp32", False, False), ("tf32", True, False), ("bf16", True, True)],
)
def test_short_arithmetic_is_for_short_types(tmp_path, precision, division, subnormals):
    (made,) = KernelCompiler(Echo(), tmp_path).compile_all([HALVE], ARCH, precision)
    assert (b"--prec-div=false" in made, b"--ftz=true" in made) == (division, subnormals)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda _: b""]
)
def test_a_damaged_file_is_compiled_anew(tmp_path, damage):
    echo = Echo()
    compiler = KernelCompiler(echo, tmp_path)
    (whole,) = compiler.compile_all([HALVE], ARCH)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert compiler.compile_all([HALVE], ARCH) == [whole]
    assert compiler.compile_all([HALVE], ARCH) == [whole]
    assert len(echo.compiled) == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    echo = Echo()
    compiler = KernelCompiler(echo, tmp_path / "file" / "kernels")
    assert compiler.compile_all([HALVE], ARCH) == compiler.compile_all([HALVE], ARCH)
    assert len(echo.compiled) == 2


def test_many_at_once_leave_whole_files(tmp_path):
    sources = [KernelSource(str(i), f"{i} " * 10_000) for i in range(5)]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda _: KernelCompiler(Echo(), tmp_path).compile_all(sources, ARCH), range(16)
            )
        )
    assert all(cubins == found[0] for cubins in found)
    assert len(list(tmp_path.iterdir())) == len(sources)  # no temporary file is left
    echo = Echo()
    assert KernelCompiler(echo, tmp_path).compile_all(sources, ARCH) == found[0]
    assert not echo.compiled


def test_the_folder_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DPIFRAME_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "kernels"
    monkeypatch.delenv("DPIFRAME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "dpiframe" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dpiframe" / "kernels"


def test_where_there_is_no_nvrtc_there_is_no_compiler(monkeypatch):
    monkeypatch.setattr(kernel_compiler, "_libraries", lambda: iter(["/no/libnvrtc.so.13"]))
    kernel_compiler._nvrtc.cache_clear()
    assert find_compiler() is None
    kernel_compiler._nvrtc.cache_clear()
    with pytest.raises(RuntimeError, match=r"no NVRTC: .*libnvrtc\.so\.13"):
        _core.Nvrtc("/no/libnvrtc.so.13")
    with pytest.raises(RuntimeError, match="has no nvrtc"):
        _core.Nvrtc("libc.so.6")


@pytest.fixture
def compiler(tmp_path):
    nvrtc = kernel_compiler._nvrtc()
    if nvrtc is None:
        pytest.skip("NVRTC is not installed")
    return KernelCompiler(nvrtc, tmp_path)


def test_every_embedded_header_compiles(compiler):
    headers = [name for name, _ in _core.embedded_headers()]
    assert "ptx/wgmma.cuh" in headers and "cstdint" in headers
    includes = "#define DPIF_TILE_THREADS 128\n"  # as a generated kernel does
    includes += "".join(f'#include "{name}"\n' for name in headers)
    kernel = 'extern "C" __global__ void k(const __grid_constant__ dpiframe::CompiledParams p) {}\n'
    (cubin,) = compiler.compile_all([KernelSource("all", includes + kernel)], ARCH)
    assert cubin[:4] == b"\x7fELF"


def test_an_error_carries_the_log(compiler):
    with pytest.raises(RuntimeError, match=r"(?s)compile wrong:.*wrong\(1\).*misspelt"):
        compiler.compile_all([KernelSource("wrong", "misspelt int x;")], ARCH)
