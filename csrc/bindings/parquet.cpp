#include <algorithm>
#include <cerrno>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "parquet/column_pages.h"
#include "parquet/file.h"
#include "parquet/lists/read_list.h"
#include "parquet/metadata/statistics.h"
#include "parquet/raw/encoded_pages.h"
#include "parquet/raw/read_encoded.h"
#include "parquet/whole_files.h"

namespace dpiframe {
namespace {

using parquet::ColumnPages;
using parquet::File;
using parquet::PhysicalType;

std::optional<std::string> number_type(const File& file, const std::string& name, std::size_t first,
                                       std::size_t stop) {
  const auto type = file.readable(name, first, stop);
  if (!type.has_value()) return {};
  switch (*type) {
    case PhysicalType::kInt32:
      return "<i4";
    case PhysicalType::kInt64:
      return "<i8";
    case PhysicalType::kFloat:
      return "<f4";
    case PhysicalType::kDouble:
      return "<f8";
    default:
      break;
  }
  return {};
}

// Each file by its footer; nothing for one that cannot be opened: who opens it alone learns why.
std::vector<std::optional<File>> open_each(const std::vector<std::string>& paths) {
  std::vector<std::optional<File>> files(paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    try {
      files[i].emplace(paths[i]);
    } catch (const std::exception&) {
    }
  }
  return files;
}

std::optional<std::string> feature_type(const parquet::Column* column) {
  if (column == nullptr) return {};
  switch (column->type) {
    case PhysicalType::kInt32:
      return column->is_signed || column->integer_bits < 32 ? "<i4" : "<i8";
    case PhysicalType::kInt64:
      return column->is_signed ? "<i8" : "<u8";
    case PhysicalType::kFloat:
      return "<f4";
    case PhysicalType::kDouble:
      return "<f8";
    default:
      break;
  }
  return {};
}

// The type in which each column's numbers fit as a feature: integers of 4 or 8 bytes, or floats.
std::vector<std::optional<std::string>> feature_types(const File& file,
                                                      const std::vector<std::string>& names,
                                                      std::size_t first, std::size_t stop) {
  std::vector<std::optional<std::string>> found;
  for (const std::string& name : names)
    found.push_back(feature_type(file.feature(name, first, stop)));
  return found;
}

void* memory_of(const std::string& name, const std::string& type, const py::array& out,
                py::ssize_t rows) {
  DPIF_CHECK((out.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0, name,
             " must be aligned");
  if (type == "<i4") return writable_argument<std::int32_t>(out, name, rows);
  if (type == "<i8") return writable_argument<std::int64_t>(out, name, rows);
  if (type == "<f4") return writable_argument<float>(out, name, rows);
  return writable_argument<double>(out, name, rows);
}

void read_columns(const File& file, const std::vector<std::string>& names, std::size_t first,
                  std::size_t stop, const std::vector<py::array>& outs) {
  DPIF_CHECK(names.size() == outs.size(), names.size(), " names, but ", outs.size(), " arrays");
  const py::ssize_t rows = file.rows(first, stop);
  std::vector<parquet::Target> targets;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto type = number_type(file, names[i], first, stop);
    DPIF_CHECK(type.has_value(), "column ", names[i], " cannot be read here");
    const int number_bytes = type->back() - '0';
    targets.push_back({names[i], number_bytes, memory_of(names[i], *type, outs[i], rows)});
  }
  const py::gil_scoped_release release;
  file.read(targets, first, stop);
}

std::optional<std::string> list_type(const File& file, const std::string& name, std::size_t first,
                                     std::size_t stop) {
  using parquet::ElementKind;
  const auto kind = parquet::list_elements(file, name, first, stop);
  if (!kind.has_value()) return {};
  switch (*kind) {
    case ElementKind::kInt32:
      return "<i4";
    case ElementKind::kUint32:
      return "<u4";
    case ElementKind::kInt64:
      return "<i8";
    case ElementKind::kFloat:
      return "<f4";
    case ElementKind::kDouble:
      return "<f8";
  }
  return {};
}

// How lists are padded.
struct Padding {
  bool before;
  bool keeps_last;
  py::object pad;
};

template <class Number>
py::array read_list(const File& file, const std::string& name, std::size_t first, std::size_t stop,
                    const Padding& padding, const std::vector<py::array>& outs) {
  const py::ssize_t rows = file.rows(first, stop);
  parquet::ListTarget<Number> target{
      {}, padding.before, padding.keeps_last, padding.pad.cast<Number>()};
  for (const py::array& out : outs)
    target.places.push_back(writable_argument<Number>(out, name, rows));
  std::vector<std::int64_t> bad;
  {
    const py::gil_scoped_release release;
    bad = parquet::read_list(file, name, first, stop, target);
  }
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(bad.size()), bad.data());
}

py::array read_list_argument(const File& file, const std::string& name, std::size_t first,
                             std::size_t stop, const std::vector<py::array>& outs,
                             const py::object& pad, bool pads_before, bool keeps_last) {
  DPIF_CHECK(!outs.empty(), "outs must have at least 1 array, got 0");
  const Padding padding{pads_before, keeps_last, pad};
  if (py::isinstance<Array<std::int32_t>>(outs[0]))
    return read_list<std::int32_t>(file, name, first, stop, padding, outs);
  if (py::isinstance<Array<std::int64_t>>(outs[0]))
    return read_list<std::int64_t>(file, name, first, stop, padding, outs);
  return read_list<float>(file, name, first, stop, padding, outs);
}

// All columns in one call: threads that take the interpreter's lock again for each column wait for
// one another wherever there are more of them than cores.
void read_encoded(const File& file, const std::vector<std::string>& names, std::size_t first,
                  std::size_t stop, const std::vector<const ValueEncoder*>& encoders,
                  const std::vector<py::array>& outs) {
  DPIF_CHECK(names.size() == outs.size() && encoders.size() == outs.size(), names.size(),
             " names and ", encoders.size(), " encoders, but ", outs.size(), " arrays");
  const py::ssize_t rows = file.rows(first, stop);
  using Column = std::pair<std::string, std::vector<parquet::EncodedTarget>>;
  std::vector<Column> columns;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const std::string& name = names[i];
    DPIF_CHECK(encoders[i] != nullptr, "an encoder is None");
    // Codes of dense features are floats.
    void* out = py::isinstance<Array<float>>(outs[i])
                    ? static_cast<void*>(writable_argument<float>(outs[i], name, rows))
                    : writable_argument<Code>(outs[i], name, rows);
    auto column = std::ranges::find(columns, name, &Column::first);
    if (column == columns.end()) column = columns.insert(column, {name, {}});
    column->second.push_back({encoders[i], static_cast<Code*>(out)});
  }
  const py::gil_scoped_release release;
  for (const auto& [name, targets] : columns)
    parquet::read_encoded(file, name, first, stop, targets);
}

