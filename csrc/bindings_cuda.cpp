#include <pybind11/stl.h>

#include <utility>

#include "bindings.h"
#include "common/check.h"
#include "kernels/multi_table_lookup_cuda.h"

namespace dpiframe {
namespace {

namespace py = pybind11;

// An array on the device, read through __cuda_array_interface__ (torch, CuPy, Numba have it).
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

struct CudaFieldArgument {
  CudaFieldArgument(const py::object& table, std::int64_t out_column, const py::object& wide,
                    bool in_fm, std::int64_t oov_row)
      : table_(table, "table", "<f4", 2), wide_(wide) {
    const std::int64_t rows = table_.shape[0];
    DPIF_CHECK(table_.stride == table_.shape[1], "table must be contiguous");
    const float* weights =
        wide.is_none() ? nullptr : vector_of(wide, "wide", "<f4", rows).as<float>();
    field = {table_.as<float>(), weights, rows, table_.shape[1], out_column, oov_row, in_fm};
  }

  LookupField field;

 private:
  DeviceArray table_;
  py::object wide_;
};

struct CudaLookupArgument {
  explicit CudaLookupArgument(std::vector<CudaFieldArgument> arguments)
      : owners(std::move(arguments)), fields(plain_fields(owners)) {}

  static std::vector<LookupField> plain_fields(const std::vector<CudaFieldArgument>& owners) {
    std::vector<LookupField> fields;
    for (const CudaFieldArgument& owner : owners) fields.push_back(owner.field);
    return fields;
  }

  void run(const py::object& ids, const py::object& out, const py::object& report, bool use_oov,
           const py::object& fm, const py::object& wide, std::uintptr_t stream) const {
    const DeviceArray ids_view(ids, "ids", "<i4 or <i8", 2);
    const DeviceArray out_view(out, "out", "<f4", 2);
    const std::int64_t num_fields = fields.shape().num_fields;
    const std::int64_t batch = ids_view.shape[1];
    DPIF_CHECK(ids_view.shape[0] == num_fields, "ids must have ", num_fields, " rows, got ",
               ids_view.shape[0]);
    DPIF_CHECK(out_view.shape[0] == batch && out_view.shape[1] >= fields.out_width(),
               "out must be [", batch, ", at least ", fields.out_width(), "], got [",
               out_view.shape[0], ", ", out_view.shape[1], "]");
    DPIF_CHECK(fm.is_none() || fields.has_fm(), "fm was asked for and no field is in FM");
    auto* counts = vector_of(report, "report", "<i8", num_fields + 1).as<unsigned long long>();
    MultiTableLookupParams params{};
    params.fields = fields.get();
    params.shape = fields.shape();
    params.ids = ids_view.as<void>();
    params.ids_stride = ids_view.stride;
    params.ids_are_int64 = ids_view.type == "<i8";
    params.batch = batch;
    params.out = out_view.as<float>();
    params.out_stride = out_view.stride;
    params.fm = fm.is_none() ? nullptr : vector_of(fm, "fm", "<f4", batch).as<float>();
    params.wide = wide.is_none() ? nullptr : vector_of(wide, "wide", "<f4", batch).as<float>();
    params.bad_counts = counts;
    params.first_bad = counts + num_fields;
    params.use_oov = use_oov;
    multi_table_lookup(params, reinterpret_cast<cudaStream_t>(stream));
  }

  std::vector<CudaFieldArgument> owners;
  DeviceLookupFields fields;
};

}  // namespace

void bind_cuda(py::module_& module) {
  py::class_<CudaFieldArgument>(module, "CudaLookupField")
      .def(py::init<const py::object&, std::int64_t, const py::object&, bool, std::int64_t>(),
           py::arg("table"), py::arg("out_column"), py::arg("wide") = py::none(),
           py::arg("in_fm") = false, py::arg("oov_row") = -1);
  py::class_<CudaLookupArgument>(module, "CudaMultiTableLookup")
      .def(py::init<std::vector<CudaFieldArgument>>(), py::arg("fields"))
      .def("run", &CudaLookupArgument::run, py::arg("ids"), py::arg("out"), py::arg("report"),
           py::arg("use_oov") = false, py::arg("fm") = py::none(), py::arg("wide") = py::none(),
           py::arg("stream") = 0);
}

}  // namespace dpiframe
