#include "scheduler/batch_ring.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/cuda_check.h"
#include "common/device_guard.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kPart = 16384;            // rows of one column that a thread packs at once
constexpr std::int64_t kSerialNumbers = 131072;  // fewer are packed by the caller alone
constexpr int kMaxThreads = 16;
constexpr unsigned long long kNone = ~0ull;
constexpr std::int64_t kLast32 = std::numeric_limits<std::int32_t>::max();

// An id that 32 bits cannot hold is outside every table here, and so is -1.
std::int32_t narrowed(std::int64_t id) {
  return id >= 0 && id <= kLast32 ? static_cast<std::int32_t>(id) : -1;
}

template <class From, class To, class Convert>
void pack_column(const IdColumn& column, std::int64_t begin, std::int64_t end, To* target,
                 const Convert& convert) {
  const char* source = static_cast<const char*>(column.data);
  if (column.stride == sizeof(From) && std::is_same_v<From, To>) {
    std::memcpy(target + begin, source + begin * sizeof(From), (end - begin) * sizeof(From));
    return;
  }
  for (std::int64_t b = begin; b < end; ++b) {
    From value;
    std::memcpy(&value, source + b * column.stride, sizeof(value));
    target[b] = convert(value);
  }
}

}  // namespace

Report::Report(int size)
    : size_(size),
      device_(sizeof(kNone) * size),
      host_(sizeof(kNone) * size),
      initial_(sizeof(kNone) * size) {
  // All ones, so that counts start at -1 and places at the largest number there is.
  std::memset(initial_.get(), 0xff, sizeof(kNone) * size);
  std::memset(host_.get(), 0xff, sizeof(kNone) * size);
  DPIF_CUDA_CHECK(
      cudaMemcpy(device_.get(), initial_.get(), sizeof(kNone) * size, cudaMemcpyHostToDevice));
}

bool Report::take(std::span<std::int64_t> values, const Stream& stream) {
  DPIF_CHECK(values.size() == static_cast<std::size_t>(size_), "the report has ", size_,
             " entries, got room for ", values.size());
  if (std::memcmp(host(), initial_.get(), sizeof(kNone) * size_) == 0) return false;
  std::memcpy(values.data(), host(), sizeof(kNone) * size_);
  DPIF_CUDA_CHECK(cudaMemcpyAsync(device_.get(), initial_.get(), sizeof(kNone) * size_,
                                  cudaMemcpyHostToDevice, stream.get()));
  return true;
}

BatchRing::BatchRing(CudaProgram& program, int num_slots, std::vector<std::int64_t> field_rows,
                     int num_dense, int num_threads)
    : program_(program),
      field_rows_(std::move(field_rows)),
      num_dense_(num_dense),
      id_bytes_(sizeof(std::int32_t)),
      in_place_(program.num_report()),
      pool_(num_threads > 0 ? num_threads : std::min(kMaxThreads, num_usable_processors())) {
  for (const std::int64_t rows : field_rows_)
    if (rows > kLast32) id_bytes_ = sizeof(std::int64_t);
  const std::int64_t rows = program.max_rows();
  const std::size_t bytes =
      rows * (id_bytes_ * field_rows_.size() + sizeof(float) * num_dense) + 16;
  for (int s = 0; s < num_slots; ++s)
    slots_.push_back({PinnedBuffer(bytes), PinnedBuffer(sizeof(float) * rows), DeviceBuffer(bytes),
                      DeviceBuffer(sizeof(float) * rows), Report(program.num_report()), Event(),
                      Event(), Event()});
}

BatchRing::~BatchRing() {
  // Memory must not go while copies use it; after a failure there is nothing to wait for.
  (void)cudaStreamSynchronize(copy_in_.get());
  (void)cudaStreamSynchronize(program_.stream().get());
  (void)cudaStreamSynchronize(copy_out_.get());
}

std::size_t BatchRing::device_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.inputs.bytes() + slot.scores.bytes();
  return bytes;
}

