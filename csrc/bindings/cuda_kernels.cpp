// Single kernels over arrays on a CUDA device: what tests and benchmarks call.
#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/families.h"
#include "common/check.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/tile_config.h"
#include "kernels/testing/plain_gather.h"
#include "runtime/prepared_lookup.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

// Anything with __cuda_array_interface__ (torch, CuPy, Numba have it).
struct DeviceArray {
  DeviceArray(const py::object& array, const std::string& name, const std::string& types,
              std::size_t num_dims)
      : owner(array) {
    DPIF_CHECK(py::hasattr(array, "__cuda_array_interface__"), name,
               " must be an array on a CUDA device");
    const py::dict view = array.attr("__cuda_array_interface__");
    type = view["typestr"].cast<std::string>();
    shape = view["shape"].cast<std::vector<std::int64_t>>();
    DPIF_CHECK(types.find(type) != std::string::npos && shape.size() == num_dims, name,
               " must be of type ", types, " with ", num_dims, " dimension(s), got ", type,
               " with ", shape.size());
    data = view["data"].cast<std::pair<std::uintptr_t, bool>>().first;
    const auto bytes = std::stoll(type.substr(2));
    stride = num_dims == 2 ? shape[1] : 1;
    if (!view.contains("strides") || view["strides"].is_none()) return;
    const auto strides = view["strides"].cast<std::vector<std::int64_t>>();
    DPIF_CHECK(shape.back() <= 1 || strides.back() == bytes, name,
               " must be contiguous along its last dimension");
    if (num_dims == 2) stride = strides[0] / bytes;
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  py::object owner;
  std::string type;
  std::vector<std::int64_t> shape;
  std::uintptr_t data = 0;
  std::int64_t stride = 0;  // elements from one row to the next
};

DeviceArray vector_of(const py::object& array, const std::string& name, const std::string& type,
                      std::int64_t length) {
  DeviceArray result(array, name, type, 1);
  DPIF_CHECK(result.shape[0] == length, name, " must have length ", length, ", got ",
             result.shape[0]);
  return result;
}

DataType type_of(const std::string& name) {
  return name == "<f4" ? DataType::kFloat : DataType::kHalf;
}

struct CudaFieldArgument {
  CudaFieldArgument(const py::object& table, std::int64_t out_column, const py::object& wide,
                    bool in_fm, std::int64_t oov_row)
      : table_(table, "table", "<f4 or <f2", 2), wide_(wide) {
    const std::int64_t rows = table_.shape[0];
    DPIF_CHECK(table_.stride == table_.shape[1], "table must be contiguous");
    const float* weights =
        wide.is_none() ? nullptr : vector_of(wide, "wide", "<f4", rows).as<float>();
    field = {table_.as<void>(), weights, rows, table_.shape[1], out_column, oov_row, 0, in_fm};
  }

  DataType type() const { return type_of(table_.type); }

  DeviceLookupField field;

 private:
  DeviceArray table_;
  py::object wide_;
};

struct CudaLookupArgument {
  explicit CudaLookupArgument(std::vector<CudaFieldArgument> arguments)
      : owners(std::move(arguments)), fields(plain_fields(owners), owners.at(0).type()) {}

  static std::vector<DeviceLookupField> plain_fields(const std::vector<CudaFieldArgument>& owners) {
    std::vector<DeviceLookupField> fields;
    for (const CudaFieldArgument& owner : owners) {
      DPIF_CHECK(owner.type() == owners[0].type(), "the tables must be of one type");
      fields.push_back(owner.field);
      fields.back().ids_row = static_cast<std::int64_t>(fields.size()) - 1;
    }
    return fields;
  }

  void run(const py::object& ids, const py::object& out, const py::object& report, bool use_oov,
           const py::object& fm, const py::object& wide, std::uintptr_t stream) const {
    const auto [params, memory] = checked(ids, out, report, use_oov, fm, wide);
    multi_table_lookup(memory.batch, params, memory, reinterpret_cast<cudaStream_t>(stream));
  }

  std::unique_ptr<PreparedLookup> prepare(const py::object& ids, const py::object& out,
                                          const py::object& report, bool use_oov,
                                          const py::object& fm, const py::object& wide) const {
    const auto [params, memory] = checked(ids, out, report, use_oov, fm, wide);
    return std::make_unique<PreparedLookup>(params, memory);
  }

