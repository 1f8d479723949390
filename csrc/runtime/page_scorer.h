// Units whose ids are still parquet pages: decompressed, decoded and scored on the device.
//
// Each unit has a slot with memory and a stream of its own: its pages are copied in and decoded
// there while the program computes another unit's batches. Then its batches are enqueued on the
// program's stream, all at once. Callers sleep while they wait; several threads may call.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/device_buffer.h"
#include "cuda/stream.h"
#include "parquet/column_pages.h"
#include "runtime/bad_id_report.h"
#include "runtime/batch_ring.h"

namespace dpiframe {

// Device memory that grows to the size asked for; its contents do not survive that, but become
// zeros.
class GrowingBuffer {
 public:
  // At least so many bytes. DeviceMemoryError.
  void* take(std::size_t bytes);
  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  DeviceBuffer buffer_;
};

// The same of page-locked host memory.
class GrowingPinnedBuffer {
 public:
  void* take(std::size_t bytes);

 private:
  PinnedBuffer buffer_;
};

struct UnitPages {
  const parquet::ColumnPages& ids;
  std::span<const std::uint8_t> bytes;  // its pages; the copy is faster from page-locked memory
  const float* dense;                   // [num_dense, dense_stride]
  std::int64_t num_dense;
  std::int64_t dense_stride;
  bool use_oov;
};

struct UnitSeconds {
  double copy_in = 0;
  double unpack = 0;
  double compute = 0;
  double copy_out = 0;
};

struct ScoredUnit {
  std::vector<std::int64_t> report;  // counters as `BatchRing::collect` gives; empty: no bad ids
  std::vector<double> batch_seconds;
  UnitSeconds seconds;
};

class PageScorer {
 public:
  // For units of `num_fields` columns of ids and `num_dense` dense features; at most `num_slots`
  // units are on the device at a time.
  PageScorer(CudaProgram& program, BatchRing& ring, int num_fields, int num_dense, int num_slots);
  ~PageScorer();

  // Writes the scores of a unit, out [rows]. The scorer stays usable after a DeviceMemoryError,
  // where the device has no room for the unit, and a std::runtime_error about a page that is
  // corrupt or holds nulls.
  ScoredUnit score(const UnitPages& unit, std::span<float> out);
  // For tests: the ids alone, out [num_fields, rows]; returns why a page is refused, if one is.
  std::string decode(const UnitPages& unit, std::span<std::byte> out);

  std::size_t device_bytes() const;

 private:
  struct Slot;
  class Turn;

  void check(const UnitPages& unit, std::size_t out_size) const;
  void send(const UnitPages& unit, Slot& slot);
  void unpack(const UnitPages& unit, Slot& slot);
  void compute(const UnitPages& unit, Slot& slot);
  ScoredUnit finish(const UnitPages& unit, Slot& slot, std::span<float> out);

  CudaProgram& program_;
  BatchRing& ring_;
  int num_fields_;
  int num_dense_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  std::mutex guard_;  // of free_
  std::condition_variable freed_;
};

}  // namespace dpiframe
