#include "runtime/batch_ring.h"

#include <chrono>
#include <cstring>
#include <limits>

#include "cuda/cuda_check.h"
#include "cuda/device_guard.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kLast32 = std::numeric_limits<std::int32_t>::max();
// Rows of a part of a larger array are copied one by one; shorter ones are faster packed.
constexpr std::int64_t kShortRow = 16384;  // bytes
// Longer than a small batch takes; behind a large one others wait, so that nothing is lost when the
// thread sleeps.
constexpr std::chrono::microseconds kSpin{100};
// Many blocks take tickets for longer than the end of a stream takes (docs/kernels_lookup.md).
constexpr std::int64_t kMaxPolledRows = 16'384;

std::size_t padded(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

std::size_t bytes_each(const HostColumns& from) {
  return !from.columns.empty() && from.columns[0].is_int64 ? sizeof(std::int64_t)
                                                           : sizeof(std::int32_t);
}

std::int64_t row_stride(const HostColumns& from) {
  return static_cast<const char*>(from.columns[1].data) -
         static_cast<const char*>(from.columns[0].data);
}

bool page_locked(const void* place) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, place) == cudaSuccess)
    return attributes.type == cudaMemoryTypeHost;
  (void)cudaGetLastError();
  return false;
}

// Whether the device may read the columns by itself: rows of one page-locked array, each in one
// piece, in ascending order.
bool readable_by_device(const HostColumns& from, std::int64_t size) {
  if (!from.one_array || from.columns.empty()) return false;
  const std::int64_t each = static_cast<std::int64_t>(bytes_each(from));
  const std::int64_t row = each * size;
  if (from.columns[0].stride != each) return false;
  if (from.columns.size() > 1) {
    const std::int64_t stride = row_stride(from);
    if (stride < row || stride > kLast32 || (stride != row && row < kShortRow)) return false;
  }
  const char* end = static_cast<const char*>(from.columns.back().data) + row;
  return page_locked(from.columns[0].data) && page_locked(end - 1);
}

// A stream that is captured cannot be waited for. Asking leaves the capture as it is.
void check_not_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
  if (asked == cudaErrorStreamCaptureImplicit) {  // a stream that the default one waits for
    (void)cudaGetLastError();
    status = cudaStreamCaptureStatusActive;
  } else {
    DPIF_CUDA_CHECK(asked);
  }
  DPIF_CHECK(
      status == cudaStreamCaptureStatusNone,
      "a batch is waited for, so it cannot be scored on a stream that is being captured into "
      "a CUDA graph: score it before or after the capture");
}

}  // namespace

BatchRing::BatchRing(CudaProgram& program, int num_slots,
                     const std::vector<std::int64_t>& field_rows, int num_dense, int num_threads)
    : program_(program),
      num_fields_(field_rows.size()),
      num_dense_(num_dense),
      id_bytes_(sizeof(std::int32_t)),
      events_(num_slots + 1),
      in_place_(program.num_report()),
      packer_(num_threads) {
  for (const std::int64_t rows : field_rows)
    if (rows > kLast32) id_bytes_ = sizeof(std::int64_t);
  const std::int64_t rows = program.max_rows();
  const std::size_t dense_bytes = sizeof(float) * rows * num_dense_;
  const std::size_t packed = padded(id_bytes_ * rows * num_fields_) + dense_bytes;
  for (DeviceBuffer& inputs : inputs_)
    inputs = DeviceBuffer(padded(sizeof(std::int64_t) * rows * num_fields_) + dense_bytes);
  for (int s = 0; s < num_slots; ++s)
    slots_.emplace_back(sizeof(float) * rows, program.num_report());
  // Behind all that the device gives: page-locking takes time, and memory from everybody.
  for (Slot& slot : slots_) {
    slot.packed = PinnedBuffer(packed);
    slot.out = PinnedBuffer(sizeof(float) * rows);
  }
}

BatchRing::~BatchRing() {
  // Memory must not go while copies use it; after a failure there is nothing to wait for.
  (void)cudaStreamSynchronize(copy_in_.get());
  (void)cudaStreamSynchronize(program_.stream().get());
  (void)cudaStreamSynchronize(copy_out_.get());
}

