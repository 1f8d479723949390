#include <algorithm>
#include <memory>
#include <utility>

#include "bindings.h"
#include "common/device_args.h"
#include "common/device_guard.h"
#include "common/numpy_args.h"
#include "scheduler/batch_ring.h"
#include "scheduler/cuda_program.h"

namespace dpiframe {
namespace {

using OptionalView = std::optional<ArenaView>;

WeightKind parse_kind(const std::string& name) {
  if (name == "numbers") return WeightKind::kNumbers;
  if (name == "table") return WeightKind::kTable;
  DPIF_CHECK(name == "product", "a weight is numbers, table or product, got ", name);
  return WeightKind::kProduct;
}

std::int64_t weight_bytes(const std::string& precision, const std::string& kind, std::int64_t rows,
                          std::int64_t columns) {
  return static_cast<std::int64_t>(
      CudaProgram::bytes_of_weight(parse_precision(precision), parse_kind(kind), rows, columns));
}

// The most parts that the head of a product of n columns is summed in, over all batch sizes.
int max_head_partials(const std::string& precision, std::int64_t max_rows, int n) {
  int most = 0;
  for (const std::int64_t rows : batch_buckets(max_rows))
    most = std::max(most, head_partials(parse_precision(precision), rows, n));
  return most;
}

int add_weight(CudaProgram& program, const std::string& kind, const py::array& values) {
  const auto array = contiguous_argument<float>(values, "values", 2);
  const float* data = array.data();
  const std::int64_t rows = array.shape(0);
  const std::int64_t columns = array.shape(1);
  const py::gil_scoped_release release;
  return program.add_weight(parse_kind(kind), data, rows, columns);
}

// ids or dense features of a batch, where they lie on the device.
struct DeviceMatrix {
  std::uintptr_t address;
  std::int64_t stride;  // elements from one row to the next
  bool is_int64;
};

struct RingArgument {
  RingArgument(CudaProgram& program, int num_slots, std::vector<std::int64_t> field_rows,
               int num_dense, int num_threads)
      : report(program.num_report()) {
    const DeviceGuard guard(program.device());
    ring = std::make_unique<BatchRing>(program, num_slots, std::move(field_rows), num_dense,
                                       num_threads);
  }

  int submit(const py::sequence& ids, const py::array& dense, py::ssize_t size, bool use_oov,
             bool logits) {
    const IdColumns columns = id_columns(ids);
    DPIF_CHECK(py::isinstance<Array<float>>(dense) && dense.ndim() == 2 && dense.shape(1) == size,
               "dense must be float32 [N, ", size, "], got ", describe(dense));
    std::vector<IdColumn> floats;
    for (py::ssize_t n = 0; n < dense.shape(0); ++n)
      floats.push_back(
          {static_cast<const char*>(dense.data()) + n * dense.strides(0), dense.strides(1), false});
    const py::gil_scoped_release release;
    return ring->submit({size, columns.columns, floats, use_oov, logits});
  }

  // The counters, None where there were no bad ids.
  std::optional<py::array_t<std::int64_t>> collect(int slot, const py::array& out) {
    float* data = writable_argument<float>(out, "out", -1);
    const std::span<float> values(data, static_cast<std::size_t>(out.size()));
    bool any = false;
    {
      const py::gil_scoped_release release;
      any = ring->collect(slot, values, report);
    }
    return any ? std::optional(to_numpy(report)) : std::nullopt;
  }

  std::optional<py::array_t<std::int64_t>> run_in_place(const DeviceMatrix& ids,
                                                        const DeviceMatrix& dense,
                                                        std::uintptr_t out, std::int64_t batch,
                                                        bool use_oov, bool logits,
                                                        std::uintptr_t stream) {
    start_in_place(ids, dense, out, batch, use_oov, logits, stream);
    return finish_in_place();
  }

