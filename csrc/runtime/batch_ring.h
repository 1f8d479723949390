// Batches from host memory: copy in, compute and copy out overlap on three streams.
//
// A ring of slots, each with pinned memory, device memory and counters of its own. submit packs a
// batch into the next slot and enqueues all of its work; collect waits for one slot alone. Rows of
// one page-locked array are not packed: the device reads them where they lie. All memory is taken
// at construction. One caller at a time, but for `enqueue`.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "cuda/completion_flag.h"
#include "cuda/device_buffer.h"
#include "cuda/stream.h"
#include "kernels/embedding/multi_table_lookup.h"
#include "runtime/batch_packer.h"
#include "runtime/batch_report.h"
#include "runtime/batch_times.h"
#include "runtime/cuda_program.h"

namespace dpiframe {

struct HostColumns {
  std::span<const IdColumn> columns;
  bool one_array;  // rows of one array, at equal distances and of one type
};

struct HostBatch {
  std::int64_t size;  // B, 1 to max_rows
  HostColumns ids;    // [F]
  HostColumns dense;  // [N] float32
  bool use_oov;
  bool logits;  // what comes back: logits or scores
};

class BatchRing {
 public:
  // `field_rows` [F]: ids travel as 32 bits where all tables allow. num_threads 0: up to 16.
  BatchRing(CudaProgram& program, int num_slots, const std::vector<std::int64_t>& field_rows,
            int num_dense, int num_threads);
  ~BatchRing();

  // Returns the slot. The batch's memory must stay as it is until the slot is collected.
  int submit(const HostBatch& batch);
  // Waits for the slot; out [B] takes what came back, report [num_report] the counters. Returns
  // whether there were bad ids.
  bool collect(int slot, std::span<float> out, std::span<std::int64_t> report);

  // Runs a batch whose memory lies on the device on `caller` itself, after what that holds so far;
  // any kind of stream but one that is being captured (std::invalid_argument).
  void launch_in_place(BatchMemory inputs, cudaStream_t caller);
  // Must follow it: waits for the batch, of which all can be read then on any stream, and takes the
  // counters, as collect.
  bool await_in_place(cudaStream_t caller, std::span<std::int64_t> report);

  // The same on the program's stream, so that batches may be started one behind the other; finish
  // waits for all of them and takes the counters of all.
  void start_in_place(BatchMemory inputs, cudaStream_t caller);
  bool finish_in_place(std::span<std::int64_t> report);

  // Runs batches whose memory lies on the device on the program's stream, one behind the other,
  // with no other thread's between; records `started` before them, and the end of each. Any thread
  // may call this while one other uses the ring; not while a batch in place is under way.
  void enqueue(std::span<const BatchMemory> batches, const Event& started,
               std::span<const TimedEvent> ends);

  int num_slots() const { return static_cast<int>(slots_.size()); }
  std::size_t device_bytes() const;
  // Of the batches collected since the last call.
  BatchSeconds take_seconds() { return std::exchange(seconds_, {}); }

 private:
  static constexpr int kInputs = 2;

  struct Slot {
    Slot(std::size_t score_bytes, int num_report) : scores(score_bytes), report(num_report) {}

    DeviceBuffer scores;
    Report report;
    PinnedBuffer packed;
    PinnedBuffer out;
    std::int64_t size = 0;    // of the batch in it; 0: free
    std::int64_t number = 0;  // of the batch: how many were submitted before it
  };

  void check(const HostBatch& batch) const;
  // Enqueues the copy of ids and dense features to `inputs`, and says where they lie there.
  void send(const HostBatch& batch, Slot& slot, char* inputs, BatchMemory& run);
  // Enqueues the copy of columns as they are, or packed where `packed` is not null.
  void copy_in(const HostColumns& from, std::int64_t size, std::size_t number_bytes,
               const void* packed, void* inputs);
  void count_seconds(std::int64_t number);
  // Of batches in place, when they and all on the program's stream are done.
  bool take_in_place(std::span<std::int64_t> report);
  // Of a batch in flight, or of the one before those, by its number.
  BatchEvents& events(std::int64_t number) { return events_[number % events_.size()]; }

  CudaProgram& program_;
  std::mutex turn_;  // to put batches on the program's stream
  std::size_t num_fields_;
  std::size_t num_dense_;
  std::size_t id_bytes_;  // of an id that was packed
  Stream copy_in_;
  Stream copy_out_;
  // One is filled while a batch reads the other, whatever slots they have: with room for 8-byte
  // ids.
  std::array<DeviceBuffer, kInputs> inputs_;
  std::vector<Slot> slots_;
  std::vector<BatchEvents> events_;  // one more than slots, for the batch before the first of them
  std::int64_t num_submitted_ = 0;
  BatchSeconds seconds_;
  Report in_place_;
  PolledCompletion completion_;
  bool polls_flag_ = false;  // the batch in place tells its end
  Event switch_;          // between the program's stream and the caller's
  // The program's stream may hold work that the next batch on the caller's must come after.
  bool own_busy_ = false;
  BatchPacker packer_;
};

}  // namespace dpiframe
