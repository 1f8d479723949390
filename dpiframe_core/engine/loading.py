"""Opening a bundle on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from dpiframe_core import _core
from dpiframe_core.bundle.reading import Bundle, open_bundle
from dpiframe_core.engine.engine import Backend, Engine
from dpiframe_core.engine.precision import PRECISIONS, Precision
from dpiframe_core.lowering import MODULE_PASSES, lower
from dpiframe_core.program.program import Program
from dpiframe_core.program.schedule import Policy

# What this build has a backend for; whether the machine has such a device is another matter.
DEVICES = ("cpu", "cuda") if _core.build_info()["cuda"] else ("cpu",)


def load_engine(  # noqa: PLR0913 - the one call that users make: keywords read best
    bundle: str | Path | Bundle,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 65536,
    streams: int = 4,
    policy: Policy = "breadth_first",
    graphs: bool = True,
    on_bad_id: Literal["fail", "oov"] = "fail",
    threads: int | None = None,
    light: bool = False,
    output: str | None = None,
) -> Engine:
    """Open a bundle and make it ready to score.

    `device`: "cpu", "cuda", "cuda:1" for one of several GPUs, or "auto": a GPU where this build and
    the machine have one. `max_batch`: samples a device batch (larger inputs are cut); `streams`,
    `policy` (the order of launches: "serial", "depth_first", "breadth_first"; "auto": breadth first
    where a fiftieth of the work lies beside the longest chain of steps, else serial) and `graphs`:
    how a GPU runs the plan, without effect on the CPU; with graphs, branches run on one stream in
    sizes of batches where that takes no longer, as it measures. `threads`: CPU threads, on the CPU
    set for the whole process (default: torch's setting), for a GPU those that pack batches
    (default: up to 16).
    `precision` "bf16" computes in fp16 where the weights show that fp16 holds all numbers, dense
    features as the bundle's schema makes them. With `on_bad_id="oov"` every field needs an
    `oov_row`. The CPU computes in float32 whatever the precision, within the bound of each.
    `light`: on the CPU compute with numpy where the model's steps allow it, which starts seconds
    sooner, as torch need not be imported, and is slower for large inputs.
    `output`: a module of the model to end in instead: with one number a sample the logit of another
    task, which is scored; with more an embedding, for `Engine.embed`, which the CPU computes.
    DeviceMemoryError where the GPU has too little memory: all that was taken is given back, and a
    smaller `max_batch` may fit.
    """
    gpu = _chosen_gpu(device)
    _check_choice("precision", precision, PRECISIONS)
    _check_choice("policy", policy, get_args(Policy))
    _check_choice("on_bad_id", on_bad_id, ("fail", "oov"))
    _check_positive(max_batch=max_batch, streams=streams, threads=threads)
    opened = _opened(bundle, on_bad_id)
    if output is not None:
        opened = replace(opened, spec=opened.spec.ending_in(output))
        if opened.spec.width != 1:
            if gpu is not None:
                raise ValueError("embeddings are computed on the CPU: device must be cpu")
            program = lower(opened.spec, opened.arrays(), MODULE_PASSES)
            return Engine(opened, _on_cpu(program, max_batch, threads, False), "fp32", on_bad_id)
    if gpu is None:
        cpu = _on_cpu(lower(opened.spec, opened.arrays()), max_batch, threads, light)
        return Engine(opened, cpu, precision, on_bad_id)
    # A tenth of a second of imports, which a small job on the CPU does without.
    from dpiframe_core.engine.cuda.backend import CudaOptions
    from dpiframe_core.engine.cuda.loading import load_backend

    options = CudaOptions(precision, max_batch, streams, graphs, policy, gpu, threads)
    return Engine(opened, load_backend(opened, options), precision, on_bad_id)


def _on_cpu(program: Program, max_batch: int, threads: int | None, light: bool) -> Backend:
    if light:
        from dpiframe_core.engine.light_cpu import LightCpuBackend, fits

        if fits(program):
            return LightCpuBackend(program, max_batch, threads)
    from dpiframe_core.engine.cpu import CpuBackend  # brings torch, which a GPU does without

    return CpuBackend(program, max_batch, threads)


def _opened(bundle: str | Path | Bundle, on_bad_id: str) -> Bundle:
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    if on_bad_id == "oov":
        without = opened.spec.without_oov_row
        if without:
            raise ValueError(f"on_bad_id='oov' needs an oov_row in every field; none in {without}")
    return opened


def _chosen_gpu(device: str) -> int | None:
    """The number of the GPU, or None for the CPU."""
    count = _core.cuda_device_count() if "cuda" in DEVICES else 0
    if device == "cpu":
        return None
    if device == "auto":
        return 0 if count else None
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or device.endswith(":"):
        raise ValueError(f"device must be one of auto, cpu, cuda, cuda:<number>, got {device!r}")
    if "cuda" not in DEVICES:
        raise ValueError(f"device {device}: this build has no CUDA part; install one built by nvcc")
    if int(number or 0) >= count:
        raise ValueError(f"device {device}: this machine has {count} CUDA devices that can be used")
    return int(number or 0)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
