#include <string>

#include "bindings/families.h"
#include "codec/gzip/gunzip.h"
#include "codec/lz/decompress_cpu.h"
#include "codec/zstd/decompress_cpu.h"
#include "common/check.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

std::span<std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data())), text.size()};
}

template <auto decompress>
py::bytes decompressed(const py::bytes& packed, py::ssize_t size) {
  DPIF_CHECK(size >= 0, "size must be at least 0, got ", size);
  py::bytes out(nullptr, static_cast<std::size_t>(size));  // not yet seen by others: may be written
  const auto from = bytes_of(std::string_view(packed)), to = bytes_of(std::string_view(out));
  {
    const py::gil_scoped_release release;
    decompress(from, to);
  }
  return out;
}

}  // namespace

void bind_codecs(py::module_& module) {
  module.def("unzstd", &decompressed<unzstd>, py::arg("packed"), py::arg("size"));
  module.def("unsnappy", &decompressed<unsnappy>, py::arg("packed"), py::arg("size"));
  module.def("unlz4", &decompressed<unlz4>, py::arg("packed"), py::arg("size"));
  module.def("gunzip", &decompressed<gunzip>, py::arg("packed"), py::arg("size"));
}

}  // namespace dpiframe