int BatchRing::submit(const HostBatch& batch) {
  const DeviceGuard guard(program_.device());
  Slot& slot = slots_[next_];
  DPIF_CHECK(slot.size == 0, "all ", slots_.size(), " slots hold batches that were not collected");
  const std::int64_t dense_offset = (batch.size * id_bytes_ * field_rows_.size() + 15) / 16 * 16;
  const std::size_t bytes = dense_offset + sizeof(float) * batch.size * num_dense_;
  pack(batch, static_cast<char*>(slot.packed.get()), dense_offset);
  char* inputs = static_cast<char*>(slot.inputs.get());
  DPIF_CUDA_CHECK(
      cudaMemcpyAsync(inputs, slot.packed.get(), bytes, cudaMemcpyHostToDevice, copy_in_.get()));
  slot.copied.record(copy_in_);
  program_.stream().wait_for(slot.copied.get());
  RunInputs run{};
  run.ids = inputs;
  run.ids_stride = run.dense_stride = run.batch = batch.size;
  run.ids_are_int64 = id_bytes_ == sizeof(std::int64_t);
  run.dense = reinterpret_cast<const float*>(inputs + dense_offset);
  run.use_oov = batch.use_oov;
  (batch.logits ? run.logits : run.scores) = static_cast<float*>(slot.scores.get());
  run.report = slot.report.device();
  run.report_copy = slot.report.host();
  program_.run(run);
  slot.computed.record(program_.stream());
  copy_out_.wait_for(slot.computed.get());
  DPIF_CUDA_CHECK(cudaMemcpyAsync(slot.out.get(), slot.scores.get(), sizeof(float) * batch.size,
                                  cudaMemcpyDeviceToHost, copy_out_.get()));
  slot.done.record(copy_out_);
  slot.size = batch.size;
  const int submitted = next_;
  next_ = (next_ + 1) % num_slots();
  return submitted;
}

bool BatchRing::collect(int slot_number, std::span<float> out, std::span<std::int64_t> report) {
  const DeviceGuard guard(program_.device());
  Slot& slot = slots_.at(slot_number);
  DPIF_CHECK(slot.size == static_cast<std::int64_t>(out.size()), "slot ", slot_number,
             " holds a batch of ", slot.size, " rows, got room for ", out.size());
  slot.size = 0;
  DPIF_CUDA_CHECK(cudaEventSynchronize(slot.done.get()));
  std::memcpy(out.data(), slot.out.get(), out.size_bytes());
  return slot.report.take(report, program_.stream());
}

bool BatchRing::run_in_place(RunInputs inputs, cudaStream_t caller,
                             std::span<std::int64_t> report) {
  start_in_place(inputs, caller);
  return finish_in_place(report);
}

void BatchRing::start_in_place(RunInputs inputs, cudaStream_t caller) {
  const DeviceGuard guard(program_.device());
  if (cudaStreamQuery(caller) != cudaSuccess) {  // a wait costs the GPU more than this asking
    DPIF_CUDA_CHECK(cudaEventRecord(caller_.get(), caller));
    program_.stream().wait_for(caller_.get());
  }
  inputs.report = in_place_.device();
  inputs.report_copy = in_place_.host();
  program_.run(inputs);
}

bool BatchRing::finish_in_place(std::span<std::int64_t> report) {
  const DeviceGuard guard(program_.device());
  program_.stream().synchronize();
  return in_place_.take(report, program_.stream());
}

void BatchRing::pack(const HostBatch& batch, char* target, std::int64_t dense_offset) {
  const int num_columns = static_cast<int>(field_rows_.size()) + num_dense_;
  const std::int64_t parts = (batch.size + kPart - 1) / kPart;
  const std::int64_t total = parts * num_columns;
  const auto work = [&](int worker, int num_workers) {
    for (std::int64_t i = worker; i < total; i += num_workers) {
      const std::int64_t begin = i % parts * kPart;
      pack_part(batch, static_cast<int>(i / parts), begin, std::min(begin + kPart, batch.size),
                target, dense_offset);
    }
  };
  const int num_workers = batch.size * num_columns < kSerialNumbers ? 1 : pool_.num_threads();
  if (num_workers == 1)
    work(0, 1);
  else
    pool_.run(num_workers, [&](int worker) { work(worker, num_workers); });
}

void BatchRing::pack_part(const HostBatch& batch, int column, std::int64_t begin, std::int64_t end,
                          char* target, std::int64_t dense_offset) const {
  const auto same = [](auto value) { return value; };
  const int num_fields = static_cast<int>(field_rows_.size());
  if (column >= num_fields) {
    auto* dense = reinterpret_cast<float*>(target + dense_offset);
    pack_column<float>(batch.dense[column - num_fields], begin, end,
                       dense + (column - num_fields) * batch.size, same);
    return;
  }
  const IdColumn& ids = batch.ids[column];
  if (id_bytes_ == sizeof(std::int64_t)) {
    auto* wide = reinterpret_cast<std::int64_t*>(target) + column * batch.size;
    if (ids.is_int64)
      pack_column<std::int64_t>(ids, begin, end, wide, same);
    else
      pack_column<std::int32_t>(ids, begin, end, wide, same);
    return;
  }
  auto* narrow = reinterpret_cast<std::int32_t*>(target) + column * batch.size;
  if (ids.is_int64)
    pack_column<std::int64_t>(ids, begin, end, narrow, narrowed);
  else
    pack_column<std::int32_t>(ids, begin, end, narrow, same);
}

}  // namespace dpiframe