  std::pair<MultiTableLookupParams, BatchMemory> checked(const py::object& ids,
                                                         const py::object& out,
                                                         const py::object& report, bool use_oov,
                                                         const py::object& fm,
                                                         const py::object& wide) const {
    const DeviceArray ids_view(ids, "ids", "<i4 or <i8", 2);
    const DeviceArray out_view(out, "out", "<f4 or <f2", 2);
    const std::int64_t num_fields = fields.shape().num_fields;
    const std::int64_t batch = ids_view.shape[1];
    DPIF_CHECK(ids_view.shape[0] == num_fields, "ids must have ", num_fields, " rows, got ",
               ids_view.shape[0]);
    DPIF_CHECK(type_of(out_view.type) == fields.shape().type, "out must be of the tables' type");
    DPIF_CHECK(out_view.shape[0] == batch && out_view.shape[1] >= fields.out_width(),
               "out must be [", batch, ", at least ", fields.out_width(), "], got [",
               out_view.shape[0], ", ", out_view.shape[1], "]");
    DPIF_CHECK(fm.is_none() || fields.has_fm(), "fm was asked for and no field is in FM");
    BatchMemory memory{};
    memory.report = vector_of(report, "report", "<i8", num_fields + 1).as<unsigned long long>();
    memory.ids = ids_view.as<void>();
    memory.ids_stride = ids_view.stride;
    memory.ids_are_int64 = ids_view.type == "<i8";
    memory.batch = batch;
    memory.use_oov = use_oov;
    MultiTableLookupParams params{};
    params.fields = fields.get();
    params.shape = fields.shape();
    params.out = out_view.as<void>();
    params.out_stride = out_view.stride;
    params.fm = fm.is_none() ? nullptr : vector_of(fm, "fm", "<f4", batch).as<float>();
    params.wide = wide.is_none() ? nullptr : vector_of(wide, "wide", "<f4", batch).as<float>();
    return {params, memory};
  }

