// What only the benchmark calls.
#include <pybind11/pybind11.h>

#include "bindings/families.h"
#include "kernels/testing/plain_gather.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

void plain_gather_argument(std::uintptr_t table, std::uintptr_t rows, std::int64_t num_rows,
                           std::int64_t row_bytes, std::uintptr_t out, std::uintptr_t stream) {
  plain_gather({reinterpret_cast<const void*>(table), reinterpret_cast<const std::int64_t*>(rows),
                num_rows, row_bytes, reinterpret_cast<void*>(out)},
               reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace

void bind_bench(py::module_& module) {
  module.def("plain_gather", &plain_gather_argument, py::arg("table"), py::arg("rows"),
             py::arg("num_rows"), py::arg("row_bytes"), py::arg("out"), py::arg("stream") = 0);
}

}  // namespace dpiframe
