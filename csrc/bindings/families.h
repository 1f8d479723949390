// The parts of the module; each adds its own functions and classes.
#pragma once

#include <pybind11/pybind11.h>

namespace dpiframe {

void bind_cpu_kernels(pybind11::module_& module);
void bind_encode(pybind11::module_& module);
void bind_jit(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_parquet(pybind11::module_& module);
void bind_planner(pybind11::module_& module);
void bind_tensor(pybind11::module_& module);
void bind_codecs(pybind11::module_& module);
// Only in a build with CUDA.
void bind_cuda_kernels(pybind11::module_& module);
void bind_cuda_program(pybind11::module_& module);
void bind_fused(pybind11::module_& module);
void bind_tensor_cuda(pybind11::module_& module);
void bind_runtime(pybind11::module_& module);  // after bind_cuda_program

}  // namespace dpiframe
