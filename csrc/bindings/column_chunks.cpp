#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "parquet/file.h"
#include "parquet/stored_chunks.h"

namespace dpiframe {
namespace {

using parquet::File;
using parquet::StoredColumns;

StoredColumns read(const File& file, const std::vector<std::string>& names, std::size_t first,
                   std::size_t stop, const py::array& memory) {
  auto* bytes = writable_argument<std::uint8_t>(memory, "memory", -1);
  const auto size = static_cast<std::size_t>(memory.size());
  const py::gil_scoped_release release;
  return parquet::read_stored(file, names, first, stop, {bytes, size});
}

template <class Number>
void* matrix(const StoredColumns& stored, const py::array& out) {
  Array<Number> array = contiguous_argument<Number>(out, "out", 2, stored.columns);
  DPIF_CHECK(array.shape(1) == stored.rows && array.writeable(), "out must be writable [",
             stored.columns, ", ", stored.rows, "], got ", describe(out));
  DPIF_CHECK((out.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0, "out must be aligned");
  return array.mutable_data();
}

void decode(const StoredColumns& stored, const py::array& memory, const py::array& out) {
  const auto bytes = contiguous_argument<std::uint8_t>(memory, "memory", 1);
  void* to = stored.number_bytes == 4 ? matrix<std::int32_t>(stored, out)
                                      : matrix<std::int64_t>(stored, out);
  const std::span<const std::uint8_t> packed(bytes.data(), static_cast<std::size_t>(bytes.size()));
  const py::gil_scoped_release release;
  parquet::decode_stored(stored, packed, to);
}

}  // namespace

void bind_stored_columns(py::module_& module) {
  py::class_<StoredColumns>(module, "StoredColumns")
      .def_readonly("rows", &StoredColumns::rows)
      .def_readonly("columns", &StoredColumns::columns)
      .def_readonly("number_bytes", &StoredColumns::number_bytes)
      .def_readonly("packed_bytes", &StoredColumns::packed_bytes)
      .def_readonly("unpacked_bytes", &StoredColumns::unpacked_bytes)
      .def_property_readonly("num_pages",
                             [](const StoredColumns& stored) { return stored.pages.size(); })
      .def("decode", &decode, py::arg("memory"), py::arg("out"));
  py::class_<File> file(module.attr("ParquetFile"));
  file.def("stored_bytes", &parquet::stored_bytes, py::arg("names"), py::arg("first"),
           py::arg("stop"), py::call_guard<py::gil_scoped_release>());
  file.def("read_stored", &read, py::arg("names"), py::arg("first"), py::arg("stop"),
           py::arg("memory"));
}

}  // namespace dpiframe
