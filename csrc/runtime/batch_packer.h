// Packs the columns of a batch one after the other into a staging buffer, by several threads.
// Pure host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/thread_pool.h"
#include "kernels/embedding/multi_table_lookup.h"

namespace dpiframe {

class BatchPacker {
 public:
  explicit BatchPacker(int num_threads);  // 0: up to 16

  // Fills target [C, B] with the columns [C] of B numbers of 4 bytes (int32, float32) or, where
  // is_int64 is set, of 8; target's numbers have `target_bytes` of 4 or 8. An int64 that 4 bytes
  // cannot hold becomes a negative number, which is outside every table, too.
  void pack(std::span<const IdColumn> columns, std::int64_t size, std::size_t target_bytes,
            void* target);

  int num_threads() const { return pool_.num_threads(); }

 private:
  ThreadPool pool_;
};

}  // namespace dpiframe
