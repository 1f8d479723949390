"""Opening a bundle on a GPU."""

from __future__ import annotations

import warnings
from dataclasses import replace

from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.engine.cuda.kernel_compiler import CompileError
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.precision import computed_precision
from dpiframe_core.errors import DeviceMemoryError
from dpiframe_core.lowering import DEVICE_PASSES, Pass, lower


def load_backend(opened: Bundle, options: CudaOptions) -> CudaBackend:
    """The bundle's program on a GPU, with epilogues compiled for it where that succeeds.

    DeviceMemoryError where the GPU has too little memory.
    """
    try:
        return _with_passes(opened, options, device_passes(options.device))
    except CompileError as error:  # the kernels compiled ahead give the same numbers
        warnings.warn(f"epilogues run as steps of their own, more slowly: {error}", stacklevel=3)
    return _with_passes(opened, replace(options, compiled_products=False), DEVICE_PASSES)


def _with_passes(opened: Bundle, options: CudaOptions, passes: tuple[Pass, ...]) -> CudaBackend:
    program = lower(opened.spec, opened.arrays(), passes)
    precision = computed_precision(options.precision, program, opened.schema)
    try:
        return CudaBackend(program, replace(options, precision=precision))
    except DeviceMemoryError as error:
        # Without the frames, which would hold what was taken while the caller handles the error.
        raise error.with_traceback(None) from None
