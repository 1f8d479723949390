// Kernels over host arrays: lookup, ids outside their tables, packing, statistics of scores.
#include <algorithm>
#include <utility>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "common/table_memory.h"
#include "kernels/embedding/find_bad_ids.h"
#include "kernels/embedding/multi_table_lookup.h"
#include "kernels/head/score_statistics.h"
#include "runtime/batch_packer.h"

namespace dpiframe {
namespace {

// A field and the arrays whose memory it points to.
struct FieldArgument {
  FieldArgument(const py::array& table, std::int64_t out_column,
                const std::optional<py::array>& wide, bool in_fm, std::int64_t oov_row)
      : table_(contiguous_argument<float>(table, "table", 2)) {
    if (wide.has_value()) wide_ = contiguous_argument<float>(*wide, "wide", 1, table_.shape(0));
    field = {table_.data(),
             wide_.has_value() ? wide_->data() : nullptr,
             table_.shape(0),
             table_.shape(1),
             out_column,
             oov_row,
             in_fm};
  }

  LookupField field;

 private:
  Array<float> table_;
  std::optional<Array<float>> wide_;
};

struct LookupArgument {
  LookupArgument(std::vector<FieldArgument> fields, int num_threads)
      : owners(std::move(fields)), lookup(plain_fields(owners), num_threads) {}

  static std::vector<LookupField> plain_fields(const std::vector<FieldArgument>& owners) {
    std::vector<LookupField> fields;
    for (const FieldArgument& owner : owners) fields.push_back(owner.field);
    return fields;
  }

  LookupReport run(const py::sequence& ids, const py::array& out, bool use_oov,
                   const std::optional<py::array>& fm, const std::optional<py::array>& wide) {
    const IdColumns columns = id_columns(ids);
    DPIF_CHECK(py::isinstance<Array<float>>(out) && out.ndim() == 2 && out.writeable() &&
                   out.shape(0) == columns.size,
               "out must be writable float32 [", columns.size, ", W], got ", describe(out));
    DPIF_CHECK(
        out.size() == 0 || ((out.shape(1) == 1 || out.strides(1) == 4) && out.strides(0) % 4 == 0),
        "each row of out must be contiguous, got strides of ", out.strides(0), " and ",
        out.strides(1), " bytes");
    const LookupBatch batch{
        columns.size,
        columns.columns,
        static_cast<float*>(const_cast<void*>(out.data())),
        out.strides(0) / 4,
        out.shape(1),
        writable_argument<float>(fm, "fm", columns.size),
        writable_argument<float>(wide, "wide", columns.size),
        use_oov,
    };
    const py::gil_scoped_release release;
    return lookup.run(batch);
  }

