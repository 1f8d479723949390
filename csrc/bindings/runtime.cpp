// Batches and units on the device.
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bindings/device_tensors.h"
#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "common/one_caller.h"
#include "cuda/cuda_check.h"
#include "cuda/stream.h"
#include "runtime/batch_ring.h"
#include "runtime/cuda_program.h"
#include "runtime/page_scorer.h"

namespace dpiframe {
namespace {

// The columns of dense features, as id_columns those of ids.
IdColumns float_columns(const py::sequence& dense, py::ssize_t size) {
  IdColumns result;
  if (py::isinstance<py::array>(dense)) {
    auto array = py::reinterpret_borrow<py::array>(dense);
    DPIF_CHECK(py::isinstance<Array<float>>(array) && array.ndim() == 2 && array.shape(1) == size,
               "dense must be float32 [N, ", size, "], got ", describe(array));
    result.columns = matrix_columns(array, false);
    result.one_array = true;
    result.owners.push_back(std::move(array));
    return result;
  }
  for (std::size_t n = 0; n < dense.size(); ++n) {
    const py::object item = dense[n];
    DPIF_CHECK(py::isinstance<Array<float>>(item), "dense features must be float32 arrays (", n,
               ")");
    auto array = py::reinterpret_borrow<py::array>(item);
    DPIF_CHECK(array.ndim() == 1 && array.shape(0) == size, "dense features must have shape [",
               size, "], got ", describe(array));
    result.columns.push_back({array.data(), array.strides(0), false});
    result.owners.push_back(std::move(array));
  }
  return result;
}

// Plain numbers, since making objects of them would take as long as the rest of a call.
BatchMemory device_batch(std::uintptr_t ids, std::int64_t ids_stride, bool ids_are_int64,
                         std::uintptr_t dense, std::int64_t dense_stride, std::uintptr_t out,
                         std::int64_t batch, bool use_oov) {
  BatchMemory inputs{};
  inputs.batch = batch;
  inputs.ids = reinterpret_cast<const void*>(ids);
  inputs.ids_stride = ids_stride;
  inputs.ids_are_int64 = ids_are_int64;
  inputs.dense = reinterpret_cast<const float*>(dense);
  inputs.dense_stride = dense_stride;
  inputs.use_oov = use_oov;
  inputs.scores = reinterpret_cast<float*>(out);
  return inputs;
}

// The counters, None where there were no bad ids.
using Counters = std::optional<py::array_t<std::int64_t>>;

struct RingArgument {
  RingArgument(CudaProgram& program, int num_slots, const std::vector<std::int64_t>& field_rows,
               int num_dense, int num_threads)
      : report(program.num_report()), max_rows(program.max_rows()) {
    const py::gil_scoped_release release;
    const DeviceGuard guard(program.device());
    ring = std::make_unique<BatchRing>(program, num_slots, field_rows, num_dense, num_threads);
  }

  int submit(const py::sequence& ids, const py::sequence& dense, py::ssize_t size, bool use_oov,
             bool logits) {
    const IdColumns i = id_columns(ids);
    const IdColumns d = float_columns(dense, size);
    DPIF_CHECK(i.columns.empty() || i.size == size, "ids must have ", size, " rows, got ", i.size);
    const py::gil_scoped_release release;
    return ring->submit(
        {size, {i.columns, i.one_array}, {d.columns, d.one_array}, use_oov, logits});
  }

  // Seconds of each batch, and the counters of those that had bad ids.
  py::tuple run(const py::sequence& ids, const py::sequence& dense, const py::array& out,
                std::int64_t max_rows, bool use_oov, bool logits) {
    DPIF_CHECK(max_rows >= 1, "max_rows must be at least 1, got ", max_rows);
    const IdColumns i = id_columns(ids);
    const IdColumns d = float_columns(dense, out.size());
    DPIF_CHECK(i.columns.empty() || i.size == out.size(), "ids must have ", out.size(),
               " rows, got ", i.size);
    float* data = writable_argument<float>(out, "out", -1);
    const std::span<float> values(data, static_cast<std::size_t>(out.size()));
    const HostBatch call{
        out.size(), {i.columns, i.one_array}, {d.columns, d.one_array}, use_oov, logits};
    RingCall done;
    {
      const py::gil_scoped_release release;
      done = ring->run(call, max_rows, values);
    }
    py::list reports;
    for (const std::vector<std::int64_t>& found : done.reports) reports.append(to_numpy(found));
    return py::make_tuple(done.batch_seconds, reports);
  }