  void start_in_place(const DeviceMatrix& ids, const DeviceMatrix& dense, std::uintptr_t out,
                      std::int64_t batch, bool use_oov, bool logits, std::uintptr_t stream) {
    RunInputs inputs{};
    inputs.batch = batch;
    inputs.ids = reinterpret_cast<const void*>(ids.address);
    inputs.ids_stride = ids.stride;
    inputs.ids_are_int64 = ids.is_int64;
    inputs.dense = reinterpret_cast<const float*>(dense.address);
    inputs.dense_stride = dense.stride;
    inputs.use_oov = use_oov;
    (logits ? inputs.logits : inputs.scores) = reinterpret_cast<float*>(out);
    const py::gil_scoped_release release;
    ring->start_in_place(inputs, reinterpret_cast<cudaStream_t>(stream));
  }

  std::optional<py::array_t<std::int64_t>> finish_in_place() {
    bool any = false;
    {
      const py::gil_scoped_release release;
      any = ring->finish_in_place(report);
    }
    return any ? std::optional(to_numpy(report)) : std::nullopt;
  }

  std::vector<std::int64_t> report;
  std::unique_ptr<BatchRing> ring;
};

// A float32 [B] on the device, for callers whose own library cannot make one.
struct CudaVector {
  CudaVector(std::int64_t length, int device) : length(length) {
    DPIF_CHECK(length >= 0, "length must not be negative, got ", length);
    const DeviceGuard guard(device);
    data = DeviceBuffer(sizeof(float) * length);
  }

  py::dict interface() const {
    using py::literals::operator""_a;
    const auto address = reinterpret_cast<std::uintptr_t>(data.get());
    return py::dict("shape"_a = py::make_tuple(length), "typestr"_a = "<f4",
                    "data"_a = py::make_tuple(address, false), "version"_a = 3);
  }