// The memory that a feature goes to: int32, int64, uint64 or float32.
parquet::Target feature_target(const std::string& name, const py::array& out, py::ssize_t rows,
                               std::vector<std::int64_t>& nulls) {
  const bool as_float = py::isinstance<py::array_t<float>>(out);
  const int number_bytes = static_cast<int>(out.itemsize());
  void* memory = nullptr;
  if (py::isinstance<py::array_t<std::uint64_t>>(out))
    memory = writable_argument<std::uint64_t>(out, name, rows);
  else
    memory = memory_of(name, as_float ? "<f4" : number_bytes == 4 ? "<i4" : "<i8", out, rows);
  return {name, number_bytes, memory, &nulls, as_float};
}

std::vector<py::array_t<std::int64_t>> read_features(const File& file,
                                                     const std::vector<std::string>& names,
                                                     std::size_t first, std::size_t stop,
                                                     const std::vector<py::array>& outs) {
  DPIF_CHECK(names.size() == outs.size(), names.size(), " names, but ", outs.size(), " arrays");
  const py::ssize_t rows = file.rows(first, stop);
  std::vector<std::vector<std::int64_t>> nulls(names.size());
  std::vector<parquet::Target> targets;
  for (std::size_t i = 0; i < names.size(); ++i)
    targets.push_back(feature_target(names[i], outs[i], rows, nulls[i]));
  {
    const py::gil_scoped_release release;
    file.read(targets, first, stop);
  }
  std::vector<py::array_t<std::int64_t>> found;
  for (const std::vector<std::int64_t>& each : nulls) found.emplace_back(each.size(), each.data());
  return found;
}

File file_of_end(std::int64_t size, const py::array& end) {
  const auto bytes = contiguous_argument<std::uint8_t>(end, "end", 1);
  return {size, Bytes(bytes.data(), static_cast<std::size_t>(bytes.size()))};
}

using Ranges = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

File file_over(const File& file, const py::array& memory, const Ranges& ranges) {
  const auto bytes = contiguous_argument<std::uint8_t>(memory, "memory", 1);
  std::vector<parquet::KnownRange> known;
  for (const auto& [begin, at, size] : ranges) known.push_back({begin, at, size});
  return file.over({bytes.data(), static_cast<std::size_t>(bytes.size())}, std::move(known));
}

std::vector<std::pair<std::int64_t, std::int64_t>> chunk_ranges(
    const File& file, const std::vector<std::string>& names, std::size_t first, std::size_t stop) {
  std::vector<std::pair<std::int64_t, std::int64_t>> found;
  for (const parquet::FileRange& range : file.chunk_ranges(names, first, stop))
    found.emplace_back(range.begin, range.bytes);
  return found;
}

