#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "bindings/families.h"
#include "common/check.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/tile_config.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

template <class T>
void member(py::class_<LinearParams>& type, const char* name, T LinearParams::* place) {
  type.def_readwrite(name, place);
}

// A pointer member, as an address.
template <class T>
void address(py::class_<LinearParams>& type, const char* name, T* LinearParams::* place) {
  type.def_property(
      name,
      [place](const LinearParams& self) { return reinterpret_cast<std::uintptr_t>(self.*place); },
      [place](LinearParams& self, std::uintptr_t value) {
        self.*place = reinterpret_cast<T*>(value);
      });
}

void prepare(const std::string& precision, std::uintptr_t w, int n, int k, std::uintptr_t prepared,
             std::uintptr_t stream) {
  prepare_linear_weight(parse_precision(precision), reinterpret_cast<const float*>(w), n, k,
                        reinterpret_cast<void*>(prepared), reinterpret_cast<cudaStream_t>(stream));
}

void run(const std::string& precision, const LinearParams& params, std::uintptr_t stream) {
  linear(parse_precision(precision), params, reinterpret_cast<cudaStream_t>(stream));
}

py::tuple config(const std::string& precision, std::int64_t rows, int n) {
  const LinearConfig chosen = linear_config(parse_precision(precision), rows, n);
  return py::make_tuple(chosen.tile_n, chosen.alternate);
}

}  // namespace

void bind_linear(py::module_& module) {
  py::class_<LinearParams> params(module, "LinearParams");
  params.def(py::init([] { return LinearParams{}; }));
  member(params, "rows", &LinearParams::rows);
  member(params, "n", &LinearParams::n);
  member(params, "k", &LinearParams::k);
  member(params, "ldx", &LinearParams::ldx);
  member(params, "ldo", &LinearParams::ldo);
  member(params, "relu_begin", &LinearParams::relu_begin);
  member(params, "relu_end", &LinearParams::relu_end);
  member(params, "cross_begin", &LinearParams::cross_begin);
  member(params, "cross_end", &LinearParams::cross_end);
  member(params, "ldx0", &LinearParams::ldx0);
  member(params, "ldxl", &LinearParams::ldxl);
  member(params, "head_begin", &LinearParams::head_begin);
  member(params, "head_end", &LinearParams::head_end);
  member(params, "ld_partial", &LinearParams::ld_partial);
  address(params, "x", &LinearParams::x);
  address(params, "w", &LinearParams::w);
  address(params, "bias", &LinearParams::bias);
  address(params, "out", &LinearParams::out);
  address(params, "x0", &LinearParams::x0);
  address(params, "xl", &LinearParams::xl);
  address(params, "head", &LinearParams::head);
  address(params, "head_partial", &LinearParams::head_partial);
  module.def(
      "prepared_weight_bytes",
      [](const std::string& precision, int n, int k) {
        return prepared_weight_bytes(parse_precision(precision), n, k);
      },
      py::arg("precision"), py::arg("n"), py::arg("k"));
  module.def("prepare_linear_weight", &prepare, py::arg("precision"), py::arg("w"), py::arg("n"),
             py::arg("k"), py::arg("prepared"), py::arg("stream") = 0);
  module.def(
      "head_partials",
      [](const std::string& precision, std::int64_t rows, int n) {
        return head_partials(parse_precision(precision), rows, n);
      },
      py::arg("precision"), py::arg("rows"), py::arg("n"));
  module.def("linear_config", &config, py::arg("precision"), py::arg("rows"), py::arg("n"));
  module.def("linear", &run, py::arg("precision"), py::arg("params"), py::arg("stream") = 0);
}

}  // namespace dpiframe
