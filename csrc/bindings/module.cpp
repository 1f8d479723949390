#include <string>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "common/device_errors.h"
#include "common/one_caller.h"
#include "kernels/embedding/gather_rows_cpu.h"

#ifdef DPIFRAME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "cuda/cuda_check.h"
#endif

namespace dpiframe {
namespace {

py::dict build_info() {
  using py::literals::operator""_a;
  py::list archs;
#ifdef DPIFRAME_WITH_CUDA
  constexpr bool kCuda = true;
  for (const py::handle arch : py::str(DPIFRAME_CUDA_ARCHS).attr("split")())
    archs.append("sm_" + arch.cast<std::string>());
#else
  constexpr bool kCuda = false;
#endif
  return py::dict("version"_a = DPIFRAME_VERSION, "compiler"_a = __VERSION__, "cuda"_a = kCuda,
                  "cuda_archs"_a = archs, "simd"_a = gather_rows_simd());
}

// Such as sm_90a: what kernels that are compiled at load are compiled for.
std::string gpu_arch([[maybe_unused]] int device) {
#ifdef DPIFRAME_WITH_CUDA
  int major = 0;
  int minor = 0;
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return "sm_" + std::to_string(10 * major + minor) + (major >= 9 ? "a" : "");
#else
  throw std::invalid_argument("this build has no CUDA part");
#endif
}

int cuda_device_count() {
#ifdef DPIFRAME_WITH_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
#endif
  return 0;
}

// Makes the process's context on a device, which takes tenths of a second. What fails here fails
// again, and is told, when an engine is loaded there.
void begin_cuda([[maybe_unused]] int device) {
#ifdef DPIFRAME_WITH_CUDA
  if (cudaSetDevice(device) != cudaSuccess || cudaFree(nullptr) != cudaSuccess)
    (void)cudaGetLastError();
#endif
}

}  // namespace
}  // namespace dpiframe

PYBIND11_MODULE(_core, module) {
  using namespace dpiframe;
  module.doc() = "Compiled part of dpiframe_core; _core.pyi holds the signatures.";
  py::register_exception<DeviceLostError>(module, "DeviceLostError", PyExc_RuntimeError);
  py::register_exception<DeviceMemoryError>(module, "DeviceMemoryError", PyExc_RuntimeError);
  py::class_<OneCaller>(module, "OneCaller")
      .def(py::init<>())
      .def("__enter__", &OneCaller::enter)
      .def("__exit__", [](OneCaller& caller, const py::args&) { caller.leave(); });
  module.def("build_info", &build_info);
  module.def("cuda_device_count", &cuda_device_count, py::call_guard<py::gil_scoped_release>());
  module.def("begin_cuda", &begin_cuda, py::arg("device"),
             py::call_guard<py::gil_scoped_release>());
  module.def("gpu_arch", &gpu_arch, py::arg("device"));
  bind_cpu_kernels(module);
  bind_encode(module);
  bind_jit(module);
  bind_memory(module);
  bind_parquet(module);
  bind_planner(module);
  bind_tensor(module);
  bind_codecs(module);
#ifdef DPIFRAME_WITH_CUDA
  bind_fused(module);
  bind_tensor_cuda(module);
  bind_cuda_program(module);
  bind_cuda_kernels(module);
  bind_runtime(module);
#endif
}
