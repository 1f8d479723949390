#include "runtime/batch_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>

#include "cuda/cuda_check.h"
#include "cuda/stream.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kLast32 = std::numeric_limits<std::int32_t>::max();
// A 2D copy moves the rows of a larger array one by one; packing shorter ones is faster.
constexpr std::int64_t kShortRow = 16384;  // bytes
// Longer than a small batch takes. After a large one more work is queued, so that sleeping costs
// nothing.
constexpr std::chrono::microseconds kSpin{100};

std::size_t padded(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

std::size_t bytes_each(const HostColumns& from) {
  return !from.columns.empty() && from.columns[0].is_int64 ? sizeof(std::int64_t)
                                                           : sizeof(std::int32_t);
}

// Bytes from one row of the array to the next.
std::int64_t row_stride(const HostColumns& from) {
  return static_cast<const char*>(from.columns[1].data) -
         static_cast<const char*>(from.columns[0].data);
}

bool is_page_locked(const void* address) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess)
    return attributes.type == cudaMemoryTypeHost;
  (void)cudaGetLastError();
  return false;
}

// Whether the device can read the columns itself: contiguous rows of one page-locked array, in
// ascending order.
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
  return is_page_locked(from.columns[0].data) && is_page_locked(end - 1);
}

// A stream that is being captured cannot be waited for. The query leaves the capture intact.
void check_not_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
  if (asked == cudaErrorStreamCaptureImplicit) {  // the legacy default stream beside a capture
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
    if (rows > kLast32 || program.has_field_ids()) id_bytes_ = sizeof(std::int64_t);
  const std::int64_t rows = program.max_rows();
  const std::size_t dense_bytes = sizeof(float) * rows * num_dense_;
  const std::size_t packed = padded(id_bytes_ * rows * num_fields_) + dense_bytes;
  for (DeviceBuffer& inputs : inputs_)
    inputs = DeviceBuffer::zeros(padded(sizeof(std::int64_t) * rows * num_fields_) + dense_bytes);
  for (int s = 0; s < num_slots; ++s)
    slots_.emplace_back(sizeof(float) * rows, program.num_report());
  // After all device memory was got: page-locking takes time, and memory from other processes.
  for (Slot& slot : slots_) {
    slot.staged_inputs = PinnedBuffer(packed);
    slot.staged_scores = PinnedBuffer(sizeof(float) * rows);
  }
  choose_streams();
}

// By a batch of zeros: the first row of each table.
void BatchRing::choose_streams() {
  BatchMemory memory{};
  memory.batch = memory.ids_stride = memory.dense_stride = program_.max_rows();
  memory.ids = inputs_[0].get();
  memory.dense = static_cast<const float*>(inputs_[0].get());
  memory.scores = static_cast<float*>(slots_.front().scores.get());
  memory.report = in_place_.device();
  memory.report_copy = in_place_.host();
  program_.choose_streams(memory);
}

BatchRing::~BatchRing() {
  drain(copy_in_.get());
  drain(program_.stream().get());
  drain(copy_out_.get());
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
  const auto submitted = static_cast<int>(num_submitted_ % num_slots());
  Slot& slot = slots_[submitted];
  DPIF_CHECK(slot.size == 0, "all ", slots_.size(), " slots hold batches that were not collected");
  try {
    enqueue(batch, slot);
  } catch (...) {  // the caller may free the memory now: a copy must not read it
    drain(copy_in_.get());
    throw;
  }
  slot.size = batch.size;
  slot.number = num_submitted_++;
  return submitted;
}

void BatchRing::enqueue(const HostBatch& batch, Slot& slot) {
  const std::int64_t number = num_submitted_;
  const BatchEvents& own = events(number);
  // The copy overwrites what the batch before last has read.
  if (number >= kInputs) copy_in_.wait_for(events(number - kInputs).computed.get());
  BatchMemory memory = copy_in(batch, slot, static_cast<char*>(inputs_[number % kInputs].get()));
  own.copied.record(copy_in_);
  program_.stream().wait_for(own.copied.get());
  (batch.logits ? memory.logits : memory.scores) = static_cast<float*>(slot.scores.get());
  memory.report = slot.report.device();
  memory.report_copy = slot.report.host();
  {
    const std::lock_guard turn(turn_);
    own_busy_ = true;
    program_.run(memory, program_.stream().get());
    own.computed.record(program_.stream());
  }
  copy_out_.wait_for(own.computed.get());
  DPIF_CUDA_CHECK(cudaMemcpyAsync(slot.staged_scores.get(), slot.scores.get(),
                                  sizeof(float) * batch.size, cudaMemcpyDeviceToHost,
                                  copy_out_.get()));
  own.done.record(copy_out_);
}