  std::int64_t length;
  DeviceBuffer data;
};

void bind_views(py::module_& module) {
  py::class_<DeviceMatrix>(module, "DeviceMatrix")
      .def(py::init<std::uintptr_t, std::int64_t, bool>(), py::arg("address"), py::arg("stride"),
           py::arg("is_int64"));
  py::class_<CudaVector>(module, "CudaVector")
      .def(py::init<std::int64_t, int>(), py::arg("length"), py::arg("device"))
      .def_property_readonly("__cuda_array_interface__", &CudaVector::interface);

  py::class_<ArenaView>(module, "ArenaView")
      .def(py::init<std::int64_t, std::int64_t, int, bool>(), py::arg("offset"),
           py::arg("row_stride"), py::arg("width"), py::arg("is_float"));
  py::class_<LookupSlot>(module, "CudaSlot")
      .def(py::init<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>(),
           py::arg("field"), py::arg("table"), py::arg("wide"), py::arg("rows"), py::arg("dim"),
           py::arg("column"), py::arg("oov_row"), py::arg("in_fm"));
  py::class_<HeadPart>(module, "HeadPart")
      .def(py::init<ArenaView, OptionalView, int, int>(), py::arg("a"), py::arg("b") = py::none(),
           py::arg("weight") = -1, py::arg("partial_n") = 0);
  py::class_<ProductStep>(module, "ProductStep")
      .def(py::init<ArenaView, int, int, int, OptionalView, std::vector<std::pair<int, int>>, int,
                    OptionalView, OptionalView, int, int, int, std::optional<std::int64_t>>(),
           py::arg("x"), py::arg("n"), py::arg("weight"), py::arg("bias"), py::arg("out"),
           py::arg("relu"), py::arg("cross_begin"), py::arg("x0"), py::arg("xl"),
           py::arg("head_begin"), py::arg("head_width"), py::arg("head"), py::arg("partial"));
}

void build(CudaProgram& program, const Plan& plan, bool graphs, unsigned delay_seed,
           int refused_step) {
  const py::gil_scoped_release release;
  program.build(plan, {program.max_rows(), graphs, delay_seed, refused_step});
}

}  // namespace

void bind_cuda_program(py::module_& module) {
  bind_views(module);
  module.def("weight_bytes", &weight_bytes, py::arg("precision"), py::arg("kind"), py::arg("rows"),
             py::arg("columns"));
  module.def("max_head_partials", &max_head_partials, py::arg("precision"), py::arg("max_rows"),
             py::arg("n"));
  module.def("batch_buckets", &batch_buckets, py::arg("max_rows"));
  py::class_<CudaProgram>(module, "CudaProgram")
      .def(py::init([](int device, const std::string& precision, std::int64_t max_rows,
                       std::int64_t weights, std::int64_t arena) {
             return std::make_unique<CudaProgram>(device, parse_precision(precision), max_rows,
                                                  weights, arena);
           }),
           py::arg("device"), py::arg("precision"), py::arg("max_rows"), py::arg("weight_bytes"),
           py::arg("arena_bytes"))
      .def("add_weight", &add_weight, py::arg("kind"), py::arg("values"))
      .def("add_lookup", &CudaProgram::add_lookup, py::arg("slots"), py::arg("out"), py::arg("fm"),
           py::arg("wide"))
      .def("add_load_dense", &CudaProgram::add_load_dense, py::arg("out"))
      .def("add_copy", &CudaProgram::add_copy, py::arg("x"), py::arg("out"))
      .def("add_relu", &CudaProgram::add_relu, py::arg("x"), py::arg("out"))
      .def("add_outer", &CudaProgram::add_outer, py::arg("x"), py::arg("weight"), py::arg("dim"),
           py::arg("out"))
      .def("add_batch_norm", &CudaProgram::add_batch_norm, py::arg("x"), py::arg("scale"),
           py::arg("shift"), py::arg("out"))
      .def("add_cross_combine", &CudaProgram::add_cross_combine, py::arg("x0"), py::arg("wx"),
           py::arg("xl"), py::arg("out"))
      .def("add_cross_v1", &CudaProgram::add_cross_v1, py::arg("x0"), py::arg("xl"),
           py::arg("weight"), py::arg("bias"), py::arg("out"))
      .def("add_cross_scalar", &CudaProgram::add_cross_scalar, py::arg("dots"), py::arg("shift"),
           py::arg("out"))
      .def("add_scale_shift", &CudaProgram::add_scale_shift, py::arg("x"), py::arg("alpha"),
           py::arg("beta"), py::arg("out"))
      .def("add_add", &CudaProgram::add_add, py::arg("xs"), py::arg("bias"), py::arg("out"))
      .def("add_fm", &CudaProgram::add_fm, py::arg("xs"), py::arg("dim"), py::arg("out"))
      .def("add_product", &CudaProgram::add_product, py::arg("step"))
      .def("add_head", &CudaProgram::add_head, py::arg("parts"), py::arg("bias"), py::arg("out"))
      .def("build", &build, py::arg("plan"), py::arg("graphs") = true, py::arg("delay_seed") = 0,
           py::arg("refused_step") = -1)
      .def("poison", &CudaProgram::poison)
      .def_property_readonly("device_bytes", &CudaProgram::device_bytes);
  py::class_<RingArgument>(module, "BatchRing")
      .def(py::init<CudaProgram&, int, std::vector<std::int64_t>, int, int>(), py::arg("program"),
           py::arg("num_slots"), py::arg("field_rows"), py::arg("num_dense"),
           py::arg("num_threads") = 0, py::keep_alive<1, 2>())
      .def("submit", &RingArgument::submit, py::arg("ids"), py::arg("dense"), py::arg("size"),
           py::arg("use_oov"), py::arg("logits"))
      .def("collect", &RingArgument::collect, py::arg("slot"), py::arg("out"))
      .def("run_in_place", &RingArgument::run_in_place, py::arg("ids"), py::arg("dense"),
           py::arg("out"), py::arg("batch"), py::arg("use_oov"), py::arg("logits"),
           py::arg("stream"))
      .def("start_in_place", &RingArgument::start_in_place, py::arg("ids"), py::arg("dense"),
           py::arg("out"), py::arg("batch"), py::arg("use_oov"), py::arg("logits"),
           py::arg("stream"))
      .def("finish_in_place", &RingArgument::finish_in_place)
      .def_property_readonly("device_bytes",
                             [](const RingArgument& self) { return self.ring->device_bytes(); });
}

}  // namespace dpiframe