std::size_t BatchRing::device_bytes() const {
  std::size_t bytes = 0;
  for (const DeviceBuffer& inputs : inputs_) bytes += inputs.bytes();
  for (const Slot& slot : slots_) bytes += slot.scores.bytes();
  return bytes;
}

int BatchRing::submit(const HostBatch& batch) {
  check(batch);
  const DeviceGuard guard(program_.device());
  const std::int64_t number = num_submitted_;
  const auto submitted = static_cast<int>(number % num_slots());
  Slot& slot = slots_[submitted];
  DPIF_CHECK(slot.size == 0, "all ", slots_.size(), " slots hold batches that were not collected");
  // The batch before last has read what the copy will overwrite.
  if (number >= kInputs) copy_in_.wait_for(events(number - kInputs).computed.get());
  const BatchEvents& own = events(number);
  BatchMemory run{};
  send(batch, slot, static_cast<char*>(inputs_[number % kInputs].get()), run);
  own.copied.record(copy_in_);
  program_.stream().wait_for(own.copied.get());
  (batch.logits ? run.logits : run.scores) = static_cast<float*>(slot.scores.get());
  run.report = slot.report.device();
  run.report_copy = slot.report.host();
  {
    const std::lock_guard turn(turn_);
    own_busy_ = true;
    program_.run(run, program_.stream().get());
    own.computed.record(program_.stream());
  }
  copy_out_.wait_for(own.computed.get());
  DPIF_CUDA_CHECK(cudaMemcpyAsync(slot.out.get(), slot.scores.get(), sizeof(float) * batch.size,
                                  cudaMemcpyDeviceToHost, copy_out_.get()));
  own.done.record(copy_out_);
  slot.size = batch.size;
  slot.number = num_submitted_++;
  return submitted;
}

void BatchRing::check(const HostBatch& batch) const {
  DPIF_CHECK(batch.size >= 1 && batch.size <= program_.max_rows(), "a batch must have 1 to ",
             program_.max_rows(), " rows, got ", batch.size);
  DPIF_CHECK(batch.ids.columns.size() == num_fields_, "expected ids of ", num_fields_,
             " fields, got ", batch.ids.columns.size());
  DPIF_CHECK(batch.dense.columns.size() == num_dense_, "expected ", num_dense_,
             " dense features, got ", batch.dense.columns.size());
}

void BatchRing::send(const HostBatch& batch, Slot& slot, char* inputs, BatchMemory& run) {
  const bool ids_direct = readable_by_device(batch.ids, batch.size);
  const bool dense_direct = readable_by_device(batch.dense, batch.size);
  const std::size_t id_bytes = ids_direct ? bytes_each(batch.ids) : id_bytes_;
  char* packed = static_cast<char*>(slot.packed.get());
  char* packed_dense = packed + padded(id_bytes_ * batch.size * num_fields_);
  char* dense = inputs + padded(id_bytes * batch.size * num_fields_);
  if (!ids_direct) packer_.pack(batch.ids.columns, batch.size, id_bytes, packed);
  events(num_submitted_).begun.record(copy_in_);
  copy_in(batch.ids, batch.size, id_bytes, ids_direct ? nullptr : packed, inputs);
  if (!dense_direct)  // while ids travel
    packer_.pack(batch.dense.columns, batch.size, sizeof(float), packed_dense);
  copy_in(batch.dense, batch.size, sizeof(float), dense_direct ? nullptr : packed_dense, dense);
  run.ids = inputs;
  run.ids_are_int64 = id_bytes == sizeof(std::int64_t);
  run.dense = reinterpret_cast<const float*>(dense);
  run.ids_stride = run.dense_stride = run.batch = batch.size;
  run.use_oov = batch.use_oov;
}