void BatchRing::check(const HostBatch& batch) const {
  DPIF_CHECK(batch.size >= 1 && batch.size <= program_.max_rows(), "a batch must have 1 to ",
             program_.max_rows(), " rows, got ", batch.size);
  DPIF_CHECK(batch.ids.columns.size() == num_fields_, "expected ids of ", num_fields_,
             " fields, got ", batch.ids.columns.size());
  DPIF_CHECK(batch.dense.columns.size() == num_dense_, "expected ", num_dense_,
             " dense features, got ", batch.dense.columns.size());
}

// Ids that may repeat are whole numbers of any size, so they stay as wide as they are.
std::size_t BatchRing::packed_id_bytes(const HostColumns& ids) const {
  const bool narrow =
      program_.has_field_ids() && std::ranges::none_of(ids.columns, &IdColumn::is_int64);
  return narrow ? sizeof(std::int32_t) : id_bytes_;
}

BatchMemory BatchRing::copy_in(const HostBatch& batch, Slot& slot, char* inputs) {
  const bool ids_direct = readable_by_device(batch.ids, batch.size);
  const bool dense_direct = readable_by_device(batch.dense, batch.size);
  const std::size_t packed_bytes = packed_id_bytes(batch.ids);
  const std::size_t id_bytes = ids_direct ? bytes_each(batch.ids) : packed_bytes;
  char* packed = static_cast<char*>(slot.staged_inputs.get());
  char* packed_dense = packed + padded(packed_bytes * batch.size * num_fields_);
  char* dense = inputs + padded(id_bytes * batch.size * num_fields_);
  if (!ids_direct) packer_.pack(batch.ids.columns, batch.size, id_bytes, packed);
  events(num_submitted_).begun.record(copy_in_);
  copy_columns(batch.ids, batch.size, id_bytes, ids_direct ? nullptr : packed, inputs);
  if (!dense_direct)  // while ids are copied
    packer_.pack(batch.dense.columns, batch.size, sizeof(float), packed_dense);
  copy_columns(batch.dense, batch.size, sizeof(float), dense_direct ? nullptr : packed_dense,
               dense);
  BatchMemory memory{};
  memory.ids = inputs;
  memory.ids_are_int64 = id_bytes == sizeof(std::int64_t);
  memory.dense = reinterpret_cast<const float*>(dense);
  memory.ids_stride = memory.dense_stride = memory.batch = batch.size;
  memory.use_oov = batch.use_oov;
  return memory;
}

void BatchRing::copy_columns(const HostColumns& from, std::int64_t size, std::size_t number_bytes,
                             const void* packed, void* target) {
  const std::size_t num_columns = from.columns.size();
  const std::size_t row = number_bytes * size;
  if (num_columns == 0) return;
  const void* source = packed != nullptr ? packed : from.columns[0].data;
  const std::size_t stride = packed == nullptr && num_columns > 1 ? row_stride(from) : row;
  if (stride == row)
    DPIF_CUDA_CHECK(
        cudaMemcpyAsync(target, source, row * num_columns, cudaMemcpyHostToDevice, copy_in_.get()));
  else
    DPIF_CUDA_CHECK(cudaMemcpy2DAsync(target, row, source, stride, row, num_columns,
                                      cudaMemcpyHostToDevice, copy_in_.get()));
}

bool BatchRing::collect(int slot_number, std::span<float> out, std::span<std::int64_t> report) {
  const DeviceGuard guard(program_.device());
  Slot& slot = slots_.at(slot_number);
  DPIF_CHECK(slot.size == static_cast<std::int64_t>(out.size()), "slot ", slot_number,
             " holds a batch of ", slot.size, " rows, got room for ", out.size());
  slot.size = 0;
  events(slot.number).done.synchronize(kSpin);
  std::memcpy(out.data(), slot.staged_scores.get(), out.size_bytes());
  add_seconds(slot.number);
  return slot.report.take(report, program_.stream());
}