  std::vector<FieldArgument> owners;
  MultiTableLookup lookup;
};

py::array_t<float> empty_table(py::ssize_t rows, py::ssize_t dim) {
  DPIF_CHECK(rows >= 0 && dim >= 0, "rows and dim must not be negative, got ", rows, " and ", dim);
  void* data = allocate_table(static_cast<std::size_t>(rows) * dim * sizeof(float));
  const py::capsule owner(data, &std::free);
  return py::array_t<float>({rows, dim}, static_cast<const float*>(data), owner);
}

py::tuple find_bad_ids_argument(const py::sequence& ids, const std::vector<std::int64_t>& rows) {
  const IdColumns columns = id_columns(ids);
  py::array_t<bool> mask(columns.size);
  py::array_t<std::int64_t> counts(static_cast<py::ssize_t>(columns.columns.size()));
  auto* mask_data = reinterpret_cast<std::uint8_t*>(mask.mutable_data());
  std::int64_t* counts_data = counts.mutable_data();
  {
    const py::gil_scoped_release release;
    find_bad_ids(columns.columns, rows, columns.size, mask_data, counts_data);
  }
  return py::make_tuple(mask, counts);
}

template <class Row>
py::array_t<Row> rows_of(const IdColumns& ids, const std::vector<FieldIds>& fields) {
  py::array_t<Row> rows({static_cast<py::ssize_t>(ids.columns.size()), ids.size});
  Row* data = rows.mutable_data();
  const py::gil_scoped_release release;
  rows_of_ids(ids.columns, fields, ids.size, data);
  return rows;
}

py::array rows_of_ids_argument(const py::sequence& ids, const std::vector<FieldIdsTuple>& given) {
  const IdColumns columns = id_columns(ids);
  const std::vector<FieldIds> fields = field_ids(given);
  const bool narrow = std::ranges::all_of(
      fields, [](const FieldIds& field) { return field.rows <= std::int64_t{1} << 31; });
  if (narrow) return rows_of<std::int32_t>(columns, fields);
  return rows_of<std::int64_t>(columns, fields);
}

template <class Number>
py::array_t<Number> packed(const IdColumns& from, int num_threads) {
  py::array_t<Number> target({static_cast<py::ssize_t>(from.columns.size()), from.size});
  void* data = target.mutable_data();
  const py::gil_scoped_release release;
  BatchPacker(num_threads).pack(from.columns, from.size, sizeof(Number), data);
  return target;
}

py::array pack_ids(const py::sequence& ids, bool to_int64, int num_threads) {
  const IdColumns columns = id_columns(ids);
  if (to_int64) return packed<std::int64_t>(columns, num_threads);
  return packed<std::int32_t>(columns, num_threads);
}

py::tuple score_statistics_argument(const py::array& scores) {
  const auto checked = contiguous_argument<float>(scores, "scores", 1);
  py::array_t<std::int64_t> histogram(kScoreBins);
  std::int64_t* bins = histogram.mutable_data();
  ScoreStatistics found;
  {
    const py::gil_scoped_release release;
    found = score_statistics(checked.data(), checked.size());
    std::copy(found.histogram.begin(), found.histogram.end(), bins);
  }
  return py::make_tuple(found.min, found.max, found.sum, histogram);
}

}  // namespace

void bind_cpu_kernels(py::module_& module) {
  py::class_<FieldArgument>(module, "LookupField")
      .def(py::init<const py::array&, std::int64_t, const std::optional<py::array>&, bool,
                    std::int64_t>(),
           py::arg("table"), py::arg("out_column"), py::arg("wide") = py::none(),
           py::arg("in_fm") = false, py::arg("oov_row") = -1)
      .def_property_readonly("rows", [](const FieldArgument& self) { return self.field.rows; })
      .def_property_readonly("dim", [](const FieldArgument& self) { return self.field.dim; })
      .def_property_readonly("out_column",
                             [](const FieldArgument& self) { return self.field.out_column; })
      .def_property_readonly("oov_row",
                             [](const FieldArgument& self) { return self.field.oov_row; });
  py::class_<LookupReport>(module, "LookupReport")
      .def_property_readonly("bad_counts",
                             [](const LookupReport& self) { return to_numpy(self.bad_counts); })
      .def_readonly("first_field", &LookupReport::first_field)
      .def_readonly("first_row", &LookupReport::first_row)
      .def_readonly("first_value", &LookupReport::first_value);
  py::class_<LookupArgument>(module, "MultiTableLookup")
      .def(py::init<std::vector<FieldArgument>, int>(), py::arg("fields"),
           py::arg("num_threads") = 0)
      .def_property_readonly("num_threads",
                             [](const LookupArgument& self) { return self.lookup.num_threads(); })
      .def("run", &LookupArgument::run, py::arg("ids"), py::arg("out"), py::arg("use_oov") = false,
           py::arg("fm") = py::none(), py::arg("wide") = py::none());
  module.def("empty_table", &empty_table, py::arg("rows"), py::arg("dim"));
  module.def("find_bad_ids", &find_bad_ids_argument, py::arg("ids"), py::arg("rows"));
  module.def("rows_of_ids", &rows_of_ids_argument, py::arg("ids"), py::arg("fields"));
  module.def("pack_ids", &pack_ids, py::arg("ids"), py::arg("to_int64") = false,
             py::arg("num_threads") = 0);
  module.def("score_statistics", &score_statistics_argument, py::arg("scores"));
}

}  // namespace dpiframe
