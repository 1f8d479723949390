// Batches from host memory, with copy in, compute and copy out overlapped on three streams; and
// batches that lie on the device already.
//
// A ring of slots, each with pinned staging buffers, device memory for scores, and counters. submit
// packs a batch into the next slot's staging buffer and enqueues all of its work; collect waits for
// that slot alone. Rows of one page-locked array are not packed: the device reads them where they
// lie. All memory is taken at construction. One caller at a time, except for `enqueue`.
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
#include "runtime/bad_id_report.h"
#include "runtime/batch_packer.h"
#include "runtime/cuda_program.h"

namespace dpiframe {

struct HostColumns {
  std::span<const IdColumn> columns;
  bool one_array;  // rows of one array, at equal distances and of one type
};

struct HostBatch {
  std::int64_t size;  // B
  HostColumns ids;    // [F]
  HostColumns dense;  // [N] float32
  bool use_oov;
  bool logits;  // whether logits are wanted, not scores
};

// Time on the device by what it did; the three overlap between neighbouring batches.
struct BatchSeconds {
  double copy_in = 0;
  double compute = 0;
  double copy_out = 0;
};

// What a call of any number of rows found.
struct RingCall {
  std::vector<double> batch_seconds;               // from one batch's scores to the next's
  std::vector<std::vector<std::int64_t>> reports;  // of the batches that had bad ids
};

class BatchRing {
 public:
  // `field_rows` [F]: ids travel as 32 bits where all tables allow, or as they are where some
  // repeat. num_threads 0: up to 16.
  BatchRing(CudaProgram& program, int num_slots, const std::vector<std::int64_t>& field_rows,
            int num_dense, int num_threads);
  ~BatchRing();

  // Returns the slot of a batch of 1 to max_rows rows, whose memory must stay as it is until the
  // slot is collected.
  int submit(const HostBatch& batch);
  // Waits for the slot; out [B] gets its scores, report [num_report] the counters. Returns whether
  // there were bad ids.
  bool collect(int slot, std::span<float> out, std::span<std::int64_t> report);

  // Scores `call`, of any size, into out [call.size], cut to batches of `max_rows` that follow one
  // another through the ring.
  RingCall run(const HostBatch& call, std::int64_t max_rows, std::span<float> out);

  // Runs a batch that lies on the device on `caller` itself, after the work that stream holds; any
  // kind of stream but one that is being captured (std::invalid_argument).
  void launch_in_place(BatchMemory memory, cudaStream_t caller);
  // Must follow it: waits until all that the batch wrote is visible on any stream, and takes the
  // counters as collect does.
  bool await_in_place(cudaStream_t caller, std::span<std::int64_t> report);

  // The same on the program's stream, so that batches can be started one after the other; finish
  // waits for all of them and takes the counters of all.
  void start_in_place(BatchMemory memory, cudaStream_t caller);
  bool finish_in_place(std::span<std::int64_t> report);

  // Runs batches that lie on the device one after the other on the program's stream, with no other
  // thread's between them; records `started` before them and ends[b] after batch b. Any thread may
  // call this while one other uses the ring; not while a batch in place is under way.
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
    BadIdReport report;
    PinnedBuffer staged_inputs;
    PinnedBuffer staged_scores;
    std::int64_t size = 0;    // of the batch in it; 0: free
    std::int64_t number = 0;  // of the batch: how many were submitted before it
  };

  // Copy in, compute and copy out of a batch are each one stretch of a stream. A stretch begins
  // when the same batch's previous stretch and the previous batch's same stretch are done, so one
  // event at each end times all of them, except that copying in waits for the host and needs one
  // more.
  struct BatchEvents {
    TimedEvent begun;
    TimedEvent copied;
    TimedEvent computed;
    TimedEvent done;
  };

  class Call;

  void choose_streams();
  void check(const HostBatch& batch) const;
  std::size_t packed_id_bytes(const HostColumns& ids) const;
  void enqueue(const HostBatch& batch, Slot& slot);
  // Enqueues the copies of ids and dense features to `inputs`; returns where they lie there.
  BatchMemory copy_in(const HostBatch& batch, Slot& slot, char* inputs);
  // Copies columns as they are, or from `packed` where that is not null.
  void copy_columns(const HostColumns& from, std::int64_t size, std::size_t number_bytes,
                    const void* packed, void* target);
  void add_seconds(std::int64_t number);
  // The counters of batches in place, after these and all on the program's stream are done.
  bool take_in_place(std::span<std::int64_t> report);
  // Of a batch in flight or the one before those, by its number.
  BatchEvents& events(std::int64_t number) { return events_[number % events_.size()]; }

  CudaProgram& program_;
  std::mutex turn_;  // to put batches on the program's stream
  std::size_t num_fields_;
  std::size_t num_dense_;
  std::size_t id_bytes_;  // of a packed id, at most
  Stream copy_in_;
  Stream copy_out_;
  // One is filled while a batch reads the other. Both have room for 8-byte ids.
  std::array<DeviceBuffer, kInputs> inputs_;
  std::vector<Slot> slots_;
  std::vector<BatchEvents> events_;  // one more than slots: the batch before the oldest in flight
  std::int64_t num_submitted_ = 0;
  BatchSeconds seconds_;
  BadIdReport in_place_;
  PolledCompletion completion_;
  bool polls_flag_ = false;  // for the batch in place
  Event switch_;             // between the program's stream and the caller's
  // The program's stream may hold work that the next batch on the caller's must wait for.
  bool own_busy_ = false;
  BatchPacker packer_;
};

}  // namespace dpiframe