py::bytes bytes_of(const std::vector<std::uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Made once for many files.
struct StatisticsLimits {
  parquet::Limits columns;
};

py::list statistics_problems(const File& file, const StatisticsLimits& limits) {
  py::list found;
  for (const auto& p : parquet::statistics_problems(file.footer(), limits.columns))
    found.append(py::make_tuple(p.column, p.kind, p.row_group, p.value, p.row_groups));
  return found;
}

ColumnPages read_pages(const File& file, const std::vector<std::string>& names, std::size_t first,
                       std::size_t stop, const py::array& memory,
                       std::optional<std::int64_t> unpack_above) {
  auto* bytes = writable_argument<std::uint8_t>(memory, "memory", -1);
  const auto size = static_cast<std::size_t>(memory.size());
  const py::gil_scoped_release release;
  return parquet::read_pages(file, names, first, stop, {bytes, size}, unpack_above);
}

std::int64_t encoded_pages_bytes(const File& file, const std::vector<std::string>& names,
                                 std::size_t first, std::size_t stop,
                                 const std::vector<const ValueEncoder*>& encoders) {
  DPIF_CHECK(std::ranges::count(encoders, nullptr) == 0, "an encoder is None");
  const py::gil_scoped_release release;
  return parquet::encoded_pages_bytes(file, names, encoders, first, stop);
}

ColumnPages read_encoded_pages(const File& file, const std::vector<std::string>& names,
                               std::size_t first, std::size_t stop,
                               const std::vector<const ValueEncoder*>& encoders,
                               const py::array& memory, std::optional<std::int64_t> unpack_above) {
  DPIF_CHECK(std::ranges::count(encoders, nullptr) == 0, "an encoder is None");
  auto* bytes = writable_argument<std::uint8_t>(memory, "memory", -1);
  const auto size = static_cast<std::size_t>(memory.size());
  const py::gil_scoped_release release;
  return parquet::read_encoded_pages(file, names, encoders, first, stop, {bytes, size},
                                     unpack_above);
}

PhysicalType physical_type(const std::string& type) {
  if (type == "<i4") return PhysicalType::kInt32;
  if (type == "<i8") return PhysicalType::kInt64;
  if (type == "<f4") return PhysicalType::kFloat;
  DPIF_CHECK(type == "<f8", "a plain column is <i4, <i8, <f4 or <f8, got ", type);
  return PhysicalType::kDouble;
}

using Planned = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;
using PlainOut = std::tuple<std::string, std::string, py::array>;
using DenseOut = std::pair<std::string, py::array>;

std::tuple<ColumnPages, std::vector<std::int64_t>, bool> read_whole_files(
    const std::vector<Planned>& files, const std::vector<PlainOut>& plain,
    const std::vector<DenseOut>& dense, const std::vector<std::string>& ids,
    const py::array& memory, std::optional<std::int64_t> unpack_above) {
  std::vector<parquet::PlannedFile> planned;
  py::ssize_t rows = 0;
  for (const auto& [path, size, mtime_ns, file_rows] : files) {
    DPIF_CHECK(file_rows >= 0, path, ": ", file_rows, " rows");
    planned.push_back({path, size, mtime_ns, file_rows});
    rows += file_rows;
  }
  std::vector<std::int64_t> nulls;
  std::vector<parquet::PlainColumn> columns;
  std::vector<parquet::Target> features;
  for (const auto& [name, type, out] : plain) {
    const PhysicalType stored = physical_type(type);
    columns.push_back({{name, type.back() - '0', memory_of(name, type, out, rows)}, stored});
  }
  for (const auto& [name, out] : dense) features.push_back(feature_target(name, out, rows, nulls));
  auto* bytes = writable_argument<std::uint8_t>(memory, "memory", -1);
  const auto size = static_cast<std::size_t>(memory.size());
  const py::gil_scoped_release release;
  parquet::WholeFiles found = parquet::read_whole_files(
      planned, std::move(columns), std::move(features), ids, {bytes, size}, unpack_above);
  return {std::move(found.pages), std::move(found.group_rows), !nulls.empty()};
}

template <class Number>
void* matrix(const ColumnPages& pages, const py::array& out) {
  Array<Number> array = contiguous_argument<Number>(out, "out", 2, pages.columns);
  DPIF_CHECK(array.shape(1) == pages.rows && array.writeable(), "out must be writable [",
             pages.columns, ", ", pages.rows, "], got ", describe(out));
  DPIF_CHECK((out.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0, "out must be aligned");
  return array.mutable_data();
}

void decode_pages(const ColumnPages& pages, const py::array& memory, const py::array& out) {
  const auto bytes = contiguous_argument<std::uint8_t>(memory, "memory", 1);
  void* to =
      pages.number_bytes == 4 ? matrix<std::int32_t>(pages, out) : matrix<std::int64_t>(pages, out);
  const Bytes stored(bytes.data(), static_cast<std::size_t>(bytes.size()));
  const py::gil_scoped_release release;
  parquet::decode_pages_on_cpu(pages, stored, to);
}

}  // namespace

void bind_parquet(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const parquet::FileError& error) {
      errno = error.code().value();
      PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.path.c_str());
    }
  });
  py::class_<ColumnPages>(module, "ColumnPages")
      .def_readonly("rows", &ColumnPages::rows)
      .def_readonly("columns", &ColumnPages::columns)
      .def_readonly("number_bytes", &ColumnPages::number_bytes)
      .def_readonly("compressed_bytes", &ColumnPages::compressed_bytes)
      .def_readonly("uncompressed_bytes", &ColumnPages::uncompressed_bytes)
      .def_property_readonly("num_pages",
                             [](const ColumnPages& pages) { return pages.pages.size(); })
      .def("append", &ColumnPages::append, py::arg("file"), py::arg("at"),
           py::call_guard<py::gil_scoped_release>())
      .def("decode", &decode_pages, py::arg("memory"), py::arg("out"));
  py::class_<StatisticsLimits>(module, "StatisticsLimits")
      .def(py::init([](parquet::Limits columns) { return StatisticsLimits{std::move(columns)}; }),
           py::arg("columns"));
  py::class_<File>(module, "ParquetFile")
      .def(py::init<const std::string&>(), py::arg("path"),
           py::call_guard<py::gil_scoped_release>())
      .def_static("open_each", &open_each, py::arg("paths"),
                  py::call_guard<py::gil_scoped_release>())
      .def_static("of_end", &file_of_end, py::arg("size"), py::arg("end"))
      .def("over", &file_over, py::arg("memory"), py::arg("ranges"), py::keep_alive<0, 2>())
      .def("chunk_ranges", &chunk_ranges, py::arg("names"), py::arg("first"), py::arg("stop"))
      .def_property_readonly("size", [](const File& file) { return file.bytes().size(); })
      .def_property_readonly("mtime_ns", [](const File& file) { return file.bytes().mtime_ns(); })
      .def_property_readonly("footer", [](const File& f) { return bytes_of(f.footer().bytes); })
      .def_property_readonly("group_rows", &File::group_rows)
      .def_property_readonly("encrypted", &File::encrypted)
      .def("empty", [](const File& f) { return py::bytes(parquet::empty_file(f.footer())); })
      .def("statistics_problems", &statistics_problems, py::arg("limits"))
      .def("number_type", &number_type, py::arg("name"), py::arg("first"), py::arg("stop"))
      .def("read", &read_columns, py::arg("names"), py::arg("first"), py::arg("stop"),
           py::arg("outs"))
      .def("list_type", &list_type, py::arg("name"), py::arg("first"), py::arg("stop"))
      .def("read_list", &read_list_argument, py::arg("name"), py::arg("first"), py::arg("stop"),
           py::arg("outs"), py::arg("pad"), py::arg("pads_before"), py::arg("keeps_last"))
      .def(
          "is_encodable",
          [](const File& file, const std::string& name, std::size_t first, std::size_t stop) {
            return parquet::raw_kind(file, name, first, stop).has_value();
          },
          py::arg("name"), py::arg("first"), py::arg("stop"))
      .def("read_encoded", &read_encoded, py::arg("names"), py::arg("first"), py::arg("stop"),
           py::arg("encoders"), py::arg("outs"))
      .def("encoded_pages_bytes", &encoded_pages_bytes, py::arg("names"), py::arg("first"),
           py::arg("stop"), py::arg("encoders"))
      .def("read_encoded_pages", &read_encoded_pages, py::arg("names"), py::arg("first"),
           py::arg("stop"), py::arg("encoders"), py::arg("memory"),
           py::arg("unpack_above") = py::none())
      .def("feature_types", &feature_types, py::arg("names"), py::arg("first"), py::arg("stop"))
      .def("read_features", &read_features, py::arg("names"), py::arg("first"), py::arg("stop"),
           py::arg("outs"))
      .def("pages_bytes", &parquet::pages_bytes, py::arg("names"), py::arg("first"),
           py::arg("stop"), py::call_guard<py::gil_scoped_release>())
      .def("unpacked_bytes", &parquet::unpacked_bytes, py::arg("names"), py::arg("first"),
           py::arg("stop"), py::call_guard<py::gil_scoped_release>())
      .def("read_pages", &read_pages, py::arg("names"), py::arg("first"), py::arg("stop"),
           py::arg("memory"), py::arg("unpack_above") = py::none());
  module.def("read_whole_files", &read_whole_files, py::arg("files"), py::arg("plain"),
             py::arg("dense"), py::arg("ids"), py::arg("memory"),
             py::arg("unpack_above") = py::none());
}

}  // namespace dpiframe
