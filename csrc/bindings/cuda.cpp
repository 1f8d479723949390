#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "bindings/device_args.h"
#include "bindings/families.h"
#include "common/check.h"
#include "cuda/completion_flag_wait.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "runtime/captured_graph.h"

namespace dpiframe {
namespace {

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

// The arguments of a lookup, checked.
struct CheckedLookup {
  void launch(cudaStream_t stream) const {
    multi_table_lookup(inputs.batch, params, inputs, stream);
  }

  MultiTableLookupParams params;
  RunInputs inputs;
};

// A checked lookup as a graph of its one launch, which is replayed faster than it is launched; and
// as one that tells its end, where that saves time: many blocks take tickets for longer than that.
class CudaLookupCall {
 public:
  explicit CudaLookupCall(const CheckedLookup& lookup) : lookup_(lookup), graph_(captured(lookup)) {
    if (lookup.inputs.batch == 0 || lookup.inputs.batch > kToldRows) return;
    CheckedLookup telling = lookup;
    telling.params.end = end_.emplace().end();
    telling_.emplace(captured(telling));
  }

  void run(std::uintptr_t address) {
    const auto stream = reinterpret_cast<cudaStream_t>(address);
    cudaStreamCaptureStatus status{};
    DPIF_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    if (status == cudaStreamCaptureStatusNone)
      graph_.launch(lookup_.inputs, stream);
    else  // a kernel of the graph that is being captured, not a graph inside it
      lookup_.launch(stream);
  }

  void run_and_wait(std::uintptr_t address) {
    const auto stream = reinterpret_cast<cudaStream_t>(address);
    if (telling_.has_value()) {
      end_->reset();
      telling_->launch(lookup_.inputs, stream);
      return end_->wait(stream);
    }
    graph_.launch(lookup_.inputs, stream);
    DPIF_CUDA_CHECK(cudaStreamSynchronize(stream));
  }

 private:
  static constexpr std::int64_t kToldRows = 16'384;

  static CapturedGraph captured(const CheckedLookup& lookup) {
    const Stream stream;
    // Loads the kernel, for a batch of no rows: it reads and writes nothing.
    multi_table_lookup(lookup.inputs.batch, lookup.params, RunInputs{}, stream.get());
    stream.synchronize();
    cudaGraph_t graph = capture_graph(stream, [&] { lookup.launch(stream.get()); });
    return CapturedGraph(graph, {}, lookup.inputs);
  }

  CheckedLookup lookup_;
  CapturedGraph graph_;
  std::optional<KernelEndWait> end_;
  std::optional<CapturedGraph> telling_;
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
    checked(ids, out, report, use_oov, fm, wide).launch(reinterpret_cast<cudaStream_t>(stream));
  }

  CudaLookupCall prepare(const py::object& ids, const py::object& out, const py::object& report,
                         bool use_oov, const py::object& fm, const py::object& wide) const {
    return CudaLookupCall(checked(ids, out, report, use_oov, fm, wide));
  }

  CheckedLookup checked(const py::object& ids, const py::object& out, const py::object& report,
                        bool use_oov, const py::object& fm, const py::object& wide) const {
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
    RunInputs inputs{};
    inputs.report = vector_of(report, "report", "<i8", num_fields + 1).as<unsigned long long>();
    inputs.ids = ids_view.as<void>();
    inputs.ids_stride = ids_view.stride;
    inputs.ids_are_int64 = ids_view.type == "<i8";
    inputs.batch = batch;
    inputs.use_oov = use_oov;
    MultiTableLookupParams params{};
    params.fields = fields.get();
    params.shape = fields.shape();
    params.out = out_view.as<void>();
    params.out_stride = out_view.stride;
    params.fm = fm.is_none() ? nullptr : vector_of(fm, "fm", "<f4", batch).as<float>();
    params.wide = wide.is_none() ? nullptr : vector_of(wide, "wide", "<f4", batch).as<float>();
    return {params, inputs};
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
  py::class_<CudaLookupCall>(module, "CudaLookupCall")
      .def("run", &CudaLookupCall::run, py::arg("stream") = 0)
      .def("run_and_wait", &CudaLookupCall::run_and_wait, py::arg("stream") = 0,
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
  bind_fused(module);
  bind_cuda_program(module);
  bind_batch_ring(module);
  bind_linear(module);
  bind_page_scorer(module);
  bind_bench(module);
}

}  // namespace dpiframe
