#include "bindings.h"

#include <string>

#include "common/numpy_args.h"
#include "kernels/gather_rows_cpu.h"
#include "kernels/xxh64.h"

#ifdef DPIFRAME_WITH_CUDA
#include <cuda_runtime_api.h>
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

int cuda_device_count() {
#ifdef DPIFRAME_WITH_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
#endif
  return 0;
}

template <class Offset>
py::array_t<std::uint64_t> hash_strings(const Array<Offset>& offsets,
                                        const Array<std::uint8_t>& data, std::uint64_t seed) {
  const py::ssize_t size = offsets.size() - 1;
  DPIF_CHECK(size >= 0, "offsets must have at least 1 entry, got 0");
  py::array_t<std::uint64_t> hashes(size);
  std::uint64_t* out = hashes.mutable_data();
  const py::gil_scoped_release release;
  xxh64_strings(offsets.data(), data.data(), data.size(), size, seed, out);
  return hashes;
}

py::array_t<std::uint64_t> xxh64_strings_argument(const py::array& offsets, const py::array& data,
                                                  std::uint64_t seed) {
  const auto bytes = contiguous_argument<std::uint8_t>(data, "data", 1);
  if (py::isinstance<Array<std::int32_t>>(offsets))
    return hash_strings(contiguous_argument<std::int32_t>(offsets, "offsets", 1), bytes, seed);
  return hash_strings(contiguous_argument<std::int64_t>(offsets, "offsets", 1), bytes, seed);
}

py::array_t<std::uint64_t> xxh64_int64_argument(const py::array& values, std::uint64_t seed) {
  const auto checked = contiguous_argument<std::int64_t>(values, "values", 1);
  py::array_t<std::uint64_t> hashes(checked.size());
  std::uint64_t* out = hashes.mutable_data();
  const py::gil_scoped_release release;
  xxh64_int64(checked.data(), checked.size(), seed, out);
  return hashes;
}

}  // namespace
}  // namespace dpiframe

PYBIND11_MODULE(_core, module) {
  using namespace dpiframe;
  module.doc() = "Compiled part of dpiframe_core; _core.pyi holds the signatures.";
  module.def("build_info", &build_info);
  module.def("cuda_device_count", &cuda_device_count);
  module.def("xxh64_strings", &xxh64_strings_argument, py::arg("offsets"), py::arg("data"),
             py::arg("seed"));
  module.def("xxh64_int64", &xxh64_int64_argument, py::arg("values"), py::arg("seed"));
  bind_lookup(module);
  bind_scheduler(module);
  bind_score_statistics(module);
#ifdef DPIFRAME_WITH_CUDA
  bind_cuda(module);
#endif
}