  Counters collect(int slot, const py::array& out) {
    float* data = writable_argument<float>(out, "out", -1);
    const std::span<float> values(data, static_cast<std::size_t>(out.size()));
    bool any = false;
    {
      const py::gil_scoped_release release;
      any = ring->collect(slot, values, report);
    }
    return counters(any);
  }

  // The interpreter's lock is given away for the wait alone: a launch takes no longer than that.
  Counters run_in_place(std::uintptr_t ids, std::int64_t ids_stride, bool ids_are_int64,
                        std::uintptr_t dense, std::int64_t dense_stride, std::uintptr_t out,
                        std::int64_t batch, bool use_oov, std::uintptr_t stream) {
    const auto caller = reinterpret_cast<cudaStream_t>(stream);
    ring->launch_in_place(
        device_batch(ids, ids_stride, ids_are_int64, dense, dense_stride, out, batch, use_oov),
        caller);
    return await_in_place(caller);
  }

  Counters await_in_place(cudaStream_t caller) {
    bool any = false;
    {
      const py::gil_scoped_release release;
      any = ring->await_in_place(caller, report);
    }
    return counters(any);
  }

  void start_in_place(std::uintptr_t ids, std::int64_t ids_stride, bool ids_are_int64,
                      std::uintptr_t dense, std::int64_t dense_stride, std::uintptr_t out,
                      std::int64_t batch, bool use_oov, std::uintptr_t stream) {
    const BatchMemory inputs =
        device_batch(ids, ids_stride, ids_are_int64, dense, dense_stride, out, batch, use_oov);
    const py::gil_scoped_release release;
    ring->start_in_place(inputs, reinterpret_cast<cudaStream_t>(stream));
  }

  Counters finish_in_place() {
    bool any = false;
    {
      const py::gil_scoped_release release;
      any = ring->finish_in_place(report);
    }
    return counters(any);
  }

  Counters counters(bool any) const { return any ? Counters(to_numpy(report)) : std::nullopt; }

  std::vector<std::int64_t> report;
  std::int64_t max_rows;
  std::unique_ptr<BatchRing> ring;
};

// Scores tensors with as little of the host's time as there can be: of a few thousand samples a GPU
// takes 10 to 30 us, of which a few calls in Python would be a third.
class TensorScorer {
 public:
  // `make_scores(B)`: an array [B] on the library's current stream, and its address;
  // `inference_mode()`: whether what is made now is for inference alone.
  TensorScorer(py::object ring, const DeviceTensors& tensors, OneCaller& caller, bool use_oov,
               py::function make_scores, py::function inference_mode)
      : ring_(std::move(ring)),
        tensors_(tensors),
        caller_(caller),
        use_oov_(use_oov),
        make_scores_(std::move(make_scores)),
        inference_mode_(std::move(inference_mode)) {}

  // Scores, seconds, counters. None: nothing was done, since the tensors are not found this way, or
  // are none or too many samples for a batch.
  py::object score(const py::object& ids, const py::object& dense) {
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    const CallersTurn turn(caller_);
    if (ring_.is_none()) throw std::runtime_error("the engine is closed");
    const py::object held = ring_;  // whoever closes this meanwhile
    auto& ring = held.cast<RingArgument&>();
    const std::optional<TensorBatch> found = tensors_.find(ids, dense);
    if (!found.has_value() || found->size < 1 || found->size > ring.max_rows) return py::none();
    const Request request{found->size, found->stream, inference_mode_()};
    Scores out = std::exchange(ahead_, {});
    if (!out.array || !(request == request_)) out = make(request.size);
    request_ = request;
    BatchMemory memory{};
    memory.batch = found->size;
    memory.ids = found->ids.data;
    memory.ids_stride = found->ids.stride;
    memory.ids_are_int64 = found->ids.number_bytes == sizeof(std::int64_t);
    memory.dense = static_cast<const float*>(found->dense.data);
    memory.dense_stride = found->dense.stride;
    memory.use_oov = use_oov_;
    memory.scores = reinterpret_cast<float*>(out.address);
    const auto caller = static_cast<cudaStream_t>(found->stream);
    ring.ring->launch_in_place(memory, caller);
    const std::exception_ptr interrupted = make_ahead();
    if (ring_.is_none()) ahead_ = {};            // closed meanwhile
    Counters bad = ring.await_in_place(caller);  // the GPU uses the caller's memory until then
    if (interrupted) std::rethrow_exception(interrupted);
    const std::chrono::duration<double> seconds = Clock::now() - began;
    return py::make_tuple(std::move(out.array), seconds.count(), std::move(bad));
  }