void BatchRing::copy_in(const HostColumns& from, std::int64_t size, std::size_t number_bytes,
                        const void* packed, void* inputs) {
  const std::size_t num_columns = from.columns.size();
  const std::size_t row = number_bytes * size;
  if (num_columns == 0) return;
  const void* source = packed != nullptr ? packed : from.columns[0].data;
  const std::size_t stride = packed == nullptr && num_columns > 1 ? row_stride(from) : row;
  if (stride == row)
    DPIF_CUDA_CHECK(
        cudaMemcpyAsync(inputs, source, row * num_columns, cudaMemcpyHostToDevice, copy_in_.get()));
  else
    DPIF_CUDA_CHECK(cudaMemcpy2DAsync(inputs, row, source, stride, row, num_columns,
                                      cudaMemcpyHostToDevice, copy_in_.get()));
}

bool BatchRing::collect(int slot_number, std::span<float> out, std::span<std::int64_t> report) {
  const DeviceGuard guard(program_.device());
  Slot& slot = slots_.at(slot_number);
  DPIF_CHECK(slot.size == static_cast<std::int64_t>(out.size()), "slot ", slot_number,
             " holds a batch of ", slot.size, " rows, got room for ", out.size());
  slot.size = 0;
  events(slot.number).done.synchronize(kSpin);
  std::memcpy(out.data(), slot.out.get(), out.size_bytes());
  count_seconds(slot.number);
  return slot.report.take(report, program_.stream());
}

void BatchRing::count_seconds(std::int64_t number) {
  const BatchEvents* before = number > 0 ? &events(number - 1) : nullptr;
  const BatchSeconds seconds = batch_seconds(events(number), before);
  seconds_.copy_in += seconds.copy_in;
  seconds_.compute += seconds.compute;
  seconds_.copy_out += seconds.copy_out;
}

void BatchRing::launch_in_place(BatchMemory inputs, cudaStream_t caller) {
  const DeviceGuard guard(program_.device());
  check_not_captured(caller);
  if (own_busy_) {
    switch_.record(program_.stream());
    switch_.hold(caller);
  }
  inputs.report = in_place_.device();
  inputs.report_copy = in_place_.host();
  polls_flag_ = inputs.batch <= kMaxPolledRows;
  if (polls_flag_) {
    completion_.reset();
    inputs.completion = completion_.get();
  }
  try {
    program_.run(inputs, caller);
  } catch (...) {  // whose memory may go now: what did start must not use it
    (void)cudaStreamSynchronize(caller);
    throw;
  }
}

bool BatchRing::await_in_place(cudaStream_t caller, std::span<std::int64_t> report) {
  const DeviceGuard guard(program_.device());
  if (polls_flag_)
    completion_.wait(caller);
  else
    DPIF_CUDA_CHECK(cudaStreamSynchronize(caller));
  return take_in_place(report);
}

void BatchRing::start_in_place(BatchMemory inputs, cudaStream_t caller) {
  const DeviceGuard guard(program_.device());
  if (cudaStreamQuery(caller) != cudaSuccess) {  // a wait costs the GPU more than this asking
    (void)cudaGetLastError();                    // "not ready" is no failure of the next launch
    switch_.record(caller);
    program_.stream().wait_for(switch_.get());
  }
  inputs.report = in_place_.device();
  inputs.report_copy = in_place_.host();
  own_busy_ = true;
  program_.run(inputs, program_.stream().get());
}

void BatchRing::enqueue(std::span<const BatchMemory> batches, const Event& started,
                        std::span<const TimedEvent> ends) {
  const DeviceGuard guard(program_.device());
  const std::lock_guard turn(turn_);
  own_busy_ = true;
  started.record(program_.stream());
  for (std::size_t b = 0; b < batches.size(); ++b) {
    program_.run(batches[b], program_.stream().get());
    ends[b].record(program_.stream());
  }
}

bool BatchRing::finish_in_place(std::span<std::int64_t> report) {
  const DeviceGuard guard(program_.device());
  program_.stream().synchronize();
  return take_in_place(report);
}

bool BatchRing::take_in_place(std::span<std::int64_t> report) {
  own_busy_ = in_place_.take(report, program_.stream());
  return own_busy_;
}

}  // namespace dpiframe