void BatchRing::add_seconds(std::int64_t number) {
  const BatchEvents& batch = events(number);
  double compute = seconds_between(batch.copied, batch.computed);
  double copy_out = seconds_between(batch.computed, batch.done);
  if (number > 0) {  // a stretch begins when the later of its two predecessors ends
    const BatchEvents& before = events(number - 1);
    compute = std::min(compute, seconds_between(before.computed, batch.computed));
    copy_out = std::min(copy_out, seconds_between(before.done, batch.done));
  }
  seconds_.copy_in += seconds_between(batch.begun, batch.copied);
  seconds_.compute += compute;
  seconds_.copy_out += copy_out;
}

// One call's batches on their way through the ring.
class BatchRing::Call {
 public:
  explicit Call(BatchRing& ring) : ring_(ring), report_(ring.program_.num_report()) {}

  // Empties the ring, so that nothing reads the caller's memory after a failed call.
  ~Call() {
    while (!in_flight_.empty()) {
      try {
        collect();
      } catch (...) {
        continue;  // the first failure is the one that the caller gets
      }
    }
  }

  void submit(const HostBatch& batch, std::span<float> out) {
    if (static_cast<int>(in_flight_.size()) == ring_.num_slots()) collect();
    in_flight_.emplace_back(ring_.submit(batch), out);
  }

  RingCall finish() {
    while (!in_flight_.empty()) collect();
    return std::move(result_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void collect() {
    const auto [slot, out] = in_flight_.front();
    in_flight_.pop_front();
    if (ring_.collect(slot, out, report_)) result_.reports.push_back(report_);
    const Clock::time_point now = Clock::now();
    result_.batch_seconds.push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

  BatchRing& ring_;
  std::vector<std::int64_t> report_;
  std::deque<std::pair<int, std::span<float>>> in_flight_;
  RingCall result_;
  Clock::time_point last_ = Clock::now();
};

RingCall BatchRing::run(const HostBatch& call, std::int64_t max_rows, std::span<float> out) {
  const auto from_row = [](std::span<const IdColumn> columns, std::int64_t row) {
    std::vector<IdColumn> moved(columns.begin(), columns.end());
    for (IdColumn& column : moved)
      column.data = static_cast<const char*>(column.data) + row * column.stride;
    return moved;
  };
  Call running(*this);
  for (std::int64_t row = 0; row < call.size; row += max_rows) {
    const std::vector<IdColumn> ids = from_row(call.ids.columns, row);
    const std::vector<IdColumn> dense = from_row(call.dense.columns, row);
    HostBatch batch = call;
    batch.size = std::min(max_rows, call.size - row);
    batch.ids.columns = ids;
    batch.dense.columns = dense;
    running.submit(batch, out.subspan(row, batch.size));
  }
  return running.finish();
}

void BatchRing::launch_in_place(BatchMemory memory, cudaStream_t caller) {
  const DeviceGuard guard(program_.device());
  check_not_captured(caller);
  if (own_busy_) {
    switch_.record(program_.stream());
    switch_.hold(caller);
  }
  memory.report = in_place_.device();
  memory.report_copy = in_place_.host();
  polls_flag_ = memory.batch <= kMaxPolledRows;
  if (polls_flag_) {
    completion_.reset();
    memory.completion = completion_.get();
  }
  try {
    program_.run(memory, caller);
  } catch (...) {  // the caller may free the memory now: what was started must not use it
    drain(caller);
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

void BatchRing::start_in_place(BatchMemory memory, cudaStream_t caller) {
  const DeviceGuard guard(program_.device());
  if (cudaStreamQuery(caller) != cudaSuccess) {  // this query costs less than an event's wait
    (void)cudaGetLastError();                    // "not ready" is no failure of the next launch
    switch_.record(caller);
    program_.stream().wait_for(switch_.get());
  }
  memory.report = in_place_.device();
  memory.report_copy = in_place_.host();
  own_busy_ = true;
  program_.run(memory, program_.stream().get());
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