  // Lets go of the ring and of what was made ahead, whoever still holds this.
  void close() {
    ring_ = py::none();
    ahead_ = {};
  }

 private:
  struct Request {
    std::int64_t size = 0;
    void* stream = nullptr;
    py::object inference_mode;

    bool operator==(const Request& other) const {
      return size == other.size && stream == other.stream &&
             inference_mode.is(other.inference_mode);
    }
  };
  struct Scores {
    py::object array;
    std::uintptr_t address = 0;
  };

  Scores make(std::int64_t size) const {
    const py::tuple made = make_scores_(size);
    return {made[0], made[1].cast<std::uintptr_t>()};
  }

  // While the GPU works: what the next call needs if it asks for the same again. A failure comes to
  // the call that needs the memory; what is none of an `Exception` (an interrupt) is returned.
  std::exception_ptr make_ahead() {
    try {
      ahead_ = make(request_.size);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) return std::current_exception();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  py::object ring_;  // a BatchRing; none: closed
  const DeviceTensors& tensors_;
  OneCaller& caller_;
  bool use_oov_;
  py::function make_scores_;
  py::function inference_mode_;
  Request request_;  // the last one
  Scores ahead_;
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

using parquet::ColumnPages;

// Dense features [N, B], whose rows may lie apart.
void take_dense(const py::array& dense, UnitPages& unit) {
  if (dense.size() == 0) return;
  DPIF_CHECK(py::isinstance<Array<float>>(dense) && dense.ndim() == 2 &&
                 dense.shape(1) == unit.ids.rows && dense.strides(1) == sizeof(float) &&
                 dense.strides(0) > 0 && dense.strides(0) % sizeof(float) == 0,
             "dense must be float32 [N, ", unit.ids.rows, "] with whole rows, got ",
             describe(dense));
  unit.dense = static_cast<const float*>(dense.data());
  unit.num_dense = dense.shape(0);
  unit.dense_stride = dense.strides(0) / static_cast<std::int64_t>(sizeof(float));
}

// The counters (None: no bad ids), seconds of each batch, seconds of copying in, unpacking,
// computing, copying out.
py::tuple score_pages(PageScorer& scorer, const ColumnPages& ids, const py::array& memory,
                      const py::array& dense, const py::array& out, bool use_oov) {
  const auto bytes = contiguous_argument<std::uint8_t>(memory, "memory", 1);
  UnitPages unit{ids,    {bytes.data(), static_cast<std::size_t>(bytes.size())}, nullptr, 0, 0,
                 use_oov};
  take_dense(dense, unit);
  float* scores = writable_argument<float>(out, "out", ids.rows);
  ScoredUnit scored;
  {
    const py::gil_scoped_release release;
    scored = scorer.score(unit, {scores, static_cast<std::size_t>(ids.rows)});
  }
  const UnitSeconds& seconds = scored.seconds;
  const py::object report =
      scored.report.empty() ? py::none() : py::object(to_numpy(scored.report));
  return py::make_tuple(
      report, scored.batch_seconds,
      py::make_tuple(seconds.copy_in, seconds.unpack, seconds.compute, seconds.copy_out));
}

std::string decode_pages(PageScorer& scorer, const ColumnPages& ids, const py::array& memory,
                         const py::array& out) {
  const auto bytes = contiguous_argument<std::uint8_t>(memory, "memory", 1);
  auto* to = reinterpret_cast<std::byte*>(writable_argument<std::uint8_t>(out, "out", -1));
  const std::size_t size = out.size();
  const UnitPages unit{ids,  {bytes.data(), static_cast<std::size_t>(bytes.size())}, nullptr, 0, 0,
                       false};
  const py::gil_scoped_release release;
  return scorer.decode(unit, {to, size});
}

std::unique_ptr<PageScorer> make_page_scorer(CudaProgram& program, RingArgument& ring,
                                             int num_fields, int num_dense, int num_slots) {
  return std::make_unique<PageScorer>(program, *ring.ring, num_fields, num_dense, num_slots);
}

bool inject_cuda_failure(std::int64_t call, bool lost) {
  failure_loses_device = lost;
  return calls_until_failure.exchange(call) > 0;
}

}  // namespace

void bind_runtime(py::module_& module) {
  py::class_<CudaVector>(module, "CudaVector")
      .def(py::init<std::int64_t, int>(), py::arg("length"), py::arg("device"))
      .def_property_readonly("__cuda_array_interface__", &CudaVector::interface);
  py::class_<RingArgument>(module, "BatchRing")
      .def(py::init<CudaProgram&, int, std::vector<std::int64_t>, int, int>(), py::arg("program"),
           py::arg("num_slots"), py::arg("field_rows"), py::arg("num_dense"),
           py::arg("num_threads") = 0, py::keep_alive<1, 2>())
      .def("submit", &RingArgument::submit, py::arg("ids"), py::arg("dense"), py::arg("size"),
           py::arg("use_oov"), py::arg("logits"))
      .def("run", &RingArgument::run, py::arg("ids"), py::arg("dense"), py::arg("out"),
           py::arg("max_rows"), py::arg("use_oov"), py::arg("logits"))
      .def("collect", &RingArgument::collect, py::arg("slot"), py::arg("out"))
      .def("run_in_place", &RingArgument::run_in_place, py::arg("ids"), py::arg("ids_stride"),
           py::arg("ids_are_int64"), py::arg("dense"), py::arg("dense_stride"), py::arg("out"),
           py::arg("batch"), py::arg("use_oov"), py::arg("stream"))
      .def("start_in_place", &RingArgument::start_in_place, py::arg("ids"), py::arg("ids_stride"),
           py::arg("ids_are_int64"), py::arg("dense"), py::arg("dense_stride"), py::arg("out"),
           py::arg("batch"), py::arg("use_oov"), py::arg("stream"))
      .def("finish_in_place", &RingArgument::finish_in_place)
      .def("take_seconds",
           [](RingArgument& self) {
             const BatchSeconds seconds = self.ring->take_seconds();
             return py::make_tuple(seconds.copy_in, seconds.compute, seconds.copy_out);
           })
      .def_property_readonly("device_bytes",
                             [](const RingArgument& self) { return self.ring->device_bytes(); });
  py::class_<TensorScorer>(module, "TensorScorer")
      .def(py::init<py::object, const DeviceTensors&, OneCaller&, bool, py::function,
                    py::function>(),
           py::arg("ring"), py::arg("tensors"), py::arg("caller"), py::arg("use_oov"),
           py::arg("make_scores"), py::arg("inference_mode"), py::keep_alive<1, 3>(),
           py::keep_alive<1, 4>())
      .def("score", &TensorScorer::score, py::arg("ids"), py::arg("dense"))
      .def("close", &TensorScorer::close);
  py::class_<PageScorer>(module, "PageScorer")
      .def(py::init(&make_page_scorer), py::arg("program"), py::arg("ring"), py::arg("num_fields"),
           py::arg("num_dense"), py::arg("num_slots"), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def("score", &score_pages, py::arg("ids"), py::arg("memory"), py::arg("dense"),
           py::arg("out"), py::arg("use_oov"))
      .def("decode", &decode_pages, py::arg("ids"), py::arg("memory"), py::arg("out"))
      .def_property_readonly("device_bytes", &PageScorer::device_bytes);
  module.def("inject_cuda_failure", &inject_cuda_failure, py::arg("call"), py::arg("lost") = false);
}

}  // namespace dpiframe
