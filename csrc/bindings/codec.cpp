#include <string>

#include "bindings/families.h"
#include "codec/zstd/decompress_cpu.h"
#include "common/check.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

std::span<std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data())), text.size()};
}

py::bytes unzstd_bytes(const py::bytes& packed, py::ssize_t size) {
  DPIF_CHECK(size >= 0, "size must be at least 0, got ", size);
  py::bytes out(nullptr, static_cast<std::size_t>(size));  // not yet seen by others: may be written
  const auto from = bytes_of(std::string_view(packed)), to = bytes_of(std::string_view(out));
  {
    const py::gil_scoped_release release;
    unzstd(from, to);
  }
  return out;
}

}  // namespace

void bind_zstd(py::module_& module) {
  module.def("unzstd", &unzstd_bytes, py::arg("packed"), py::arg("size"));
}

}  // namespace dpiframe