  std::vector<CudaFieldArgument> owners;
  DeviceLookupFields fields;
};

void run_prepared(PreparedLookup& lookup, std::uintptr_t stream) {
  lookup.run(reinterpret_cast<cudaStream_t>(stream));
}

void run_and_wait(PreparedLookup& lookup, std::uintptr_t stream) {
  lookup.run_and_wait(reinterpret_cast<cudaStream_t>(stream));
}

template <class T>
void bind_member(py::class_<LinearParams>& type, const char* name, T LinearParams::* member) {
  type.def_readwrite(name, member);
}

// A pointer member, as an address.
template <class T>
void bind_address(py::class_<LinearParams>& type, const char* name, T* LinearParams::* member) {
  type.def_property(
      name,
      [member](const LinearParams& self) { return reinterpret_cast<std::uintptr_t>(self.*member); },
      [member](LinearParams& self, std::uintptr_t value) {
        self.*member = reinterpret_cast<T*>(value);
      });
}

void prepare_weight(const std::string& precision, std::uintptr_t w, int n, int k,
                    std::uintptr_t prepared, std::uintptr_t stream) {
  prepare_linear_weight(parse_precision(precision), reinterpret_cast<const float*>(w), n, k,
                        reinterpret_cast<void*>(prepared), reinterpret_cast<cudaStream_t>(stream));
}

void run_linear(const std::string& precision, const LinearParams& params, std::uintptr_t stream,
                const std::optional<LinearConfig>& tiles) {
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  if (!tiles) return linear(parse_precision(precision), params, on);
  linear(parse_precision(precision), params, *tiles, on);
}

void plain_gather_argument(std::uintptr_t table, std::uintptr_t rows, std::int64_t num_rows,
                           std::int64_t row_bytes, std::uintptr_t out, std::uintptr_t stream) {
  plain_gather({reinterpret_cast<const void*>(table), reinterpret_cast<const std::int64_t*>(rows),
                num_rows, row_bytes, reinterpret_cast<void*>(out)},
               reinterpret_cast<cudaStream_t>(stream));
}

void bind_lookups(py::module_& module) {
  py::class_<CudaFieldArgument>(module, "CudaLookupField")
      .def(py::init<const py::object&, std::int64_t, const py::object&, bool, std::int64_t>(),
           py::arg("table"), py::arg("out_column"), py::arg("wide") = py::none(),
           py::arg("in_fm") = false, py::arg("oov_row") = -1);
  py::class_<PreparedLookup>(module, "CudaLookupCall")
      .def("run", &run_prepared, py::arg("stream") = 0)
      .def("run_and_wait", &run_and_wait, py::arg("stream") = 0,
           py::call_guard<py::gil_scoped_release>());
  py::class_<CudaLookupArgument>(module, "CudaMultiTableLookup")
      .def(py::init<std::vector<CudaFieldArgument>>(), py::arg("fields"))
      .def("run", &CudaLookupArgument::run, py::arg("ids"), py::arg("out"), py::arg("report"),
           py::arg("use_oov") = false, py::arg("fm") = py::none(), py::arg("wide") = py::none(),
           py::arg("stream") = 0)
      .def("prepare", &CudaLookupArgument::prepare, py::arg("ids"), py::arg("out"),
           py::arg("report"), py::arg("use_oov") = false, py::arg("fm") = py::none(),
           py::arg("wide") = py::none(), py::keep_alive<0, 1>(), py::keep_alive<0, 2>(),
           py::keep_alive<0, 3>(), py::keep_alive<0, 4>(), py::keep_alive<0, 6>(),
           py::keep_alive<0, 7>());
}

void bind_products(py::module_& module) {
  py::class_<LinearParams> params(module, "LinearParams");
  params.def(py::init([] { return LinearParams{}; }));
  bind_member(params, "rows", &LinearParams::rows);
  bind_member(params, "n", &LinearParams::n);
  bind_member(params, "k", &LinearParams::k);
  bind_member(params, "ldx", &LinearParams::ldx);
  bind_member(params, "ldo", &LinearParams::ldo);
  bind_member(params, "relu_begin", &LinearParams::relu_begin);
  bind_member(params, "relu_end", &LinearParams::relu_end);
  bind_member(params, "cross_begin", &LinearParams::cross_begin);
  bind_member(params, "cross_end", &LinearParams::cross_end);
  bind_member(params, "ldx0", &LinearParams::ldx0);
  bind_member(params, "ldxl", &LinearParams::ldxl);
  bind_member(params, "head_begin", &LinearParams::head_begin);
  bind_member(params, "head_end", &LinearParams::head_end);
  bind_member(params, "ld_partial", &LinearParams::ld_partial);
  bind_member(params, "behind_other", &LinearParams::behind_other);
  bind_address(params, "x", &LinearParams::x);
  bind_address(params, "w", &LinearParams::w);
  bind_address(params, "bias", &LinearParams::bias);
  bind_address(params, "out", &LinearParams::out);
  bind_address(params, "x0", &LinearParams::x0);
  bind_address(params, "xl", &LinearParams::xl);
  bind_address(params, "head", &LinearParams::head);
  bind_address(params, "head_partial", &LinearParams::head_partial);
  py::class_<LinearConfig>(module, "LinearConfig")
      .def(py::init<int, bool, int, int>(), py::arg("tile_n"), py::arg("in_turn") = false,
           py::arg("split") = 1, py::arg("rows") = kTileRows)
      .def_readonly("tile_n", &LinearConfig::tile_n)
      .def_readonly("in_turn", &LinearConfig::pingpong)
      .def_readonly("split", &LinearConfig::split)
      .def_readonly("rows", &LinearConfig::rows);
  module.def(
      "prepared_weight_bytes",
      [](const std::string& precision, int n, int k) {
        return prepared_weight_bytes(parse_precision(precision), n, k);
      },
      py::arg("precision"), py::arg("n"), py::arg("k"));
  module.def("prepare_linear_weight", &prepare_weight, py::arg("precision"), py::arg("w"),
             py::arg("n"), py::arg("k"), py::arg("prepared"), py::arg("stream") = 0);
  module.def(
      "head_partials",
      [](const std::string& precision, std::int64_t rows, int n, int k) {
        return head_partials(parse_precision(precision), rows, n, k);
      },
      py::arg("precision"), py::arg("rows"), py::arg("n"), py::arg("k"));
  module.def(
      "linear_config",
      [](const std::string& precision, std::int64_t rows, int n, int k, int places) {
        return linear_config(parse_precision(precision), rows, n, k, places);
      },
      py::arg("precision"), py::arg("rows"), py::arg("n"), py::arg("k"), py::arg("places") = 1);
  module.def(
      "linear_microseconds",
      [](const std::string& precision, std::int64_t rows, int n, int k) {
        return linear_microseconds(parse_precision(precision), rows, n, k);
      },
      py::arg("precision"), py::arg("rows"), py::arg("n"), py::arg("k"));
  module.def(
      "all_linear_configs",
      [](const std::string& precision) {
        return dpiframe::all_linear_configs(parse_precision(precision));
      },
      py::arg("precision"));
  module.def("linear", &run_linear, py::arg("precision"), py::arg("params"), py::arg("stream") = 0,
             py::arg("tiles") = py::none());
}

}  // namespace

void bind_cuda_kernels(py::module_& module) {
  bind_lookups(module);
  bind_products(module);
  module.def("plain_gather", &plain_gather_argument, py::arg("table"), py::arg("rows"),
             py::arg("num_rows"), py::arg("row_bytes"), py::arg("out"), py::arg("stream") = 0);
}

}  // namespace dpiframe
