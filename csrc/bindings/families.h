// The parts of the module; each adds its own functions and classes.
#pragma once

#include <pybind11/pybind11.h>

namespace dpiframe {

void bind_device_tensors(pybind11::module_& module);
void bind_encode(pybind11::module_& module);
void bind_host_memory(pybind11::module_& module);
void bind_lookup(pybind11::module_& module);
void bind_parquet(pybind11::module_& module);
void bind_scheduler(pybind11::module_& module);
void bind_score_statistics(pybind11::module_& module);
void bind_stored_columns(pybind11::module_& module);  // after bind_parquet
void bind_zstd(pybind11::module_& module);
// Only in a build with CUDA.
void bind_bench(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_cuda_program(pybind11::module_& module);
void bind_fused(pybind11::module_& module);
void bind_batch_ring(pybind11::module_& module);
void bind_linear(pybind11::module_& module);
void bind_page_scorer(pybind11::module_& module);

}  // namespace dpiframe
