#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"
#include "common/device_guard.h"
#include "common/numpy_args.h"
#include "scheduler/batch_ring.h"
#include "scheduler/cuda_program.h"

namespace dpiframe {
namespace {

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

}  // namespace

void bind_batch_ring(py::module_& module) {
  py::class_<DeviceMatrix>(module, "DeviceMatrix")
      .def(py::init<std::uintptr_t, std::int64_t, bool>(), py::arg("address"), py::arg("stride"),
           py::arg("is_int64"));
  py::class_<CudaVector>(module, "CudaVector")
      .def(py::init<std::int64_t, int>(), py::arg("length"), py::arg("device"))
      .def_property_readonly("__cuda_array_interface__", &CudaVector::interface);
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
